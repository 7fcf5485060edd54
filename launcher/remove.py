"""Remove: delete what a terminal run left, see it gone, and keep only the evidence."""

from isolation import names
from launcher.cluster.port import ClusterPort
from launcher.errors import PodgateError
from launcher.observing import Observes
from launcher.ownpod import Clock, OwnPod
from records.codec import Stored
from records.errors import RecordMissing
from records.model import Phase, Record
from records.store import RecordStore
from records.transitions import Event, Removed

STAGE = "remove"


class Remover:
    """Removes runs of one namespace, waiting up to ``wait_seconds`` for a pod to be gone."""

    def __init__(
        self,
        cluster: ClusterPort,
        store: RecordStore,
        observer: Observes,
        *,
        namespace: str,
        clock: Clock,
        wait_seconds: float = 60,
        grace_seconds: int = 10,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._observer = observer
        self._namespace = namespace
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds

    async def remove(self, token: str) -> Stored:
        """Turn a terminal run into a tombstone, and return it. Its policy and Secret follow the pod by owner reference.

        Works on a tombstone, too: a stalled launcher may have created its pod after the first remove.
        Raises ``job_not_found``, ``job_not_terminal``, ``pod_not_confirmed_gone`` (the policy is kept, call again), and
        RecordError and ClusterError, after which calling again is safe.
        """
        stored = await self._terminal(token)
        await self._clear(stored)
        try:
            return await self._store.update(token, self._removed, known=stored)
        except RecordMissing:
            return stored  # a reaper was quicker: the record is gone, and with it all it owned

    async def _terminal(self, token: str) -> Stored:
        stored = await self._store.read(token)
        if stored is not None and not stored.record.phase.terminal:
            stored = await self._observer.observe(token)  # it may have ended without anyone having looked
        if stored is None:
            raise PodgateError("job_not_found", f"no run of {self._namespace} has the token {token}", stage=STAGE)
        if not stored.record.phase.terminal:
            raise PodgateError("job_not_terminal", f"the run is {stored.record.phase}: stop it first", stage=STAGE)
        return stored

    async def _clear(self, stored: Stored) -> None:
        pod = OwnPod(self._cluster, self._namespace, stored)
        uid = await pod.delete(grace_seconds=self._grace_seconds)
        if uid is not None and not await pod.gone(uid, within=self._wait_seconds, clock=self._clock):
            raise PodgateError(
                "pod_not_confirmed_gone",
                f"pod {names.run_name(stored.record.token)} is still there {self._wait_seconds:g} s later; "
                "its policy is kept, call remove again",
                stage=STAGE,
            )

    def _removed(self, record: Record) -> Event | None:
        return None if record.phase is Phase.REMOVED else Removed(at=self._cluster.now())
