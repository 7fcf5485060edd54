"""The clusters that the contract suite runs on: the fake one and a real one, with the same few things to arrange."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from launcher.cluster.port import AdminPort, Json, Kind
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_exec import Handler, Process

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for word in ("one", "two", "three"):
    print(word, flush=True)
    time.sleep(0.2)
time.sleep(600)
"""
"""What a pod of these tests runs: three lines, then silence until it is ended."""

ECHO = ("cat",)
FAILING = ("python3", "-c", "import sys; sys.stderr.write('why'); sys.exit(3)")
MISSING = ("no-such-command",)


def pod_of(name: str, image: str, **metadata: object) -> Json:
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-u", "-c", PROGRAM],
        "resources": {"limits": {"cpu": "200m", "memory": "64Mi"}, "requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


class World(Protocol):
    """A cluster, a namespace in it, and pods that run there."""

    cluster: AdminPort
    namespace: str
    image: str

    async def running(self, name: str) -> Json:
        """Create a pod that runs PROGRAM, and return it once its container runs."""


@dataclass
class RealWorld:
    """The test bed."""

    cluster: AdminPort
    namespace: str
    image: str

    async def running(self, name: str) -> Json:
        await self.cluster.create(Kind.POD, self.namespace, pod_of(name, self.image))
        async with asyncio.timeout(30), self.cluster.watch(Kind.POD, self.namespace, name) as events:
            async for event in events:
                if event.object.get("status", {}).get("phase") == "Running":
                    return event.object
        raise AssertionError("the watch ended before the pod ran")


@dataclass
class FakeWorld:
    """The fake, with a node of a few lines: a pod runs at once, and ends a moment after it was told to."""

    cluster: FakeCluster
    namespace: str
    image: str = "registry.example/python"

    def __post_init__(self) -> None:
        self.cluster.handler = _program

    async def running(self, name: str) -> Json:
        await self.cluster.create(Kind.POD, self.namespace, pod_of(name, self.image))
        running = self.cluster.store.edit((Kind.POD, self.namespace, name), _run)
        for word in (b"one", b"two", b"three"):
            self.cluster.write_log(self.namespace, name, "main", word)
        self._ends = asyncio.create_task(self._end_when_deleted(name))
        return running

    async def _end_when_deleted(self, name: str) -> None:
        async with self.cluster.watch(Kind.POD, self.namespace, name) as events:
            async for event in events:
                if event.object["metadata"].get("deletionTimestamp") and event.type == "MODIFIED":
                    await asyncio.sleep(0.2)
                    self.cluster.end_log(self.namespace, name, "main")
                    self.cluster.store.remove((Kind.POD, self.namespace, name))
                    return


def _run(pod: Json) -> None:
    pod["spec"]["nodeName"] = "fake-node"
    pod["status"] |= {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}


def _program(process: Process) -> Handler | None:
    programs: dict[tuple[str, ...], Callable[[Process], object]] = {ECHO: _echo, FAILING: _fail}
    return programs.get(tuple(process.argv))  # type: ignore[return-value]


async def _echo(process: Process) -> int:
    while (piece := await process.stdin.read()) is not None:
        await process.stdout.write(piece)
    return 0


async def _fail(process: Process) -> int:
    process.stderr.extend(b"why")
    return 3
