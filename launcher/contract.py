"""The contract between executors and a launcher: values and the protocol. Nothing here knows Kubernetes."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from isolation.spec import JobSpec

State = Literal["pending", "running", "succeeded", "failed", "stopped", "lost"]


@dataclass(frozen=True)
class JobHandle:
    """Names a run for ever. ``id`` is ``<namespace>/<token>`` and is known before any cluster call."""

    backend: str
    id: str


@dataclass(frozen=True)
class JobStatus:
    """What a run is doing.

    ``phase`` is the record's own word; ``reason`` is set for terminal states; ``message`` says what a pending run waits
    for, or how it ended.
    """

    handle: JobHandle
    state: State
    phase: str
    reason: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class JobResult:
    """How a run ended, and what it left. Equal at every call until ``remove``.

    ``exit_code``: 0 succeeded, 124 timed out, 137 out of memory, 143 stopped, 1 lost, otherwise the worker's own.
    ``result``: the worker's ``output/result.json`` (at most 64 KiB), or None when it left none.
    ``artifacts``: ``collected``, ``absent`` (none was written), ``expired`` (the pod was gone), ``invalid``.
    ``evidence``: why the run was allowed to start and whether it was isolated to its end.
    """

    handle: JobHandle
    state: State
    exit_code: int
    reason: str
    diagnostic: str | None = None
    message: str | None = None
    retriable: bool = False
    result: Mapping[str, Any] | None = None
    artifacts: str = "unknown"
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Materialized:
    """What materialising brought: where it is, the archive's entries and bytes, and directories that were dropped."""

    path: Path
    entries: int
    bytes: int
    sha256: str
    excluded: tuple[str, ...] = ()


class JobLauncher(Protocol):
    """Any replica may call any method at any moment, given only the handle (launch also needs the spec).

    Every method raises :class:`launcher.errors.PodgateError` with a stable ``code``.
    """

    def planned_handle(self, spec: JobSpec | Mapping[str, Any]) -> JobHandle | None:
        """Compute the handle that ``launch`` would return; None for an invalid spec. No cluster call."""

    async def launch(self, spec: JobSpec | Mapping[str, Any]) -> JobHandle:
        """Start the run, or find it. Returns once the worker was started, or the run is over or in other hands.

        Idempotent for the same spec; ``job_spec_conflict`` for another spec under the same run id.
        """

    async def status(self, handle: JobHandle) -> JobStatus:
        """Observe the run now. Raises ``job_not_found``, ``job_removed``."""

    async def collect(self, handle: JobHandle) -> JobResult:
        """Read the outcome of a terminal run; repeatable until ``remove``. Raises ``job_not_terminal``."""

    async def materialize_workspace(self, handle: JobHandle, destination: Path | None = None) -> Materialized:
        """Replace ``<workspace_root>/<runId>/workspace``, or ``destination``, by the worker's workspace, atomically.

        Raises ``job_not_succeeded``, ``extract_*``, ``collect_failed``; then the destination is what it was.
        """

    def logs(self, handle: JobHandle, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the worker's output, bounded, without loss or doubling across reconnects."""

    async def stop(self, handle: JobHandle, reason: str | None = None) -> None:
        """End the run. Idempotent; for an unknown handle a tombstone is left, so that a later launch starts nothing."""

    async def remove(self, handle: JobHandle) -> None:
        """Delete what a terminal run left; evidence stays. Raises ``job_not_terminal``, ``pod_not_confirmed_gone``."""

    async def evidence(self, handle: JobHandle) -> Mapping[str, Any]:
        """Everything the record holds about why the run started and how isolated it was; also after ``remove``."""
