"""Look at a run: gather, decide, write the event, and only then act on it. Any replica may, at any time.

A look at a run that goes on costs two requests: its record and its pod. A terminal record costs one.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from isolation import names
from launcher.cluster.errors import ClusterError, Refused
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.cluster.views import EventView, PodView
from launcher.contract import JobHandle, JobStatus, State
from launcher.decide.progress import (
    Finish,
    NeedsEvents,
    NeedsProver,
    Noted,
    Progress,
    Started,
    Unchanged,
    Windows,
    progress,
)
from launcher.decide.prover_report import BYTES, LINES, UNREAD, ProverReport
from launcher.errors import PodgateError
from launcher.ownpod import OwnPod, belongs
from launcher.settings import Settings
from records.codec import Stored
from records.errors import IllegalTransition, RecordMissing
from records.model import Phase, Record
from records.store import RecordStore
from records.transitions import Ended, Event, EvidenceNoted, WorkerStarted

_log = structlog.get_logger()

STEPS = 8
"""Rounds of one look: facts asked for one after another, a start and an end to be written, and records that other
replicas changed meanwhile. A look that needs more leaves the rest to the next."""

LOG_SECONDS = 10.0
"""For reading the prover's log: a fraction of a second when the kubelet answers at all."""

LOG_WANTED_FOR = timedelta(seconds=60)
"""After a worker's end an unreadable log is waited for this long: a kubelet restarts within it. Then the isolation at
the end stays unknown, since a node that is gone must not keep the run from ending."""

EVENTS_KEPT = 200
"""Of a pod's Events, the newest: a healthy course has some fifteen."""

_STATES: dict[Phase, State] = {
    Phase.PROVISIONING: "pending",
    Phase.RELEASING: "pending",
    Phase.ACTIVE: "running",
    Phase.SUCCEEDED: "succeeded",
    Phase.FAILED: "failed",
    Phase.STOPPED: "stopped",
    Phase.LOST: "lost",
}


@dataclass(frozen=True)
class _Facts:
    """What was gathered in this look, for one state of the record."""

    raw: Json | None
    prover: ProverReport | None = None
    events: tuple[EventView, ...] | None = None

    @property
    def pod(self) -> PodView | None:
        return None if self.raw is None else PodView.of(self.raw)


