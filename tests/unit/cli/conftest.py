"""The command over a launcher that follows a script; the contract suite runs the real one over a cluster."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from isolation import names
from isolation.spec import JobSpec
from launcher.cli.main import main
from launcher.cli.program import Program
from launcher.contract import JobHandle, JobResult, JobStatus, Materialized
from launcher.progress import ProgressEvent
from launcher.settings import Settings
from records.model import Phase, Record, Result

IMAGE = "registry.example/python@sha256:" + "a" * 64
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STAGES = ("created", "gate", "proven", "seeded", "released")


@dataclass
class Scripted:
    """What the launcher will say, and what it was asked."""

    output: tuple[bytes, ...] = (b"hello\n",)
    state: str = "succeeded"
    exit_code: int = 0
    reason: str = "completed"
    diagnostic: str | None = None
    result: dict[str, Any] | None = None
    launch_error: Exception | None = None
    errors: dict[str, Exception] = field(default_factory=dict)
    before_end: Callable[[], None] = lambda: None
    runs_until_stopped: bool = False
    calls: list[str] = field(default_factory=list)
    specs: list[JobSpec] = field(default_factory=list)
    bound: list[bool] = field(default_factory=list)
    settings: Settings | None = None
    handle: JobHandle | None = None
    reports: dict[str, Any] = field(default_factory=dict)

    @contextlib.asynccontextmanager
    async def open(self, settings: Settings) -> AsyncIterator["Scripted"]:
        self.settings = settings
        self.stopped = asyncio.Event()
        yield self

    def _asked(self, call: str) -> None:
        self.calls.append(call)
        if call in self.errors:
            raise self.errors[call]

    def planned_handle(self, spec: JobSpec) -> JobHandle:
        assert self.settings is not None
        return JobHandle("kubernetes", f"{self.settings.isolation.namespace}/{names.token(spec.run_id)}")

    async def launch(self, spec: JobSpec, progress: Any = None, *, inputs_bound_to_root: bool = True) -> JobHandle:
        self.specs.append(spec)
        self.bound.append(inputs_bound_to_root)
        self._asked("launch")
        for at, stage in enumerate(STAGES):
            progress(ProgressEvent(stage, at / 10))
        return self.planned_handle(spec)

    async def watch(self, handle: JobHandle) -> AsyncIterator[JobStatus]:
        self._asked("watch")
        yield JobStatus(handle, "running", "active")
        self.before_end()
        if self.runs_until_stopped:
            await self.stopped.wait()
        yield await self.status(handle)

    async def status(self, handle: JobHandle) -> JobStatus:
        self.handle = handle
        self._asked("status")
        return JobStatus(handle, self.state, self.state, self.reason)

    async def logs(self, handle: JobHandle, *, follow: bool = False) -> AsyncIterator[bytes]:
        self.handle = handle
        self._asked("logs")
        for chunk in self.output:
            yield chunk

    async def collect(self, handle: JobHandle) -> JobResult:
        self._asked("collect")
        return JobResult(
            handle, self.state, self.exit_code, self.reason, self.diagnostic, result=self.result, artifacts="collected"
        )

    async def materialize_workspace(self, handle: JobHandle, destination: Path | None = None) -> Materialized:
        self._asked("materialize")
        assert destination is not None
        return Materialized(destination, 3, 4096, "b" * 64, ("node_modules",))

    async def stop(self, handle: JobHandle, reason: str | None = None) -> None:
        self._asked("stop")
        self.state, self.exit_code, self.reason = "stopped", 143, "stopped"
        self.stopped.set()

    async def remove(self, handle: JobHandle) -> None:
        self._asked("remove")

    async def record(self, handle: JobHandle) -> Record:
        self._asked("record")
        return record_of(self, handle)

    async def evidence(self, handle: JobHandle) -> dict[str, Any]:
        self._asked("evidence")
        return {"runId": "r", "evidence": {}}

    async def preflight(self, *, force: bool) -> dict[str, Any]:
        self._asked(f"preflight force={force}")
        return self.reports["preflight"]

    async def reap(self, *, dry_run: bool) -> dict[str, Any]:
        self._asked(f"reap dry_run={dry_run}")
        return self.reports["reap"]


def record_of(script: Scripted, handle: JobHandle) -> Record:
    return Record(
        token=handle.id.partition("/")[2],
        run_id="r",
        spec_hash="c" * 64,
        phase=Phase(script.state),
        created_at=AT,
        provision_by=AT,
        disk_mb=64,
        timeout_seconds=60,
        result=Result(exit_code=script.exit_code, reason=script.reason),
    )


@dataclass(frozen=True)
class Answer:
    code: int
    out: bytes
    err: str


class LeftError(BaseException):
    """Stands for the process's end."""


@pytest.fixture
def script() -> Scripted:
    return Scripted()


@pytest.fixture
def podgate(script, capfdbinary):
    """Run a command line over the script and return its exit code and what it printed."""

    def leave(code: int):
        raise LeftError(code)

    def call(*argv: str, environ: dict[str, str] | None = None, program: Program | None = None) -> Answer:
        surroundings = program or Program(
            {"PODGATE_TRUSTED_IMAGE": IMAGE, **(environ or {})}, open_launcher=script.open, leave=leave
        )
        try:
            code = main(list(argv), surroundings)
        except LeftError as left:
            code = left.args[0]
        out, err = capfdbinary.readouterr()
        return Answer(code, out, err.decode())

    return call
