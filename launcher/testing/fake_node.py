"""A node for a fake cluster: takes pods as they come, and lets each live by its script."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

from isolation import labels, names
from launcher.cluster.port import Json, Kind
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_exec import Handler, Process
from launcher.testing.fake_life import Life, config_of
from launcher.testing.fake_run import RunLife
from launcher.testing.fake_script import Script

Canary = Literal["open", "policed"]


def healthy_canary(kind: Canary, config: Json) -> Json:
    """What a canary says when everything is as it should be."""
    families = {
        family: {
            "standing": kind == "policed",
            "streak": 3,
            "control": "up",
            "allOpen": kind == "open",
            "backend": address,
        }
        | {"verdict": "proven" if kind == "policed" else "open", "by": "drop" if kind == "policed" else None}
        | {"detail": "", "deny": "tcp silent,udp silent" if kind == "policed" else "tcp open,udp open"}
        for family, address in config["witness"].items()
    }
    latency = [
        {**target, "seconds": 0.5, "sawOpen": True, "stillOpen": False, "tries": 10}
        for target in config.get("latencyTargets", ())
    ]
    return {
        "final": True, "mode": kind, "ok": True, "code": None, "message": "", "families": families,
        "missingFamilies": [], "leaks": [], "nodeExposure": [], "standingAfter": 1.5 if kind == "policed" else None,
        "openUntil": 0.4, "rounds": 8, "latency": latency,
    }  # fmt: skip


class CanaryLife(Life):
    """A preflight's pod: says its answer, and stays until it is deleted."""

    def __init__(
        self, cluster: FakeCluster, pod: Json, script: Script, answers: Callable[[Canary, Json], Json]
    ) -> None:
        super().__init__(cluster, pod, script)
        self._answers = answers

    async def course(self) -> None:
        """Start, wait a moment, answer."""
        self.bind()
        await asyncio.sleep(self.script.starts_after)
        self.start(names.CANARY)
        kind: Canary = "open" if self.labels[labels.CANARY].endswith("-open") else "policed"
        await asyncio.sleep(2)
        self.say(names.CANARY, json.dumps(self._answers(kind, config_of(self.spec, names.CANARY))))


class PlainLife(Life):
    """Any other pod: runs until it is deleted."""

    async def course(self) -> None:
        """Start every container."""
        self.bind()
        await asyncio.sleep(self.script.starts_after)
        for one in self.status.containers:
            self.start(one.name)


@dataclass
class FakeNode:
    """Used as a context: ``async with FakeNode(cluster) as node``.

    ``scripts`` says by pod name how a pod lives, ``script`` how all others do. ``canary`` answers for the preflight's
    pods.
    """

    cluster: FakeCluster
    script: Script = field(default_factory=Script)
    scripts: Mapping[str, Script] = field(default_factory=dict)
    canary: Callable[[Canary, Json], Json] = healthy_canary
    lives: dict[str, Life] = field(default_factory=dict)
    """By pod uid, the ended ones too."""

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.cluster.handler = self._handler
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the node where it is; a script that raised is an error of the test, and shows."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for ending in self._endings:
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        for life in self.lives.values():
            await life.stop_all()

    def life_of(self, pod: str) -> Life:
        """Return the newest pod of a name."""
        return [life for life in self.lives.values() if life.name == pod][-1]

    async def _watch(self) -> None:
        """Act on every change: take new pods, end deleted ones, drop those that are gone."""
        while True:
            changed = self.cluster.store.changed
            present = {pod["metadata"]["uid"]: pod for pod in self.cluster.store.items(Kind.POD, None)}
            for uid, pod in present.items():
                if uid not in self.lives:
                    self._take(uid, pod)
                grace = pod["metadata"].get("deletionGracePeriodSeconds")
                if grace is not None and pod["spec"].get("nodeName"):
                    self._end(self.lives[uid], grace)
            for uid, life in self.lives.items():
                if uid not in present and not life.ending:
                    life.ending = True
                    self._beside(life.stop_all())
            if not changed.is_set():
                await changed.wait()

    def _take(self, uid: str, pod: Json) -> None:
        name = pod["metadata"]["name"]
        script = self.scripts.get(name, self.script)
        component = pod["metadata"].get("labels", {}).get(labels.COMPONENT)
        life: Life
        if component == "run":
            life = RunLife(self.cluster, pod, script)
        elif component == "canary":
            life = CanaryLife(self.cluster, pod, script, self.canary)
        else:
            life = PlainLife(self.cluster, pod, script)
        self.lives[uid] = life
        life.begin()

    def _end(self, life: Life, grace: float) -> None:
        if not life.ending:
            self._beside(life.terminate(grace))

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _handler(self, process: Process) -> Handler | None:
        for life in reversed(self.lives.values()):
            if isinstance(life, RunLife) and (life.namespace, life.name) == (process.namespace, process.pod):
                return life.handler(process)
        return None