class Observer:
    """Observes runs of one namespace; implements :class:`launcher.observing.Observes`."""

    def __init__(
        self,
        cluster: AdminPort,
        store: RecordStore,
        settings: Settings,
        *,
        namespace: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._namespace = namespace
        self._sleep = sleep
        self._grace_seconds = settings.isolation.stop_grace_seconds
        self._windows = Windows(
            collect=timedelta(seconds=settings.isolation.collect_window_seconds),
            abandoned_after=timedelta(seconds=settings.bounds.abandoned_after),
        )

    async def observe(self, token: str) -> Stored | None:
        """Return the record as it is after looking; None when there is none."""
        seen = await self.look(token)
        return None if seen is None else seen[0]

    async def look(self, token: str) -> tuple[Stored, str | None] | None:
        """Return the record as it is after looking, and what a run that has not ended waits for.

        Raises RecordError and ClusterError; then nothing was written that was not seen. A delete that fails after an
        outcome was written is logged and left to ``stop``, ``remove`` and the reaper: it never hides the outcome.
        """
        stored = await self._store.read(token)
        facts: _Facts | None = None
        message: str | None = None
        for _ in range(STEPS):
            if stored is None or stored.record.phase.terminal:
                break
            facts = facts or await self._gather(stored)
            step = self._decide(stored.record, facts)
            if isinstance(step, Unchanged):
                message = step.message
                break
            if isinstance(step, Noted):
                stored, message = await self._noted(stored, step), step.message
                break
            if isinstance(step, NeedsProver):
                report = await self._report(facts)
                if report is None:
                    message = "the worker has ended; the prover's log cannot be read yet"
                    break
                facts = replace(facts, prover=report)
            elif isinstance(step, NeedsEvents):
                facts = replace(facts, events=await self._events(stored, facts))
            else:
                # Whatever was decided on is what must be there: a record that changed meanwhile is looked at anew.
                stored, written = await self._write(stored, step)
                facts = facts if written else None
        return None if stored is None else (stored, None if stored.record.phase.terminal else message)

    def _decide(self, record: Record, facts: _Facts) -> Progress:
        return progress(
            record, facts.pod, self._cluster.now(), prover=facts.prover, events=facts.events, windows=self._windows
        )

    # --- gather ---

    async def _gather(self, stored: Stored) -> _Facts:
        pod = await self._cluster.get(Kind.POD, self._namespace, names.run_name(stored.record.token))
        return _Facts(pod if pod is not None and belongs(pod, stored) else None)

    async def _report(self, facts: _Facts) -> ProverReport | None:
        """Read the end of the prover's log. None: not readable now, and worth another look."""
        pod = facts.pod
        if pod is None:
            return UNREAD
        try:
            async with asyncio.timeout(LOG_SECONDS):
                return ProverReport.of_log(await self._tail(pod.name, names.PROVER))
        except (ClusterError, TimeoutError) as error:
            _log.info("prover_log_unreadable", pod=pod.name, why=str(error) or "timeout")
            lasting = isinstance(error, ClusterError) and not error.transient
            return UNREAD if lasting or not self._ended_lately(pod) else None

    def _ended_lately(self, pod: PodView) -> bool:
        end = pod.worker.terminated if pod.worker else None
        if end is None or end.finished_at is None:
            return False
        return self._cluster.now() < end.finished_at + LOG_WANTED_FOR

    async def _tail(self, pod: str, container: str) -> bytes:
        async with self._cluster.log(self._namespace, pod, container, tail_lines=LINES) as pieces:
            return await last_bytes(pieces, BYTES)

    async def _events(self, stored: Stored, facts: _Facts) -> tuple[EventView, ...]:
        """Read the pod's Events, oldest first. An account that may not see them sees none; that is logged."""
        uid = facts.pod.uid if facts.pod is not None else stored.record.pod.uid if stored.record.pod else ""
        try:
            found = await self._cluster.list(Kind.EVENT, self._namespace, fields={"involvedObject.uid": uid})
        except Refused as error:
            _log.warning("events_refused", why=str(error))
            return ()
        views = sorted(map(EventView.of, found), key=lambda event: event.last_at.timestamp() if event.last_at else 0.0)
        return tuple(views[-EVENTS_KEPT:])

    # --- apply ---

    async def _write(self, stored: Stored, step: Started | Finish) -> tuple[Stored | None, bool]:
        """Write the event if the record is still the one it was decided on, then act; return the record as it is."""
        event = self._event(step)
        try:
            after = await self._store.update(
                stored.record.token, lambda record: event if record == stored.record else None, known=stored
            )
        except RecordMissing:
            return None, False
        except IllegalTransition as error:
            _log.info("observation_refused", token=stored.record.token, why=str(error))
            return await self._store.read(stored.record.token), False
        written = _says(after.record, step)
        if written and isinstance(step, Finish):
            _log.info("run_ended", token=after.record.token, phase=str(step.phase), reason=step.result.reason)
            if step.delete_pod:
                await self._delete_pod(after)
        return after, written

    async def _noted(self, stored: Stored, step: Noted) -> Stored | None:
        """Add to the evidence of a run that goes on; return the record as it is."""
        event, phase = EvidenceNoted(step.evidence), stored.record.phase
        try:
            return await self._store.update(
                stored.record.token, lambda record: event if record.phase is phase else None, known=stored
            )
        except RecordMissing:
            return None

    def _event(self, step: Started | Finish) -> Event:
        now = self._cluster.now()
        if isinstance(step, Started):
            return WorkerStarted(now, step.started_at, step.deadline_at, step.collect_until, dict(step.image_ids))
        return Ended(step.phase, step.result, at=now, evidence=step.evidence)

    async def _delete_pod(self, stored: Stored) -> None:
        pod = OwnPod(self._cluster, self._namespace, stored)
        try:
            await pod.delete(grace_seconds=self._grace_seconds)
        except ClusterError as error:
            _log.warning("pod_not_deleted", token=stored.record.token, why=str(error))


def _says(record: Record, step: Started | Finish) -> bool:
    """Whether the record holds what was decided: written now, by a try whose answer was lost, or by one who agreed."""
    if isinstance(step, Started):
        return record.phase is Phase.ACTIVE
    return record.phase is step.phase and record.result is not None and record.result.reason == step.result.reason


async def last_bytes(pieces: AsyncIterable[bytes], most: int) -> bytes:
    """Return the last ``most`` bytes of a stream, holding at most one piece more."""
    kept: deque[bytes] = deque()
    size = 0
    async for piece in pieces:
        kept.append(piece)
        size += len(piece)
        while size - len(kept[0]) >= most:
            size -= len(kept.popleft())
    return b"".join(kept)[-most:]


def to_status(handle: JobHandle, record: Record, message: str | None = None) -> JobStatus:
    """Say what a record means to a caller. ``message``: what a run that has not ended waits for."""
    if record.phase is Phase.REMOVED:
        raise PodgateError("job_removed", "The run was removed; its evidence is still there.", stage="status")
    result = record.result
    return JobStatus(
        handle=handle,
        state=_STATES[record.phase],
        phase=str(record.phase),
        reason=result.reason if result is not None else None,
        message=result.message if result is not None else message,
    )
