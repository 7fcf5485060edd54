"""Collect: how a terminal run ended, and what it left. Equal at every call until ``remove``.

What a worker left and how it is broken are values: the run stays ``succeeded``, ``artifacts`` is ``invalid`` (or
``absent``) and ``diagnostic`` is one of ``result_invalid``, ``result_too_large``, ``result_run_mismatch`` and
``result_missing``. That we could not read it is an error, ``collect_failed``: nothing is stored, the next call tries
again. A failed worker's own word is an extra: where its log cannot be read, the outcome is told without.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import structlog

from isolation import names
from launcher.cluster.errors import ClusterError, NotFound, Refused
from launcher.cluster.port import ClusterPort
from launcher.cluster.views import PodView
from launcher.contract import JobHandle, JobResult
from launcher.decide.diagnostics import (
    BYTES,
    LINES,
    RESULT_BYTES,
    Judged,
    absent,
    diagnostic_of,
    judge_result,
    too_large,
    unreadable,
)
from launcher.errors import PodgateError
from launcher.observe import last_bytes, to_status
from launcher.observing import Observes
from launcher.ownpod import OwnPod
from launcher.settings import Settings
from launcher.transfer.download import ResultRead, read_result
from records.codec import Stored
from records.errors import RecordMissing
from records.model import Phase, Record, Result
from records.store import RecordStore
from records.transitions import Event, ResultFilled

_log = structlog.get_logger()

STAGE = "collect"

LOG_SECONDS = 30.0
"""For the last lines of a worker's log, all tries together."""

LOG_TRIES = 3
"""Of reading them: a connection may break once, and once more while its node comes back."""

LOG_PAUSE_SECONDS = 1.0
"""Before the next of them."""


class ReadsResult(Protocol):
    """Reads ``output/result.json`` out of a keeper; raises ``result_invalid``, ``collect_failed``."""

    async def __call__(
        self,
        cluster: ClusterPort,
        namespace: str,
        pod: str,
        max_bytes: int,
        *,
        idle_seconds: float,
        sleep: Callable[[float], Awaitable[None]],
    ) -> ResultRead:
        """Return what is there, whole."""


