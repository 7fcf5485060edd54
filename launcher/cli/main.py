"""The group ``podgate``. It knows its commands by name and sentence only, so that ``--help`` imports none of them."""

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from launcher.cli import exitcodes, failures
from launcher.cli.program import Program
from launcher.settings_table import OTHER_VARIABLES, SETTINGS


@dataclass(frozen=True)
class Entry:
    """One command: where it lives, and its line in the help."""

    module: str
    help: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Run something": {
        "run": Entry("run", "Run a command in a proven pod: launch, follow, collect, remove."),
    },
    "One run, step by step, from any process": {
        "launch": Entry("lifecycle", "Start a run and return once it was released."),
        "status": Entry("lifecycle", "Say what a run is doing."),
        "watch": Entry("lifecycle", "Print every change until the run has ended."),
        "logs": Entry("lifecycle", "Print the worker's output; -f follows it."),
        "collect": Entry("lifecycle", "Read how a run ended, its result and, with --into, its workspace."),
        "stop": Entry("lifecycle", "End a run."),
        "remove": Entry("lifecycle", "Delete what an ended run left; its evidence stays."),
        "evidence": Entry("evidence", "Say why a run was allowed to start and whether it was isolated to its end."),
    },
    "The cluster": {
        "manifests": Entry("operate", "Print what must stand before the first run, for kubectl apply -f -."),
        "doctor": Entry("operate", "Check rights, versions, policies, the witness and the exact pod."),
        "preflight": Entry("operate", "Try with two canary pods whether policies are enforced here."),
        "reap": Entry("operate", "Delete old tombstones and whatever lost its counterpart."),
        "settings": Entry("operate", "Print every setting, its value and where that came from."),
    },
}

EXAMPLES = """\
podgate manifests --image "$IMAGE" | kubectl apply -f -
podgate doctor && podgate preflight
podgate run --image "$IMAGE" --workspace . --into ./out -- python3 -m unittest
podgate launch job.yaml && podgate watch --run-id my-run"""

_SHOWN = ("trusted_image", "namespace", "witness", "runtime_class", "platform", "workspace_root", "closed_targets")


class Podgate(click.Group):
    """Commands are imported when one of them is run or asked for its help."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's signature
        """Return the names, in the order of the help."""
        return [name for entries in SECTIONS.values() for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 -- click's
        """Import the command of that name."""
        for entries in SECTIONS.values():
            if cmd_name in entries:
                module = importlib.import_module(f"launcher.cli.{entries[cmd_name].module}")
                command: click.Command = getattr(module, cmd_name)
                return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's
        """Write the commands by section, from their sentences alone."""
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in entries.items()], col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 -- click's
        """Write examples, exit codes and environment."""
        with formatter.section("Examples"):
            for line in EXAMPLES.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl(list(exitcodes.MEANINGS.items()))
        with formatter.section("Environment (podgate settings has them all)"):
            formatter.write_dl(
                [(SETTINGS[name].env, SETTINGS[name].meaning) for name in _SHOWN]
                + list(OTHER_VARIABLES.items())
                + [("KUBECONFIG", "As for kubectl; in a pod its own account.")]
            )


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 -- click's signature
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version  # noqa: PLC0415 -- 25 ms that only this option needs

    click.echo(f"podgate {version('podgate')}")
    ctx.exit()


@click.command(cls=Podgate, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def podgate() -> None:
    """Run code nobody trusts as a Kubernetes pod, started only after that pod's isolation has been proven.

    A run is named by its run id, or by its handle NAMESPACE/TOKEN. Every command works from a fresh process: all
    state of a run is in the cluster.
    """


def main(argv: Sequence[str] | None = None, program: Program | None = None) -> int:
    """Run the command line and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result: Any = podgate.main(args, prog_name="podgate", standalone_mode=False, obj=program or Program())
        sys.stdout.flush()
    except click.ClickException as error:
        return _usage(error, as_json="--json" in args[: args.index("--")] if "--" in args else "--json" in args)
    except (click.Abort, KeyboardInterrupt):
        click.echo("podgate: interrupted; what was begun in the cluster goes on", err=True)
        return exitcodes.OWN_FAILURE
    except BrokenPipeError:
        return _nobody_reads()
    return result if isinstance(result, int) else exitcodes.OK


def _usage(error: click.ClickException, *, as_json: bool) -> int:
    if as_json:
        return failures.report(error, as_json=True)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(error.ctx.get_usage(), err=True)
    return failures.report(error, as_json=False)


def _nobody_reads() -> int:
    """Our reader (head, say) went away: be silent, and keep the interpreter from complaining at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exitcodes.OWN_FAILURE
