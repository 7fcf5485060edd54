"""A run's one pod: find it, delete it, see it gone. Never forced: the policy must outlive every container."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from isolation import names
from launcher.cluster.errors import ClusterError, Conflict, Gone
from launcher.cluster.port import ClusterPort, Json, Kind
from records.codec import Stored

LOOK_SECONDS = 5.0
"""A watch can be cut without a sign; a look at this rhythm bounds what that costs, at a fifth of a request a second."""

PAUSE_SECONDS = 0.5
"""Before a broken watch is opened again: an API server that restarts must not be met by a busy loop."""


@dataclass(frozen=True)
class Clock:
    """Waiting, handed in: seconds of a monotonic clock, and a sleep by the same clock."""

    monotonic: Callable[[], float]
    sleep: Callable[[float], Awaitable[None]]


class OwnPod:
    """The pod of the run that ``stored`` describes, in one namespace."""

    def __init__(self, cluster: ClusterPort, namespace: str, stored: Stored) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._stored = stored
        self._name = names.run_name(stored.record.token)

    async def find(self) -> Json | None:
        """Read the pod; None when there is none, or when the one of that name is not this run's."""
        pod = await self._cluster.get(Kind.POD, self._namespace, self._name)
        return pod if pod is not None and belongs(pod, self._stored) else None

    async def delete(self, *, grace_seconds: int) -> str | None:
        """Ask for the pod's graceful deletion; return its uid, or None when there is nothing to delete (any more).

        Works without knowing the uid: a launcher may have died between creating the pod and naming it in the record.
        """
        pod = await self.find()
        if pod is None:
            return None
        uid = str(pod["metadata"]["uid"])
        if pod["metadata"].get("deletionTimestamp") is None:
            with suppress(Conflict):  # another object has the name now: ours is gone, and the wait will see that
                await self._cluster.delete(Kind.POD, self._namespace, self._name, uid=uid, grace_seconds=grace_seconds)
        return uid

    async def gone(self, uid: str, *, within: float, clock: Clock) -> bool:
        """Wait up to ``within`` seconds until no pod of that uid is there; False when it still is."""
        deadline = clock.monotonic() + within
        while True:
            pod = await self._cluster.get(Kind.POD, self._namespace, self._name)
            if pod is None or pod["metadata"]["uid"] != uid:
                return True
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                return False
            await _first_of(self._deleted(pod, clock), clock.sleep(min(LOOK_SECONDS, remaining)))

    async def _deleted(self, pod: Json, clock: Clock) -> None:
        """Return when the watch says so, or when it has ended; the caller looks in either case."""
        version = pod["metadata"]["resourceVersion"]
        try:
            async with self._cluster.watch(Kind.POD, self._namespace, self._name, resource_version=version) as events:
                async for event in events:
                    if event.type == "DELETED":
                        return
        except Gone:
            return
        except ClusterError as error:
            if not error.transient:
                raise
        await clock.sleep(PAUSE_SECONDS)


def belongs(pod: Json, stored: Stored) -> bool:
    """True when the pod is this record's: the recorded one, or one that a launch under this very record created."""
    metadata = pod["metadata"]
    owners = {owner.get("uid") for owner in metadata.get("ownerReferences", ())}
    known = stored.record.pod
    return stored.uid in owners or (known is not None and metadata["uid"] == known.uid)


async def _first_of(*works: Awaitable[None]) -> None:
    """Wait for the first to end, end the others, and raise what it raised."""
    tasks = [asyncio.ensure_future(_as_coroutine(work)) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _as_coroutine(work: Awaitable[None]) -> Coroutine[Any, Any, None]:
    async def run() -> None:
        await work

    return run()
