"""A cluster in memory, behind the same port as the real one.

What it promises is what the contract suite checks on it and on a real cluster alike. What it does not do: schedule, run
containers (``fake_node.py`` plays the node), validate beyond what our mistakes would meet, default what our manifests
always say.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from launcher.cluster.errors import AlreadyExists, Gone, NotFound, Refused
from launcher.cluster.port import ExecStream, Json, Kind, WatchEvent
from launcher.testing.fake_exec import FakeExec, Handler, Pipe, Process, opened
from launcher.testing.fake_log import Log, Reading
from launcher.testing.fake_schema import check_known, normalized
from launcher.testing.fake_store import Key, Store, copied
from launcher.testing.virtual_time import LoopClock

Admission = Callable[[Literal["create", "replace"], Kind, Json], Json]
"""Looks at an object on its way in: returns it, changed or not, or raises Refused. What webhooks and policies do."""

WATCH_SECONDS = 60.0
"""After which the server ends a watch, as the real adapter asks it to."""


@dataclass
class FakeCluster:
    """Implements ``AdminPort``. ``store`` is its inside, for tests and for the node; ``clock`` its time."""

    namespaces: Sequence[str] = ("podgate",)
    clock: LoopClock = field(default_factory=LoopClock)
    version: tuple[int, int] = (1, 34)
    watch_seconds: float = WATCH_SECONDS
    admission: list[Admission] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    """(verb, plural[/subresource]) that a SelfSubjectAccessReview answers with no; everything else is allowed."""
    logs: dict[tuple[str, str, str], Log] = field(default_factory=dict)
    execs: list[FakeExec] = field(default_factory=list)
    """The execs that are open now; ``cut`` one to break it in the middle."""
    handler: Callable[[Process], Handler | None] | None = None
    """Finds the program that an exec runs; None says that the container has no such program."""

    def __post_init__(self) -> None:
        self.store = Store(self.clock.now)
        self._started = False

    def _begin(self) -> None:
        """Make the first namespaces, as soon as there is a loop whose clock can be asked."""
        if not self._started:
            self._started = True
            for name in self.namespaces:
                self.store.create((Kind.NAMESPACE, None, name), {"metadata": {"name": name}})

    def now(self) -> datetime:
        """Return the server's clock."""
        return self.clock.now()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object; None when it is absent."""
        await self._arrive()
        return self.store.get((kind, namespace, name))

    async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
        """Create, and return what was stored."""
        await self._arrive()
        operation = f"create {kind.value.kind} {body.get('metadata', {}).get('name', '')}".rstrip()
        if kind is Kind.ACCESS_REVIEW:
            return self._review(body)
        check_known(operation, kind, namespace, body)
        if namespace is not None and self.store.get((Kind.NAMESPACE, None, namespace)) is None:
            raise NotFound(operation, status=404, reason="NotFound")
        key = (kind, namespace, body["metadata"]["name"])
        if self.store.get(key) is not None:
            raise AlreadyExists(operation, status=409, reason="AlreadyExists")
        admitted = self._admit("create", kind, normalized(kind, body))
        return self.store.prepare(key, admitted) if dry_run else self.store.create(key, admitted)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace under the resourceVersion that the body carries."""
        await self._arrive()
        operation = f"replace {kind.value.kind} {name}"
        check_known(operation, kind, namespace, body)
        if self.store.get((kind, namespace, name)) is None:
            raise NotFound(operation, status=404, reason="NotFound")
        return self.store.replace((kind, namespace, name), self._admit("replace", kind, normalized(kind, body)))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """Ask for deletion; False when it was absent."""
        await self._arrive()
        scope = namespace if kind.value.namespaced else None
        return self.store.delete((kind, scope, name), uid=uid, grace=grace_seconds)

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch one object."""
        await self._arrive()
        key = (kind, namespace, name)
        seen = int(resource_version) if resource_version is not None else self.store.version
        present = self.store.get(key) if resource_version is None else None
        async with aclosing(self._events(key, seen, present)) as events:
            yield events

    async def _events(self, key: Key, seen: int, present: Json | None) -> AsyncGenerator[WatchEvent, None]:
        if present is not None:
            yield WatchEvent("ADDED", present)
        ends_at = self.clock.monotonic() + self.watch_seconds
        while True:
            if seen < self.store.floor:
                raise Gone(f"watch {key[0].value.kind} {key[2]}", status=410, reason="Expired")
            changed = self.store.changed
            for change in [change for change in self.store.history if change.version > seen]:
                seen = change.version
                if change.key == key:
                    yield WatchEvent(change.type, copied(change).object)
            if changed.is_set():
                continue
            left = ends_at - self.clock.monotonic()
            if left <= 0 or not await _within(left, changed):
                yield WatchEvent("BOOKMARK", {"kind": key[0].value.kind, "metadata": {"resourceVersion": str(seen)}})
                return

    @asynccontextmanager
    async def _exec(self, process: Process) -> AsyncIterator[ExecStream]:
        await self._arrive()
        operation = f"exec Pod {process.pod}"
        self._container(operation, process.namespace, process.pod, process.container)
        runs = _runs(self.store.get((Kind.POD, process.namespace, process.pod)), process.container)
        handler = self.handler(process) if self.handler is not None and runs else None
        async with opened(operation, process, handler) as stream:
            self.execs.append(stream)
            try:
                yield stream
            finally:
                self.execs.remove(stream)

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run argv in a container; the handler plays the process."""
        return self._exec(Process(namespace, pod, container, tuple(argv), Pipe(), Pipe(), bytearray()))

    @asynccontextmanager
    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        timestamps: bool = False,
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        since: datetime | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Read a container's log."""
        await self._arrive()
        operation = f"log Pod {pod}"
        self._container(operation, namespace, pod, container)
        log = self.logs.get((namespace, pod, container))
        if log is None:
            raise Refused(operation, status=400, reason="BadRequest", message="container is waiting to start")
        reading = Reading(follow, timestamps, tail_lines, limit_bytes, since)
        async with aclosing(reading.of(log)) as pieces:
            yield pieces

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> "list[Json]":
        """List by label and field selectors."""
        await self._arrive()
        return [
            body
            for body in self.store.items(kind, namespace)
            if all(body["metadata"].get("labels", {}).get(key) == value for key, value in (labels or {}).items())
            and all(_field(body, path) == value for path, value in (fields or {}).items())
        ]

    async def server_version(self) -> tuple[int, int]:
        """(major, minor) of the API server."""
        await self._arrive()
        return self.version

    def write_log(self, namespace: str, pod: str, container: str, line: bytes) -> None:
        """Let a container say a line; the first one begins its log."""
        self.logs.setdefault((namespace, pod, container), Log()).write(self.clock.now(), line)

    def end_log(self, namespace: str, pod: str, container: str) -> None:
        """End a container's log, and with it those who follow it."""
        self.logs.setdefault((namespace, pod, container), Log()).end()

    async def _arrive(self) -> None:
        """What every request does: let others go first once, as a network would."""
        self._begin()
        await asyncio.sleep(0)

    def _admit(self, verb: Literal["create", "replace"], kind: Kind, body: Json) -> Json:
        for admission in self.admission:
            body = admission(verb, kind, copy.deepcopy(body))
        return body

    def _review(self, body: Json) -> Json:
        asked = body.get("spec", {}).get("resourceAttributes", {})
        resource = "/".join(part for part in (asked.get("resource"), asked.get("subresource")) if part)
        return body | {"status": {"allowed": (asked.get("verb"), resource) not in self.denied}}

    def _container(self, operation: str, namespace: str, pod: str, container: str) -> None:
        body = self.store.get((Kind.POD, namespace, pod))
        if body is None:
            raise NotFound(operation, status=404, reason="NotFound")
        spec = body["spec"]
        if container not in [one["name"] for one in [*spec.get("initContainers", ()), *spec["containers"]]]:
            raise Refused(operation, status=400, reason="BadRequest", message=f"container {container} is not valid")


def _runs(pod: Json | None, container: str) -> bool:
    status = (pod or {}).get("status", {})
    for one in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if one["name"] == container:
            return "running" in one.get("state", {})
    return False


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _field(body: Json, path: str) -> str | None:
    found: Any = body
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, str) else None
