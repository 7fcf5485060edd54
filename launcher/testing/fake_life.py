"""One pod on a fake node: its statuses, moments and ends. What it runs is the business of its kind."""

import asyncio
import itertools
import json
from collections.abc import Coroutine
from typing import Any

from isolation import names
from launcher.cluster.port import Json, Kind
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_script import At, Moment, Script
from launcher.testing.fake_status import PodStatus
from launcher.testing.fake_store import Key, stamp

NODE = "fake-node"
TERM_SECONDS = 0.5
"""What a process takes that heeds SIGTERM."""

KILLED = 137
_addresses = itertools.count(10)


class Life:
    """A pod from its scheduling to its end."""

    def __init__(self, cluster: FakeCluster, pod: Json, script: Script) -> None:
        self.cluster = cluster
        self.script = script
        self.spec: Json = pod["spec"]
        self.uid: str = pod["metadata"]["uid"]
        self.labels: Json = pod["metadata"].get("labels", {})
        self.namespace: str = pod["metadata"]["namespace"]
        self.name: str = pod["metadata"]["name"]
        self.key: Key = (Kind.POD, self.namespace, self.name)
        self.times: dict[Moment, float] = {}
        self.ending = False
        number = next(_addresses)
        self.status = PodStatus.of(
            self.spec, cluster.now(), (f"10.232.{number >> 8}.{number & 255}", f"fd32::{number:x}")
        )
        self._moments: dict[Moment, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def course(self) -> None:
        """Run what the pod runs. Cancelled when the pod is to end."""

    def begin(self) -> None:
        """Start the course."""
        self.also(self.course())

    def also(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside, until the pod ends. What it raises is raised by ``close``."""
        self._tasks.add(asyncio.create_task(work))

    async def stop_all(self) -> None:
        """End everything that goes on beside the caller, and raise what any of it raised."""
        mine = asyncio.current_task()
        others = [task for task in self._tasks if task is not mine]
        for task in others:
            task.cancel()
        for result in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._tasks.difference_update(others)

    def reach(self, moment: Moment) -> None:
        """Note that a moment has come; only the first time counts."""
        if moment not in self.times:
            self.times[moment] = self.cluster.clock.monotonic()
            self._moments.setdefault(moment, asyncio.Event()).set()

    async def at(self, when: At) -> None:
        """Wait for a moment, and so many seconds more."""
        await self._moments.setdefault(when.moment, asyncio.Event()).wait()
        await asyncio.sleep(max(0.0, self.times[when.moment] + when.after - self.cluster.clock.monotonic()))

    def since(self, when: At) -> float | None:
        """Seconds since a moment plus its delay; None while it has not come."""
        if when.moment not in self.times:
            return None
        passed = self.cluster.clock.monotonic() - self.times[when.moment] - when.after
        return passed if passed >= 0 else None

    def bind(self) -> None:
        """Put the pod on the node."""
        self.event("Scheduled", f"Successfully assigned {self.namespace}/{self.name} to {NODE}")
        self.cluster.store.edit(self.key, lambda pod: pod["spec"].__setitem__("nodeName", NODE))
        self.write()

    def write(self) -> None:
        """Publish the status, as long as the pod is this one."""
        pod = self.cluster.store.get(self.key)
        if pod is not None and pod["metadata"]["uid"] == self.uid:
            self.cluster.store.edit(self.key, lambda pod: pod.__setitem__("status", self.status.as_json()))

    def start(self, container: str) -> None:
        """Let a container run."""
        one = self.status[container]
        self.event("Pulled", f'Container image "{one.image}" already present on machine', container)
        one.start(self.cluster.now(), self.script.image_ids.get(container))
        self.event("Started", f"Started container {container}", container)
        self.write()

    def end(self, container: str, code: int, reason: str | None = None, message: str | None = None) -> None:
        """Let a container have ended, with its log and its execs."""
        self.status[container].end(self.cluster.now(), code, reason, message)
        self.cluster.end_log(self.namespace, self.name, container)
        for one in list(self.cluster.execs):
            where = one.process
            if (where.namespace, where.pod, where.container) == (self.namespace, self.name, container):
                one.cut()
        self.write()

    def event(self, reason: str, message: str, container: str | None = None, *, warning: bool = False) -> None:
        """Write an Event about the pod."""
        about = {"kind": "Pod", "namespace": self.namespace, "name": self.name, "uid": self.uid}
        if container is not None:
            area = "initContainers" if container in self.status.init else "containers"
            about["fieldPath"] = f"spec.{area}{{{container}}}"
        at = stamp(self.cluster.now())
        name = f"{self.name}.{next(_event_numbers):x}"
        body = {
            "metadata": {"name": name},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Warning" if warning else "Normal",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        self.cluster.store.create((Kind.EVENT, self.namespace, name), body)

    def say(self, container: str, line: str | bytes) -> None:
        """Write a line to a container's log."""
        self.cluster.write_log(self.namespace, self.name, container, line.encode() if isinstance(line, str) else line)

    async def image_error(self, container: str, message: str) -> None:
        """Let an image pull fail for ever, alternating as a kubelet does."""
        for reason in itertools.cycle(("ErrImagePull", "ImagePullBackOff")):
            said = message if reason == "ErrImagePull" else f"Back-off pulling image: {message}"
            self.status[container].wait(reason, said)
            self.event("Failed" if reason == "ErrImagePull" else "BackOff", said, container, warning=True)
            self.write()
            await asyncio.sleep(10)

    async def terminate(self, grace: float) -> None:
        """End a deleted pod as a kubelet does, and let the object go only then."""
        if self.ending:
            return
        self.ending = True
        await self.stop_all()
        await self.end_containers(grace)
        await asyncio.sleep(self.script.drains_slowly)
        self.forget()

    def forget(self) -> None:
        """Take the pod object away, when it is still this pod's."""
        pod = self.cluster.store.get(self.key)
        if pod is not None and pod["metadata"]["uid"] == self.uid:
            self.cluster.store.remove(self.key)

    async def fail(self, reason: str, message: str, *, grace: float) -> None:
        """End every container and the pod as a whole; the object stays."""
        self.ending = True
        await self.stop_all()
        await self.end_containers(grace)
        self.status.outcome = {"phase": "Failed", "reason": reason, "message": message}
        self.write()
        self.ending = False

    async def end_containers(self, grace: float) -> None:
        """End regular containers first, the sidecar last."""
        for one in [*self.status.regular.values(), *reversed(list(self.status.init.values()))]:
            if one.runs:
                code, seconds = self.heeds(one.name, grace)
                await asyncio.sleep(seconds)
                self.end(one.name, code)

    def heeds(self, container: str, grace: float) -> tuple[int, float]:
        """Return how a container ends when told to: exit code, and seconds it takes."""
        if container != names.WORKER:
            return (43 if container == names.GATE else 0), 0.0
        on_term = self.script.worker.on_term
        if on_term is None or grace < TERM_SECONDS:
            return KILLED, grace
        return on_term, TERM_SECONDS


_event_numbers = itertools.count(1)


def config_of(spec: Json, container: str) -> Json:
    """Return the configuration that a program of ours was started with."""
    for one in [*spec.get("initContainers", ()), *spec["containers"]]:
        if one["name"] == container:
            found: Json = json.loads(one["args"][-1].replace("$$", "$"))
            return found
    raise LookupError(container)
