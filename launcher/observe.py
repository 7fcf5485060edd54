"""Observe: look at a run, write down what is to be seen, then act on it. Any replica, any time, from the token alone.

A running run costs two requests: its record and its pod. The prover's log and the pod's Events are read only when a
decision asks for them. What is written comes first; an action that fails after it never hides the outcome, and the
kubelet, ``remove`` and the reaper finish what it began.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import structlog

from isolation import names
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import AdminPort, Kind
from launcher.cluster.views import EventView, PodView
from launcher.contract import JobHandle, JobStatus, State
from launcher.decide.progress import (
    Finish,
    NeedsEvents,
    NeedsProver,
    Progress,
    Started,
    Unchanged,
    Windows,
    progress,
)
from launcher.decide.prover_report import BYTES, LINES, UNREAD, ProverReport
from launcher.errors import PodgateError
from launcher.ownpod import OwnPod
from launcher.settings import Settings
from records.codec import Stored
from records.errors import RecordMissing
from records.model import Phase, Record
from records.store import RecordStore
from records.transitions import Ended, Event, WorkerStarted

_log = structlog.get_logger()

LOOKS = 6
"""How often one call looks again after a write, its own or another's. Two are needed (started, ended); lease renewals
come every ten seconds, so more than a few in a row is a loop."""

LOG_BYTES = 4 * BYTES
"""Read at most of the last lines of the prover's log. The server cuts at the end, where the newest lines are, so the
limit is well above what our prover writes in so many lines."""

LOG_SECONDS = 20.0
"""For reading it: a kubelet that hangs must not hold up ``status`` for longer."""

LOG_TRIES = 3
LOG_PAUSE = 0.5


class Observer:
    """Observes the runs of one namespace. Implements :class:`launcher.observing.Observes`."""

    def __init__(
        self,
        cluster: AdminPort,
        store: RecordStore,
        settings: Settings,
        *,
        namespace: str,
        sleep: Callable[[float], Awaitable[None]],
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

    async def observe(self, token: str, *, known: Stored | None = None) -> Stored | None:
        """Return the record as it is after looking; None when there is none. A terminal record is not looked at.

        ``known``, read a moment ago, saves a request. Raises RecordError and ClusterError; then nothing is decided.
        """
        seen = await self.look(token, known=known)
        return None if seen is None else seen[0]

    async def look(self, token: str, *, known: Stored | None = None) -> tuple[Stored, str | None] | None:
        """Do the same, and say besides what a run that has not ended waits for, when it waits."""
        stored = known or await self._store.read(token)
        for _ in range(LOOKS):
            if stored is None:
                return None
            if stored.record.phase.terminal:
                return stored, None
            step = await self._decided(stored)
            if isinstance(step, Unchanged):
                return stored, step.message
            stored = await self._written(stored, step)
        return None if stored is None else (stored, None)

    async def _decided(self, stored: Stored) -> Started | Finish | Unchanged:
        """Gather what the decision asks for, and decide."""
        raw = await OwnPod(self._cluster, self._namespace, stored).find()
        pod = None if raw is None else PodView.of(raw)
        facts = _Facts()
        while True:
            step = self._progress(stored.record, pod, facts)
            if isinstance(step, NeedsProver) and facts.prover is None:
                facts.prover = await self._prover(stored.record)
            elif isinstance(step, NeedsEvents) and facts.events is None:
                facts.events = await self._events(stored.record, pod)
            elif isinstance(step, NeedsProver | NeedsEvents):
                raise RuntimeError("a decision asked twice for the same facts")
            else:
                return step

    def _progress(self, record: Record, pod: PodView | None, facts: "_Facts") -> Progress:
        return progress(
            record, pod, self._cluster.now(), prover=facts.prover, events=facts.events, windows=self._windows
        )

    async def _written(self, seen: Stored, step: Started | Finish) -> Stored | None:
        """Write the event, unless the record is another by now: then what was seen has to be looked at again."""
        event = self._event(step)
        token = seen.record.token
        try:
            stored = await self._store.update(
                token, lambda record: event if record == seen.record else None, known=seen
            )
        except RecordMissing:
            return None
        if isinstance(step, Finish) and _says(stored.record, step):
            _log.info("run_ended", token=token, phase=str(step.phase), reason=step.result.reason)
            if step.delete_pod:
                await self._delete_pod(stored)
        return stored

    def _event(self, step: Started | Finish) -> Event:
        now = self._cluster.now()
        if isinstance(step, Finish):
            return Ended(step.phase, step.result, at=now, evidence=step.evidence)
        return WorkerStarted(now, step.started_at, step.deadline_at, step.collect_until, dict(step.image_ids))

    async def _delete_pod(self, stored: Stored) -> None:
        try:
            pod = OwnPod(self._cluster, self._namespace, stored)
            await pod.delete(grace_seconds=self._grace_seconds)
        except ClusterError as error:
            _log.warning("pod_not_deleted", token=stored.record.token, why=str(error))

    async def _prover(self, record: Record) -> ProverReport:
        """Read the end of the prover's log. What cannot be read is told as such, never guessed."""
        for attempt in range(LOG_TRIES):
            try:
                async with asyncio.timeout(LOG_SECONDS):
                    return ProverReport.of_log(await self._log_end(record))
            except (ClusterError, TimeoutError) as error:
                _log.info("prover_log_unread", token=record.token, why=str(error) or "it took too long")
                if isinstance(error, ClusterError) and not error.transient:
                    return UNREAD
            if attempt + 1 < LOG_TRIES:
                await self._sleep(LOG_PAUSE)
        return UNREAD

    async def _log_end(self, record: Record) -> bytes:
        log = bytearray()
        async with self._cluster.log(
            self._namespace, names.run_name(record.token), names.PROVER, tail_lines=LINES, limit_bytes=LOG_BYTES
        ) as pieces:
            async for piece in pieces:
                log += piece
        return bytes(log)

    async def _events(self, record: Record, pod: PodView | None) -> tuple[EventView, ...]:
        """Read the pod's Events. An account that may not see them sees none; a server that is away is an error."""
        uid = pod.uid if pod is not None else record.pod.uid if record.pod is not None else None
        if uid is None:
            return ()
        try:
            found = await self._cluster.list(Kind.EVENT, self._namespace, fields={"involvedObject.uid": uid})
        except ClusterError as error:
            if error.transient:
                raise
            _log.info("events_unread", token=record.token, why=str(error))
            return ()
        return tuple(EventView.of(event) for event in found)


@dataclass
class _Facts:
    """What one look has gathered besides record and pod; None: not asked for."""

    prover: ProverReport | None = None
    events: tuple[EventView, ...] | None = None


def to_status(handle: JobHandle, record: Record, message: str | None = None) -> JobStatus:
    """Say what a caller sees of a record; ``message`` is what a run that has not ended waits for.

    Raises ``job_removed`` for a tombstone.
    """
    if record.phase is Phase.REMOVED:
        raise PodgateError("job_removed", "The run was removed; its evidence is still there.", stage="status")
    result = record.result
    return JobStatus(
        handle=handle,
        state=_state(record.phase),
        phase=str(record.phase),
        reason=result.reason if result is not None else None,
        message=result.message if result is not None else message,
    )


def _state(phase: Phase) -> State:
    if phase in (Phase.PROVISIONING, Phase.RELEASING):
        return "pending"
    return "running" if phase is Phase.ACTIVE else cast("State", str(phase))


def _says(record: Record, step: Finish) -> bool:
    """Whether the record holds this very outcome, written now or (an answer was lost) a try before."""
    result = record.result
    return record.phase is step.phase and result is not None and result.reason == step.result.reason
