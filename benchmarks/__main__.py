"""``python -m benchmarks``: one run, everything in turn with its alternative, medians and goals."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import place, report, series
from benchmarks.figures import Figure
from benchmarks.launches import in_turn
from benchmarks.transfers import Bench, Rates, large_file, small_files, transfer_pod
from launcher.app import build_launcher, open_cluster
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import AdminPort
from launcher.cluster.retrying import RetryingCluster
from launcher.errors import PodgateError
from launcher.logs import configure
from launcher.settings import Settings
from launcher.settings_sources import load_settings

PARTS = ("launches", "transfers", "help")
HELP_SECONDS = 60.0
COUNT = click.IntRange(1, 100)


@dataclass(frozen=True)
class Plan:
    """What is measured, how often, and with what."""

    settings: Settings
    worker_image: str
    kubectl: tuple[str, ...]
    count: int
    turns: int
    skip: frozenset[str]
    install: bool


@click.command()
@click.option("--kubeconfig", help="As kubectl finds it, unless given.")
@click.option("--namespace", help="Where Podgate is installed; PODGATE_NAMESPACE or podgate, unless given.")
@click.option("--install", is_flag=True, help="Install Podgate into a namespace of its own, and remove it afterwards.")
@click.option("--trusted-image", help="By digest; PODGATE_TRUSTED_IMAGE unless given.")
@click.option("--worker-image", help="Image with python3, by digest; the trusted image unless given.")
@click.option("--kubectl", default="kubectl", show_default=True, help="How kubectl is called.")
@click.option(
    "--count", type=COUNT, default=10, show_default=True, help="Launches of each kind, and starts of the command."
)
@click.option("--transfers", "turns", type=COUNT, help="Turns of each transfer; as --count unless given.")
@click.option("--skip", type=click.Choice(PARTS), multiple=True, help="Leave a part out; may be repeated.")
@click.option("--json", "style", flag_value="json", help="One JSON object instead of a table.")
@click.option("--markdown", "style", flag_value="markdown", help="A Markdown table, for docs/performance.md.")
def main(
    kubeconfig: str | None,
    namespace: str | None,
    install: bool,  # noqa: FBT001 -- click passes flags by name
    trusted_image: str | None,
    worker_image: str | None,
    kubectl: str,
    count: int,
    turns: int | None,
    skip: tuple[str, ...],
    style: str | None,
) -> None:
    """Measure launches, transfers and the command's own start, each in turn with its alternative.

    It measures against the cluster that the settings name (PODGATE_*, KUBECONFIG). The account needs the launcher's
    rights; with --install those of an administrator. The exit code does not tell whether the goals were met.
    """
    if install and namespace:
        raise click.UsageError("--install makes a namespace of its own: leave --namespace out")
    chosen = place.spare_namespace() if install else namespace
    flags = {"kubeconfig": kubeconfig, "namespace": chosen, "trusted_image": trusted_image}
    try:
        configure(os.environ.get("PODGATE_LOG", "error"))  # stdout is the report's alone
        settings = load_settings(os.environ, flags={name: value for name, value in flags.items() if value})
        image = worker_image or settings.isolation.trusted_image
        words = tuple(_kubectl(kubectl, settings))
        plan = Plan(settings, image, words, count, turns or count, frozenset(skip), install)
        facts, figures = asyncio.run(_until_terminated(measured(plan)))
    except (PodgateError, ClusterError, RuntimeError, TimeoutError, OSError) as error:
        sys.exit(f"benchmarks: {type(error).__name__}: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("benchmarks: interrupted; what was made in the cluster is removed")
    _print(style, facts, figures)


async def measured(plan: Plan) -> tuple[dict[str, str], list[Figure]]:
    """Measure what the plan says; return the facts and the figures."""
    figures: list[Figure] = []
    async with _prepared(plan) as cluster:
        facts = await place.facts(plan.kubectl, plan.settings.isolation)
        if "launches" not in plan.skip:
            figures += await _launches(plan, cluster)
        if "transfers" not in plan.skip:
            figures += await _transfers(plan, cluster)
    if "help" not in plan.skip:
        figures.append(series.of_help(await asyncio.to_thread(_help_seconds, plan.count)))
    return {**facts, "load after": f"{os.getloadavg()[0]:.1f}"}, figures


@asynccontextmanager
async def _prepared(plan: Plan) -> AsyncIterator[AdminPort]:
    async with open_cluster(plan.settings) as raw:
        cluster = RetryingCluster(raw, sleep=asyncio.sleep, monotonic=time.monotonic)
        if not plan.install:
            yield cluster
            return
        async with place.installed(plan.kubectl, plan.settings.isolation):
            yield cluster


async def _launches(plan: Plan, cluster: AdminPort) -> list[Figure]:
    launcher = build_launcher(plan.settings, cluster)
    pairs = []
    async for pair in in_turn(cluster, launcher, plan.settings.isolation, plan.worker_image, plan.count):
        pairs.append(pair)
        _tell(f"launch {len(pairs)} of {plan.count}: bare {pair[0]:.1f} s, proven {pair[1].up:.1f} s")
    return series.of_launches([bare for bare, _ in pairs], [proven for _, proven in pairs])


async def _transfers(plan: Plan, cluster: AdminPort) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="podgate-bench-") as scratch:
        top = Path(scratch)
        large = await asyncio.to_thread(large_file, top / "large", series.LARGE_MIB)
        small = await asyncio.to_thread(small_files, top / "small", series.SMALL_COUNT)
        async with transfer_pod(cluster, plan.settings.isolation) as pod:
            bench = Bench(cluster, plan.settings, pod, plan.kubectl)
            for source, describe in ((large, series.of_large), (small, series.of_small)):
                rates = Rates()
                for turn in range(plan.turns):
                    await bench.turn(source, top, rates)
                    _tell(f"transfer of {source.name}: turn {turn + 1} of {plan.turns}")
                figures += describe(rates)
    return figures


def _help_seconds(count: int) -> list[float]:
    """Start the installed command so often, each time as a new process."""
    command = [*place.command_line(Path(sys.executable)), "--help"]
    samples = []
    for _ in range(count):
        begun = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=HELP_SECONDS)
        samples.append(time.monotonic() - begun)
    return samples


def _kubectl(called: str, settings: Settings) -> list[str]:
    """Return the words that call kubectl: it must speak to the same cluster."""
    words = shlex.split(called)
    if settings.kubeconfig is not None:
        words.append(f"--kubeconfig={settings.kubeconfig}")
    if settings.context is not None:
        words.append(f"--context={settings.context}")
    return words


async def _until_terminated(
    work: Coroutine[Any, Any, tuple[dict[str, str], list[Figure]]],
) -> tuple[dict[str, str], list[Figure]]:
    """Let SIGTERM do what Ctrl-C does: cancel, so that everything is removed on the way out."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _print(style: str | None, facts: dict[str, str], figures: list[Figure]) -> None:
    if style == "json":
        click.echo(json.dumps({"facts": facts, "figures": [each.as_json() for each in figures]}))
    elif style == "markdown":
        click.echo(report.markdown(facts, figures))
    else:
        report.show(facts, figures)


if __name__ == "__main__":
    main()
