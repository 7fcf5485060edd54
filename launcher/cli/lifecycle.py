"""One run, step by step: launch, status, watch, logs, collect, stop, remove. Each works from a fresh process."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from launcher.cli import exitcodes, handles, output, specflags
from launcher.cli.options import Command, RunCommand, common
from launcher.cli.program import Invocation
from launcher.cli.progress import Display, Timings
from launcher.contract import JobHandle, JobResult, JobStatus, Materialized
from launcher.errors import PodgateError

T = TypeVar("T")


def by_handle(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the two ways to name a run."""
    function = click.option("--run-id", metavar="ID", help="The run id it was launched under, instead of the handle.")(
        function
    )
    return click.argument("handle", required=False, metavar="[NAMESPACE/TOKEN]")(function)


def with_launcher(
    call: Invocation, handle: str | None, run_id: str | None, use: Callable[[Any, JobHandle], Awaitable[T]]
) -> T:
    """Open a launcher in the run's namespace and use it. Raises PodgateError: ``usage_invalid`` for no name."""
    named = handles.named(handle, run_id, namespace=call.flags.get("namespace"))
    settings = call.settings(**({"namespace": named.namespace} if named.namespace else {}))

    async def opened() -> T:
        async with call.program.open_launcher(settings) as launcher:
            return await use(launcher, named.handle(settings.isolation.namespace))

    return asyncio.run(opened())


@click.command(cls=RunCommand)
@specflags.spec_flags
@common
def launch(call: Invocation, **given: Any) -> int:
    """Start a run and return once its worker was released.

    Prints the handle. Launching the same spec again returns the same handle and starts nothing. SPEC is YAML or JSON,
    - for stdin; flags win over it.
    """
    settings = call.settings()
    wanted = specflags.wanted(call, settings, given)

    async def launched(display: Display, timings: Timings) -> JobHandle:
        async with call.program.open_launcher(settings) as launcher:
            with display:
                handle: JobHandle = await launcher.launch(wanted.spec, timings.note, inputs_bound_to_root=wanted.bound)
        return handle

    timings = Timings()
    try:
        handle = asyncio.run(launched(Display(timings), timings))
    except KeyboardInterrupt:
        raise PodgateError("launch_cancelled", "Interrupted; the launch was cancelled and is cleaned up.") from None
    if call.json:
        output.as_json({"handle": handle.id, "runId": wanted.spec.run_id, "timings": timings.as_json()})
    else:
        click.echo(handle.id)
    return exitcodes.OK


@click.command(cls=Command)
@by_handle
@common
def status(call: Invocation, handle: str | None, run_id: str | None) -> int:
    """Say what a run is doing: pending, running, succeeded, failed, stopped or lost, and why."""

    async def ask(launcher: Any, job: JobHandle) -> JobStatus:
        seen: JobStatus = await launcher.status(job)
        return seen

    seen = with_launcher(call, handle, run_id, ask)
    output.as_json(output.status_json(seen)) if call.json else click.echo(output.status_line(seen))
    return exitcodes.OK


@click.command(cls=Command)
@by_handle
@common
def watch(call: Invocation, handle: str | None, run_id: str | None) -> int:
    """Print every change until the run has ended; exit like run.

    With --json, one object on stdout at the end.
    """

    async def follow(launcher: Any, job: JobHandle) -> tuple[JobStatus, Any]:
        last: JobStatus | None = None
        async for seen in launcher.watch(job):
            if not call.json and seen != last:
                click.echo(output.status_line(seen))
            last = seen
        return last or await launcher.status(job), (await launcher.record(job)).result

    seen, result = with_launcher(call, handle, run_id, follow)
    if call.json:
        output.as_json(output.status_json(seen) | {"exitCode": result.exit_code if result else None})
    if result is None:
        return exitcodes.OWN_FAILURE
    return exitcodes.of_run(seen.state, result.exit_code, result.reason, result.diagnostic)


@click.command(cls=Command)
@by_handle
@click.option("-f", "--follow", is_flag=True, help="Go on until the worker has ended.")
@common
def logs(call: Invocation, handle: str | None, run_id: str | None, follow: bool) -> int:  # noqa: FBT001 -- by name
    """Print the worker's output on stdout, byte for byte; with --json on stderr."""
    sink = output.worker_sink(as_json=call.json)

    async def copy(launcher: Any, job: JobHandle) -> tuple[JobHandle, int]:
        count = 0
        async for chunk in launcher.logs(job, follow=follow):
            await sink.write(chunk)
            count += len(chunk)
            if sink.broken:
                break
        return job, count

    job, count = with_launcher(call, handle, run_id, copy)
    if call.json:
        output.as_json({"handle": job.id, "bytes": count})
    return exitcodes.OK


@click.command(cls=Command)
@by_handle
@click.option(
    "--into", type=click.Path(path_type=Path), metavar="DIR", help="Put the workspace here as the worker left it."
)
@common
def collect(call: Invocation, handle: str | None, run_id: str | None, into: Path | None) -> int:
    """Read how a run ended and its result; with --into bring the workspace back. Exit like run.

    Repeatable until the run is removed.
    """
    there = None if into is None else into.absolute()

    async def fetch(launcher: Any, job: JobHandle) -> tuple[JobResult, Materialized | None]:
        result: JobResult = await launcher.collect(job)
        if there is None or result.state != "succeeded":
            return result, None
        return result, await launcher.materialize_workspace(job, there)

    result, workspace = with_launcher(call, handle, run_id, fetch)
    if call.json:
        output.as_json(output.result_json(result, workspace))
    else:
        click.echo("\n".join(output.result_lines(result, workspace)))
        output.document(result.result)
    return exitcodes.of_run(result.state, result.exit_code, result.reason, result.diagnostic)


@click.command(cls=Command)
@by_handle
@click.option("--reason", metavar="TEXT", help="Kept in the record.")
@common
def stop(call: Invocation, handle: str | None, run_id: str | None, reason: str | None) -> int:
    """End a run. Stopping twice, or what has ended, changes nothing.

    A run id that was never launched is marked as stopped, so that a launch that comes later starts nothing.
    """

    async def end(launcher: Any, job: JobHandle) -> JobStatus:
        await launcher.stop(job, reason)
        seen: JobStatus = await launcher.status(job)
        return seen

    seen = with_launcher(call, handle, run_id, end)
    output.as_json(output.status_json(seen)) if call.json else click.echo(output.status_line(seen))
    return exitcodes.OK


@click.command(cls=Command)
@by_handle
@common
def remove(call: Invocation, handle: str | None, run_id: str | None) -> int:
    """Delete what an ended run left: pod, policy, Secret. Its evidence stays.

    When the pod is not confirmed gone, its policy is kept; call again.
    """

    async def delete(launcher: Any, job: JobHandle) -> JobHandle:
        await launcher.remove(job)
        return job

    job = with_launcher(call, handle, run_id, delete)
    output.as_json({"handle": job.id, "phase": "removed"}) if call.json else click.echo(f"{job.id} removed")
    return exitcodes.OK
