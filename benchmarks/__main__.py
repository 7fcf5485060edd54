"""``python -m benchmarks``: one run, everything in turn with its alternative, medians and goals."""

import asyncio
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure, figure, ratios
from benchmarks.launches import Launched, in_turn
from benchmarks.memory import reset_peak, resident_mib
from benchmarks.transfers import Bench, Rates, large_file, small_files, transfer_pod
from launcher.app import build_launcher, open_cluster
from launcher.cluster.port import AdminPort
from launcher.cluster.retrying import RetryingCluster
from launcher.progress import STAGES
from launcher.settings import Settings
from launcher.settings_sources import load_settings

LARGE_MIB = 500
SMALL_COUNT = 20_000
WIDTH = 110


@click.command()
@click.option("--count", default=10, show_default=True, help="Launches of each kind, and starts of the command.")
@click.option("--transfers", default=3, show_default=True, help="Turns of each transfer; 0 leaves them out.")
@click.option("--worker-image", help="Image with python3, by digest; the trusted image unless given.")
@click.option("--kubectl", default="kubectl", show_default=True, help="How kubectl is called.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--markdown", is_flag=True, help="A Markdown table, for docs/performance.md.")
def main(count: int, transfers: int, worker_image: str | None, kubectl: str, as_json: bool, markdown: bool) -> None:  # noqa: FBT001 -- click passes flags by name
    """Measure against the cluster that the settings name (PODGATE_*, KUBECONFIG); Podgate must be installed there."""
    settings = load_settings(os.environ)
    image = worker_image or settings.isolation.trusted_image
    facts, figures = asyncio.run(_measured(settings, image, shlex.split(kubectl), count, transfers))
    figures.append(_help_time(count))
    if as_json:
        click.echo(json.dumps({"facts": facts, "figures": [each.as_json() for each in figures]}))
    elif markdown:
        click.echo(_markdown(facts, figures))
    else:
        _table(facts, figures)


async def _measured(
    settings: Settings, image: str, kubectl: list[str], count: int, transfers: int
) -> tuple[dict[str, str], list[Figure]]:
    async with open_cluster(settings) as raw:
        cluster = RetryingCluster(raw, sleep=asyncio.sleep, monotonic=time.monotonic)
        launcher = build_launcher(settings, cluster)
        report = await launcher.preflight()
        if not report.ok:
            sys.exit(f"the preflight failed: {report.code} {report.message}")
        version = await cluster.server_version()
        pairs = [pair async for pair in in_turn(cluster, launcher, settings.isolation.namespace, image, count)]
        figures = _of_launches([one for one, _ in pairs], [two for _, two in pairs])
        if transfers:
            figures += await _transfers(cluster, settings, kubectl, transfers)
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "kubernetes": f"{version[0]}.{version[1]}",
        "load at the end": f"{os.getloadavg()[0]:.1f}",
    }
    return facts, figures


def _of_launches(bare: list[float], proven: list[Launched]) -> list[Figure]:
    stages = [
        figure(f"  … {stage}", "s", [each.stages[stage] for each in proven])
        for stage in STAGES
        if all(stage in each.stages for each in proven)
    ]
    proofs = [each.proof_after_first_good for each in proven if each.proof_after_first_good is not None]
    more = [mine.up - other for mine, other in zip(proven, bare, strict=True)]
    return [
        figure("bare pod: request → its process", "s", bare),
        figure("launch(): call → worker's process", "s", [each.up for each in proven]),
        *stages,
        figure("launch() above the bare pod", "s", more, ("at most", 3.5)),
        figure("proof stands after the first good round", "s", proofs, ("at most", 2.0)),
    ]


async def _transfers(cluster: AdminPort, settings: Settings, kubectl: list[str], count: int) -> list[Figure]:
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        async with transfer_pod(cluster, settings.isolation) as pod:
            bench = Bench(cluster, settings, pod, kubectl)
            reset_peak()
            before = resident_mib("VmRSS")
            large = await bench.rounds(large_file(place / "large", LARGE_MIB), place, count)
            small = await bench.rounds(small_files(place / "small", SMALL_COUNT), place, count)
            figures += _of_transfers(f"1 x {LARGE_MIB} MiB", large, LARGE_MIB, "MiB/s", 1.0)
            figures += _of_transfers(f"{SMALL_COUNT:,} x 1 KiB", small, SMALL_COUNT, "files/s", 0.5)
            figures.append(figure("resident memory above the start, peak", "MiB", [resident_mib("VmHWM") - before]))
    return figures


def _of_transfers(what: str, rates: Rates, amount: float, unit: str, goal: float) -> list[Figure]:
    figures = []
    for verb, ours, theirs in (("seed", rates.seed, rates.seed_tar), ("collect", rates.collect, rates.collect_tar)):
        figures += [
            figure(f"{verb} {what}", unit, [amount / seconds for seconds in ours]),
            figure("  … kubectl exec -i -- tar", unit, [amount / seconds for seconds in theirs]),
            figure("  … ratio", "x", ratios(theirs, ours), ("at least", goal)),
        ]
    return figures


def _help_time(count: int) -> Figure:
    samples = []
    for _ in range(count):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-m", "launcher", "--help"], check=True, stdout=subprocess.DEVNULL)
        samples.append(time.monotonic() - begun)
    return figure("podgate --help", "s", samples, ("at most", 0.25))


def _cells(each: Figure) -> tuple[str, ...]:
    said: dict[str, Any] = each.as_json()
    met = {None: "", True: "met", False: "missed"}[each.met]
    numbers = [f"{said[key]:.2f}" for key in ("median", "min", "max")]
    return (each.name, *numbers, each.unit, str(said["n"]), said["goal"] or "", met)


_HEAD = ("", "median", "min", "max", "", "n", "goal", "")


def _table(facts: dict[str, str], figures: list[Figure]) -> None:
    table = Table(title="; ".join(f"{name} {value}" for name, value in facts.items()))
    for number, name in enumerate(_HEAD):
        table.add_column(name, justify="right" if number in range(1, 4) else "left", no_wrap=True)
    for each in figures:
        table.add_row(*_cells(each))
    console = Console()
    console.width = max(console.width, WIDTH)  # a wrapped table of figures cannot be read
    console.print(table)


def _markdown(facts: dict[str, str], figures: list[Figure]) -> str:
    lines = ["; ".join(f"{name}: {value}" for name, value in facts.items()) + ".", ""]
    lines += ["| " + " | ".join(name or " " for name in _HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(_cells(each)) + " |" for each in figures]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
