"""``podgate run``."""

import asyncio
from pathlib import Path
from typing import Any

import click

from launcher.cli import exitcodes, interrupts, output, running, specflags
from launcher.cli.options import RunCommand, common
from launcher.cli.program import Invocation
from launcher.cli.progress import Display, Timings
from launcher.settings import Settings


@click.command(cls=RunCommand)
@specflags.spec_flags
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Put the workspace here as the worker left it."
)
@click.option("--keep", is_flag=True, help="Do not remove the run afterwards.")
@common
def run(call: Invocation, into: Path | None, keep: bool, **given: Any) -> int:  # noqa: FBT001 -- by name
    """Run a command in a pod whose isolation was proven on that pod.

    Launches, follows the worker's output on stdout, collects the result, brings the workspace back (--into) and
    removes the run. SPEC is YAML or JSON, - for stdin; flags win over it. What flags name may lie anywhere; what SPEC
    names must lie in the workspace root.

    Ctrl-C stops the run; a second one leaves it and prints its handle. The exit code is the worker's own, or 124
    timed out, 125 Podgate's failure, 137 out of memory, 143 stopped, 2 wrong usage.
    """
    settings = call.settings()
    wanted = specflags.wanted(call, settings, given)
    try:
        ended, timings = asyncio.run(_run(call, settings, wanted, None if into is None else into.absolute(), keep=keep))
    except interrupts.LetGoError:
        return exitcodes.OWN_FAILURE
    result = ended.result
    if call.json:
        output.as_json(output.result_json(result, ended.workspace) | {"timings": timings.as_json()})
    else:
        _tell(ended, timings, keep=keep)
    return exitcodes.of_run(result.state, result.exit_code, result.reason, result.diagnostic)


async def _run(
    call: Invocation, settings: Settings, wanted: Any, into: Path | None, *, keep: bool
) -> tuple[running.Outcome, Timings]:
    sink = output.worker_sink(as_json=call.json)
    async with call.program.open_launcher(settings) as opened:
        launcher = running.launcher_of(opened)
        handle = running.must_have(opened.planned_handle(wanted.spec))
        plan = running.Plan(wanted.spec, handle, wanted.bound, into, keep)
        timings = Timings()
        with interrupts.Interrupts().installed() as pressed, Display(timings) as display:
            around = running.Surroundings(sink, timings, display, _said_above(display))

            async def stop() -> None:
                display.close()
                await running.stop_for_person(launcher, handle, output.say)

            def leave() -> None:
                output.say(f"left running; its handle is {handle.id} (podgate status, stop, collect, remove)")
                call.program.leave(exitcodes.OWN_FAILURE)

            work = running.run_to_end(launcher, plan, around)
            return await interrupts.supervised(work, pressed, first=stop, second=leave), timings


def _said_above(display: Display) -> Any:
    def say(text: str) -> None:
        display.close()
        output.say(text)

    return say


def _tell(ended: running.Outcome, timings: Timings, *, keep: bool) -> None:
    """Say on stderr how it ended: stdout holds the worker's output and nothing else."""
    lines = output.result_lines(ended.result, ended.workspace)
    click.echo("\n".join([f"podgate: {lines[0]} after {timings.elapsed():.1f} s", *lines[1:]]), err=True)
    if keep:
        click.echo(f"  kept: {ended.result.handle.id}", err=True)
