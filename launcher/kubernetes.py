"""The launcher over Kubernetes: the contract's methods, each a thin call of its stage."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolation import names
from isolation.spec import JobSpec, SpecInvalid, parse_spec
from launcher.collect import Collector, to_result
from launcher.context import Context
from launcher.contract import JobHandle, JobResult, JobStatus, Materialized
from launcher.errors import PodgateError
from launcher.launch import Launches
from launcher.logs_of_worker import WorkerLog
from launcher.observe import Observer, to_status
from launcher.ownpod import OwnPod
from launcher.preflight import Preflight, PreflightReport
from launcher.progress import Progress
from launcher.reap import Reaper, Report
from launcher.remove import Remover
from launcher.stop import Stopper
from launcher.translate import translated
from launcher.workspace import materialize
from records.codec import Stored
from records.model import Phase, Record

BACKEND = "kubernetes"

WATCH_SECONDS = 1.0
"""Between two looks of ``watch``; a look at a running run is two requests."""


@dataclass(frozen=True)
class Stages:
    """The stages that the launcher calls; the composition root makes them."""

    launches: Launches
    observer: Observer
    collector: Collector
    log: WorkerLog
    stopper: Stopper
    remover: Remover
    reaper: Reaper
    preflight: Preflight


class KubernetesJobLauncher:
    """Implements :class:`launcher.contract.JobLauncher`, and what the command needs besides."""

    def __init__(self, context: Context, stages: Stages) -> None:
        self._context = context
        self._stages = stages

    def planned_handle(self, spec: JobSpec | Mapping[str, Any]) -> JobHandle | None:
        """Compute the handle that ``launch`` would return; None for an invalid spec. No cluster call."""
        try:
            return self.handle_of(_valid(spec).run_id)
        except PodgateError:
            return None

    def handle_of(self, run_id: str) -> JobHandle:
        """Return the handle of a run id, whether or not there is such a run."""
        return JobHandle(BACKEND, f"{self._context.namespace}/{names.token(run_id)}")

    async def launch(
        self,
        spec: JobSpec | Mapping[str, Any],
        progress: Progress | None = None,
        *,
        inputs_bound_to_root: bool = True,
    ) -> JobHandle:
        """Start the run, or find it; see :meth:`launcher.contract.JobLauncher.launch`.

        ``inputs_bound_to_root``: host paths must lie below the workspace root; only a person's own paths need not.
        """
        valid = _valid(spec)
        await self._stages.launches.launch(valid, progress, inputs_bound_to_root=inputs_bound_to_root)
        return self.handle_of(valid.run_id)

    async def status(self, handle: JobHandle) -> JobStatus:
        """Observe the run now. Raises ``job_not_found``, ``job_removed``."""
        with translated("status"):
            seen = await self._stages.observer.look(self._token(handle))
        if seen is None:
            raise _not_found(handle)
        stored, message = seen
        if stored.record.phase is Phase.REMOVED:
            raise PodgateError("job_removed", "The run was removed; its evidence is still there.")
        return to_status(handle, stored.record, message)

    async def watch(self, handle: JobHandle) -> AsyncIterator[JobStatus]:
        """Yield the run's status at each change, the terminal one last."""
        last: JobStatus | None = None
        while last is None or last.state in ("pending", "running"):
            status = await self.status(handle)
            if status != last:
                yield status
            last = status
            if status.state in ("pending", "running"):
                await self._context.sleep(WATCH_SECONDS)

    async def collect(self, handle: JobHandle) -> JobResult:
        """Read the outcome of a terminal run; equal at every call until ``remove``."""
        token = self._token(handle)
        with translated("collect"):
            stored = await self._stages.collector.collect(token)
        return to_result(handle, stored.record)

    async def materialize_workspace(self, handle: JobHandle, destination: Path | None = None) -> Materialized:
        """Bring the workspace back; without ``destination``, to ``<workspace_root>/<runId>/workspace``."""
        stored = await self._stored(handle)
        record = stored.record
        if record.phase is Phase.REMOVED:
            raise PodgateError("job_removed", "The run was removed, and its workspace with it.")
        if not record.phase.terminal:
            raise PodgateError("job_not_terminal", "The run has not ended yet.")
        if record.phase is not Phase.SUCCEEDED:
            raise PodgateError("job_not_succeeded", f"The run is {record.phase}: there is no workspace to bring back.")
        with translated("collect"):
            pod = await OwnPod(self._context.cluster, self._context.namespace, stored).find()
            if pod is None:
                raise PodgateError("collect_failed", "The pod is gone, and the workspace with it.", stage="collect")
            return await materialize(
                self._context.cluster,
                self._context.namespace,
                str(pod["metadata"]["name"]),
                destination or self._home(record),
                disk_mb=record.disk_mb,
                exclude=record.collect_exclude,
                idle_seconds=self._context.settings.bounds.transfer_idle,
                sleep=self._context.sleep,
            )

    def _home(self, record: Record) -> Path:
        root = self._context.settings.workspace_root
        if root is None or record.run_id is None:
            raise PodgateError("setting_invalid", "workspace_root is not set, so there is no place for workspaces.")
        return root / record.run_id / "workspace"

    async def logs(self, handle: JobHandle, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the worker's output, bounded, without loss or doubling across reconnects."""
        with translated("logs"):
            async with aclosing(self._stages.log.read(self._token(handle), follow=follow)) as pieces:
                async for piece in pieces:
                    yield piece

    async def stop(self, handle: JobHandle, reason: str | None = None) -> None:
        """End the run. Idempotent; a handle that is not of this launcher names no run of ours and is left alone."""
        token = self._own_token(handle)
        if token is not None:
            with translated("stop"):
                await self._stages.stopper.stop(token, reason)

    async def remove(self, handle: JobHandle) -> None:
        """Delete what a terminal run left; its evidence stays."""
        token = self._own_token(handle)
        if token is not None:
            with translated("remove"):
                await self._stages.remover.remove(token)

    async def record(self, handle: JobHandle) -> Record:
        """Return the run's record as it is stored, also after ``remove``. Raises ``job_not_found``."""
        return (await self._stored(handle)).record

    async def evidence(self, handle: JobHandle) -> Mapping[str, Any]:
        """Return why the run was allowed to start and how isolated it was; also after ``remove``."""
        record = await self.record(handle)
        return record.evidence.model_dump(mode="json", by_alias=True)

    async def preflight(self, *, force: bool = False) -> PreflightReport:
        """Run the controlled experiment, or find its shared result; a failure is in the report."""
        with translated("preflight"):
            return await self._stages.preflight.run_report(force=force)

    async def reap(self, *, dry_run: bool = False) -> Report:
        """Delete what nobody needs any more. Needs the reaper's rights."""
        with translated("reap"):
            return await self._stages.reaper.reap(dry_run=dry_run)

    async def _stored(self, handle: JobHandle) -> Stored:
        with translated("read"):
            stored = await self._context.store.read(self._token(handle))
        if stored is None:
            raise _not_found(handle)
        return stored

    def _token(self, handle: JobHandle) -> str:
        token = self._own_token(handle)
        if token is None:
            raise _not_found(handle)
        return token

    def _own_token(self, handle: JobHandle) -> str | None:
        namespace, slash, token = handle.id.partition("/")
        ours = handle.backend == BACKEND and slash and namespace == self._context.namespace and names.is_token(token)
        return token if ours else None


def _valid(spec: JobSpec | Mapping[str, Any]) -> JobSpec:
    if isinstance(spec, JobSpec):
        return spec
    try:
        return parse_spec(spec)
    except SpecInvalid as error:
        raise PodgateError("job_spec_invalid", str(error), violations=error.violations) from error


def _not_found(handle: JobHandle) -> PodgateError:
    return PodgateError("job_not_found", f"There is no run {handle.id!r} here.")
