"""Stop: look first, record the intent, delete the pod, record ``stopped``. Another stop goes on after a crash."""

from collections.abc import Callable

from launcher.cluster.port import ClusterPort
from launcher.observing import Observes
from launcher.ownpod import OwnPod
from records.birth import stopped_result, tombstone
from records.codec import Stored
from records.errors import RecordConflict, RecordExists, RecordMissing
from records.model import Evidence, Phase, Record
from records.store import RecordStore
from records.transitions import Ended, Event, StopRequested

TRIES = 3
"""How often a record may vanish under a stop. Records vanish by hand or age only, so a second time is one too many."""


class Stopper:
    """Stops runs of one namespace. ``grace_seconds`` is what the containers get between SIGTERM and SIGKILL."""

    def __init__(
        self, cluster: ClusterPort, store: RecordStore, observer: Observes, *, namespace: str, grace_seconds: int = 10
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._observer = observer
        self._namespace = namespace
        self._grace_seconds = grace_seconds

    async def stop(self, token: str, reason: str | None = None) -> Stored:
        """End the run, and return its record, which is terminal then. Idempotent.

        A worker that had ended before keeps its own outcome. An unknown token gets a tombstone, so that a launch that
        comes later starts nothing. Raises RecordError and ClusterError; the intent may be recorded then, and another
        stop finishes it.
        """
        for _ in range(TRIES):
            stored = await self._observer.observe(token) or await self._bury(token, reason)
            try:
                return await self._end(stored, reason)
            except RecordMissing:
                continue
        raise RecordConflict(token, TRIES)

    async def _bury(self, token: str, reason: str | None) -> Stored:
        """Leave a tombstone; a launch that created its record at the same moment is stopped like any other."""
        try:
            return await self._store.create(tombstone(token=token, now=self._cluster.now(), reason=reason))
        except RecordExists as error:
            return error.stored

    async def _end(self, stored: Stored, reason: str | None) -> Stored:
        token = stored.record.token
        if not stored.record.phase.terminal:
            stored = await self._store.update(token, self._intent(reason), known=stored)
        if not stored.record.phase.terminal:
            # While its log can still be read, the prover says whether the run was isolated up to here.
            stored = await self._observer.observe(token) or stored
        # A stopped run's pod is deleted again: a stop that crashed, or a launch that stalled, may have left it.
        if stored.record.phase.terminal and stored.record.phase is not Phase.STOPPED:
            return stored
        await OwnPod(self._cluster, self._namespace, stored).delete(grace_seconds=self._grace_seconds)
        return await self._store.update(token, self._stopped(reason), known=stored)

    def _intent(self, reason: str | None) -> Callable[[Record], Event | None]:
        event = StopRequested(at=self._cluster.now(), reason=reason)
        return lambda record: None if record.phase.terminal else event

    def _stopped(self, reason: str | None) -> Callable[[Record], Event | None]:
        def decide(record: Record) -> Event | None:
            if record.phase.terminal:
                return None
            why = record.stop.reason if record.stop else reason
            return Ended(Phase.STOPPED, stopped_result(why), at=self._cluster.now(), evidence=_end_evidence(record))

        return decide


def _end_evidence(record: Record) -> Evidence | None:
    """Say ``unknown`` of a worker that may have run and whose prover was not read at its end: never "isolated"."""
    if record.phase is Phase.PROVISIONING or record.evidence.end is not None:
        return None
    return Evidence(end="unknown")
