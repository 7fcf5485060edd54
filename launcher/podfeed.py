"""The newest state of one pod, kept fresh by a watch that survives cut connections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from launcher.cluster.errors import ClusterError, Gone
from launcher.cluster.port import ClusterPort, Json, Kind
from launcher.cluster.views import PodView

T = TypeVar("T")

REWATCH_SECONDS = 0.5
"""Pause before a broken watch is opened again: an API server that restarts must not be met by a busy loop."""


class PodFeed:
    """Follows the pod ``name`` while :meth:`run` runs. ``uid`` tells our pod from a later one of the same name."""

    def __init__(
        self, cluster: ClusterPort, namespace: str, name: str, uid: str, *, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._uid = uid
        self._sleep = sleep
        self._changed = asyncio.Condition()
        self.raw: Json | None = None
        """The newest raw object, None until the first was seen, and again when it is gone."""
        self.gone = False
        """True once the pod, or its name's owner, is no longer ours."""

    async def run(self, first: Json) -> None:
        """Follow until cancelled or until the pod is gone; ``first`` is what the create or a read gave back."""
        await self._publish(first)
        version: str | None = first["metadata"].get("resourceVersion")
        while not self.gone:
            try:
                version = await self._follow(version)
            except Gone:
                version = None
            except ClusterError as error:
                if not error.transient:
                    raise
                await self._sleep(REWATCH_SECONDS)
            if not self.gone and version is None:
                await self._look()

    async def _follow(self, version: str | None) -> str | None:
        async with self._cluster.watch(Kind.POD, self._namespace, self._name, resource_version=version) as events:
            async for event in events:
                version = event.object["metadata"].get("resourceVersion", version)
                if event.type == "DELETED":
                    await self._publish(None)
                    return version
                if event.type != "BOOKMARK":
                    await self._publish(event.object)
        return version

    async def _look(self) -> None:
        """After a gap whose events are lost for good, the present state says all there is to know."""
        await self._publish(await self._cluster.get(Kind.POD, self._namespace, self._name))

    async def _publish(self, pod: Json | None) -> None:
        ours = pod is not None and pod["metadata"]["uid"] == self._uid
        async with self._changed:
            self.raw = pod if ours else None
            self.gone = not ours
            self._changed.notify_all()

    @property
    def view(self) -> PodView | None:
        """The newest state as a view; None before the first, and when the pod is gone."""
        return None if self.raw is None else PodView.of(self.raw)

    async def until(self, judge: Callable[[PodView | None], T | None]) -> T:
        """Wait until ``judge`` answers something for the newest state (None: the pod is gone), and return the answer.

        Bounded by the caller's own timeout. ``judge`` may raise to end the wait.
        """
        async with self._changed:
            while True:
                answer = judge(self.view) if self.raw is not None or self.gone else None
                if answer is not None:
                    return answer
                await self._changed.wait()
