"""``podgate run`` as a course of steps over any launcher: launch, follow, collect, bring back, remove."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from isolation.spec import JobSpec
from launcher.cli.output import Sink
from launcher.cli.progress import Display, Timings
from launcher.contract import JobHandle, JobResult, JobStatus, Materialized
from launcher.errors import PodgateError
from launcher.progress import Progress

LAST_OUTPUT_SECONDS = 30.0
"""How long the last output may take to arrive after the run was seen to be over; nodes flush logs within a second."""

_NOT_OURS = frozenset({"job_spec_conflict", "job_spec_invalid", "job_removed", "foreign_object"})
"""Failures of a launch after which the run of that handle is not the one that was asked for, or is gone: hands off."""

_HARMLESS = frozenset({"job_not_found", "job_not_terminal", "job_removed"})
"""Failures of the removal that follows a failed launch which only say that there is nothing to remove."""

_log = structlog.get_logger()


class RunLauncher(Protocol):
    """What running needs of a launcher."""

    async def launch(
        self, spec: JobSpec, progress: Progress | None = None, *, inputs_bound_to_root: bool = True
    ) -> JobHandle:
        """Start the run."""

    def watch(self, handle: JobHandle) -> AsyncIterator[JobStatus]:
        """Yield the run's status at each change, the terminal one last."""

    def logs(self, handle: JobHandle, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the worker's output."""

    async def collect(self, handle: JobHandle) -> JobResult:
        """Read the outcome."""

    async def materialize_workspace(self, handle: JobHandle, destination: Path | None = None) -> Materialized:
        """Bring the workspace back."""

    async def stop(self, handle: JobHandle, reason: str | None = None) -> None:
        """End the run."""

    async def remove(self, handle: JobHandle) -> None:
        """Delete what the run left."""


@dataclass(frozen=True)
class Plan:
    """What the person asked for."""

    spec: JobSpec
    handle: JobHandle
    bound: bool
    into: Path | None = None
    keep: bool = False


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    result: JobResult
    workspace: Materialized | None


@dataclass(frozen=True)
class Surroundings:
    """Where the output goes, what is shown, and how the person is told something."""

    sink: Sink
    timings: Timings
    display: Display
    say: Callable[[str], None]


async def run_to_end(launcher: RunLauncher, plan: Plan, around: Surroundings) -> Outcome:
    """Run the plan. Raises PodgateError when the launch failed or the outcome could not be brought back.

    After a failure to bring something back the run is kept, so that it can be tried again by its handle.
    """
    await _launch(launcher, plan, around)
    await _follow(launcher, plan.handle, around)
    try:
        outcome = await _bring_back(launcher, plan)
    except PodgateError:
        around.say(f"the run is kept, so that podgate collect {plan.handle.id} can be tried again")
        raise
    if not plan.keep:
        await _remove(launcher, plan.handle, around, quietly=frozenset())
    return outcome


async def _launch(launcher: RunLauncher, plan: Plan, around: Surroundings) -> None:
    try:
        await launcher.launch(plan.spec, around.timings.note, inputs_bound_to_root=plan.bound)
    except PodgateError as error:
        if error.code == "launch_superseded":  # a stop, or another replica, has the run: see how it ends
            return
        around.display.close()
        if error.code not in _NOT_OURS and not plan.keep:
            await _remove(launcher, plan.handle, around, quietly=_HARMLESS)
        raise


async def _follow(launcher: RunLauncher, handle: JobHandle, around: Surroundings) -> None:
    """Pass the output on until the run is over, and for a bounded time after that."""
    output = asyncio.ensure_future(_pass_output(launcher, handle, around))
    try:
        async for status in launcher.watch(handle):
            _notice(status, around)
        around.timings.reached("ended")
        await asyncio.wait({output}, timeout=LAST_OUTPUT_SECONDS)
        if not output.done():
            around.say("the worker's last output did not arrive in time and may be missing")
    finally:
        output.cancel()
        await asyncio.gather(output, return_exceptions=True)
        around.display.close()


def _notice(status: JobStatus, around: Surroundings) -> None:
    around.display.waiting = status.message or status.state
    if status.state == "running":
        around.timings.reached("started")
        around.display.close()


async def _pass_output(launcher: RunLauncher, handle: JobHandle, around: Surroundings) -> None:
    """Losing the output is said, and ends nothing: the run's outcome does not hang on it."""
    try:
        async for chunk in launcher.logs(handle, follow=True):
            around.timings.reached("started")
            around.display.close()
            await around.sink.write(chunk)
    except PodgateError as error:
        _log.info("output_lost", code=error.code)
        around.say(f"the worker's output is incomplete: {error.message}")


async def _bring_back(launcher: RunLauncher, plan: Plan) -> Outcome:
    result = await launcher.collect(plan.handle)
    workspace = None
    if plan.into is not None and result.state == "succeeded":
        workspace = await launcher.materialize_workspace(plan.handle, plan.into)
    return Outcome(result, workspace)


async def _remove(launcher: RunLauncher, handle: JobHandle, around: Surroundings, *, quietly: frozenset[str]) -> None:
    try:
        await launcher.remove(handle)
    except PodgateError as error:
        if error.code not in quietly:
            around.say(
                f"the run could not be removed ({error.code}: {error.message}); podgate remove {handle.id} tries again"
            )


async def stop_for_person(launcher: RunLauncher, handle: JobHandle, say: Callable[[str], None]) -> None:
    """The first Ctrl-C."""
    say("stopping the run; press Ctrl-C again to leave it and get your terminal back")
    try:
        await launcher.stop(handle, "interrupted at the terminal")
    except PodgateError as error:
        say(f"it could not be stopped ({error.code}: {error.message}); still waiting for its end")


def must_have(handle: JobHandle | None) -> JobHandle:
    """Return the planned handle; a spec that was parsed has one."""
    if handle is None:
        raise PodgateError("job_spec_invalid", "The spec is not valid; nothing was created.", stage="spec")
    return handle


def launcher_of(value: Any) -> RunLauncher:
    """Say what the composition root's launcher is to this module."""
    launcher: RunLauncher = value
    return launcher