class Collector:
    """Collects runs of one namespace."""

    def __init__(
        self,
        cluster: ClusterPort,
        store: RecordStore,
        observer: Observes,
        settings: Settings,
        *,
        namespace: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        reads: ReadsResult = read_result,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._observer = observer
        self._namespace = namespace
        self._sleep = sleep
        self._reads = reads
        self._idle_seconds = settings.bounds.transfer_idle

    async def collect(self, token: str) -> Stored:
        """Return the record of a terminal run with its result filled in.

        Raises ``job_not_found``, ``job_removed``, ``job_not_terminal``, ``collect_failed`` (nothing stored, try again),
        and RecordError and ClusterError.
        """
        stored = await self._terminal(token)
        result = stored.record.result
        # What was collected once is the answer for ever.
        if result is None or result.artifacts != "unknown":
            return stored
        filled = await self._filled(stored, result)

        def decide(record: Record) -> Event | None:
            # Another replica may have been quicker; then its answer is everybody's.
            fresh = record.phase is stored.record.phase and record.result == result
            return ResultFilled(filled) if fresh else None

        try:
            after = await self._store.update(token, decide, known=stored)
        except RecordMissing:
            raise _not_found(token) from None
        return _not_removed(after)

    async def _terminal(self, token: str) -> Stored:
        stored = await self._observer.observe(token)
        if stored is None:
            raise _not_found(token)
        if not _not_removed(stored).record.phase.terminal:
            raise PodgateError("job_not_terminal", f"the run is {stored.record.phase}", stage=STAGE)
        return stored

    async def _filled(self, stored: Stored, result: Result) -> Result:
        if stored.record.phase is Phase.SUCCEEDED:
            return await self._of_success(stored, result)
        if stored.record.phase is Phase.FAILED:
            return await self._of_failure(stored, result)
        # Nobody asks a stopped worker why, and a lost one is not to blame.
        return result.model_copy(update={"artifacts": "absent" if stored.record.phase is Phase.STOPPED else "expired"})

    # --- success: the result file ---

    async def _of_success(self, stored: Stored, result: Result) -> Result:
        pod = await self._keeper_of(stored)
        if pod is None:
            return result.model_copy(update={"artifacts": "expired"})
        try:
            judged = await self._read(stored.record, pod)
        except PodgateError:
            # The files may have gone while they were read; that they are gone is an answer, and a lasting one.
            if await self._keeper_of(stored) is not None:
                raise
            return result.model_copy(update={"artifacts": "expired"})
        return result.model_copy(
            update={
                "artifacts": judged.artifacts,
                "result_artifact": judged.artifact,
                "diagnostic": judged.problem,
            }
        )

    async def _read(self, record: Record, pod: str) -> Judged:
        try:
            found = await self._reads(
                self._cluster,
                self._namespace,
                pod,
                RESULT_BYTES,
                idle_seconds=self._idle_seconds,
                sleep=self._sleep,
            )
        except PodgateError as error:
            if error.code == "result_invalid":
                return unreadable()
            raise
        except NotFound as error:
            raise PodgateError("collect_failed", f"the pod went while it was read: {error}", stage=STAGE) from error
        if not found.present:
            return absent(required=record.require_result)
        return too_large() if found.content is None else judge_result(found.content, record.run_id)

    async def _keeper_of(self, stored: Stored) -> str | None:
        """Return the name of the run's pod while its keeper lives; None when nothing can be read from it any more."""
        raw = await OwnPod(self._cluster, self._namespace, stored).find()
        if raw is None:
            return None
        pod = PodView.of(raw)
        over = pod.phase in ("Failed", "Succeeded") or (pod.keeper is not None and pod.keeper.terminated is not None)
        return None if over else pod.name

    # --- failure: the worker's own word ---

    async def _of_failure(self, stored: Stored, result: Result) -> Result:
        pod = await OwnPod(self._cluster, self._namespace, stored).find()
        log = None if pod is None else await self._last_lines(str(pod["metadata"]["name"]))
        if log is None:
            return result.model_copy(update={"artifacts": "expired"})
        return result.model_copy(update={"artifacts": "absent", "diagnostic": diagnostic_of(log)})

    async def _last_lines(self, pod: str) -> bytes | None:
        """Read the end of the worker's log, empty when it cannot be read; None when its pod is gone."""
        try:
            async with asyncio.timeout(LOG_SECONDS):
                return await self._tried(pod)
        except (ClusterError, TimeoutError) as error:
            _log.warning("diagnostic_unread", pod=pod, why=str(error) or "no answer in time")
            return b""

    async def _tried(self, pod: str) -> bytes | None:
        for _ in range(LOG_TRIES - 1):
            try:
                return await self._tail(pod)
            except ClusterError as error:
                if not error.transient:
                    raise
            await self._sleep(LOG_PAUSE_SECONDS)
        return await self._tail(pod)

    async def _tail(self, pod: str) -> bytes | None:
        try:
            async with self._cluster.log(self._namespace, pod, names.WORKER, tail_lines=LINES) as pieces:
                return await last_bytes(pieces, BYTES)
        except NotFound:
            return None
        except Refused as error:
            if error.status != 400:  # noqa: PLR2004  # the worker never started: it has no log
                raise
            return b""


def to_result(handle: JobHandle, record: Record) -> JobResult:
    """Say what a terminal record means to a caller. Raises ``job_not_terminal``, ``job_removed``."""
    status = to_status(handle, record)
    result = record.result
    if result is None:
        raise PodgateError("job_not_terminal", f"the run is {record.phase}", stage=STAGE)
    evidence: dict[str, Any] = record.evidence.model_dump(mode="json", by_alias=True)
    return JobResult(
        handle=handle,
        state=status.state,
        exit_code=result.exit_code,
        reason=result.reason,
        diagnostic=result.diagnostic,
        message=result.message,
        retriable=result.retriable,
        result=result.result_artifact,
        artifacts=result.artifacts,
        evidence=evidence,
    )


def _not_found(token: str) -> PodgateError:
    return PodgateError("job_not_found", f"no run has the token {token}", stage=STAGE)


def _not_removed(stored: Stored) -> Stored:
    if stored.record.phase is Phase.REMOVED:
        raise PodgateError("job_removed", "The run was removed; its evidence is still there.", stage=STAGE)
    return stored
