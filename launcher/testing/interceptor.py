"""A port around a port that fails, delays, or loses the answer of exactly the calls it was told to, and remembers all.

For tests of error paths: "the third create of a Pod fails", "the second replace is committed and its answer lost".
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from launcher.cluster.errors import ClusterError, ExecFailed, Unreachable
from launcher.cluster.port import AdminPort, ExecStream, Json, Kind, WatchEvent

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One call: method, kind and name (a container for exec and log), and what it was given, for a closer look."""

    method: str
    kind: Kind | None = None
    name: str = ""
    container: str = ""
    body: Json | None = None


Before = Callable[[], Awaitable[None]]


@dataclass
class Rule:
    """What happens to the ``nth`` matching call, and to the ``times - 1`` after it.

    ``before`` is awaited first (a delay, or whatever another replica does meanwhile); then ``error`` is raised
    instead of the call, or, with ``lose_answer``, after the call was carried out.
    """

    matches: Callable[[Call], bool]
    nth: int = 1
    times: int = 1
    error: ClusterError | None = None
    lose_answer: bool = False
    before: Before | None = None
    seen: int = 0

    def applies(self, call: Call) -> bool:
        """Count a matching call; say whether it is one of those meant."""
        if not self.matches(call):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


def calls(method: str, kind: Kind | None = None, name: str | None = None) -> Callable[[Call], bool]:
    """Match by method, and by kind and name where they are given."""
    return lambda call: call.method == method and kind in (None, call.kind) and name in (None, call.name)


@dataclass
class Interceptor:
    """Implements ``AdminPort`` over another one."""

    port: AdminPort
    rules: list[Rule] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def fail(self, matches: Callable[[Call], bool], error: ClusterError, *, nth: int = 1, times: int = 1) -> Rule:
        """Let the nth matching call raise ``error``; nothing is carried out."""
        return self._add(Rule(matches, nth=nth, times=times, error=error))

    def lose_answer(self, matches: Callable[[Call], bool], *, nth: int = 1) -> Rule:
        """Let the nth matching call be carried out and its answer be lost: the caller sees Unreachable."""
        return self._add(Rule(matches, nth=nth, lose_answer=True))

    def before(self, matches: Callable[[Call], bool], action: Before, *, nth: int = 1) -> Rule:
        """Await ``action`` before the nth matching call goes through: a delay, or another replica's move."""
        return self._add(Rule(matches, nth=nth, before=action))

    def made(self, method: str, kind: Kind | None = None) -> list[Call]:
        """Return the calls of a method, of one kind or of all."""
        return [call for call in self.calls if call.method == method and kind in (None, call.kind)]

    def _add(self, rule: Rule) -> Rule:
        self.rules.append(rule)
        return rule

    async def _through(self, call: Call, action: Callable[[], Awaitable[T]]) -> T:
        rules = await self._gate(call)
        found = await action()
        if any(rule.lose_answer for rule in rules):
            raise Unreachable(f"{call.method} {call.name}", reason="answer lost")
        return found

    async def _gate(self, call: Call) -> list[Rule]:
        """Note a call and let its rules act that come before it."""
        self.calls.append(call)
        rules = [rule for rule in self.rules if rule.applies(call)]
        for rule in rules:
            if rule.before is not None:
                await rule.before()
            if rule.error is not None:
                raise rule.error
        return rules

    def now(self) -> datetime:
        """Return the server's clock."""
        return self.port.now()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object."""
        return await self._through(Call("get", kind, name), lambda: self.port.get(kind, namespace, name))

    async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
        """Create; a dry run is the method ``dry-run``."""
        call = Call("dry-run" if dry_run else "create", kind, body.get("metadata", {}).get("name", ""), body=body)
        return await self._through(call, lambda: self.port.create(kind, namespace, body, dry_run=dry_run))

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace."""
        call = Call("replace", kind, name, body=body)
        return await self._through(call, lambda: self.port.replace(kind, namespace, name, body))

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """Delete."""
        call = Call("delete", kind, name, body={"uid": uid, "graceSeconds": grace_seconds})
        return await self._through(
            call, lambda: self.port.delete(kind, namespace, name, uid=uid, grace_seconds=grace_seconds)
        )

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch; rules act on the opening."""
        rules = await self._gate(Call("watch", kind, name))
        if any(rule.lose_answer for rule in rules):
            raise Unreachable(f"watch {name}", reason="answer lost")
        async with self.port.watch(kind, namespace, name, resource_version=resource_version) as events:
            yield events

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Exec; a lost answer is an exec that may have started."""
        return self._exec(namespace, pod, container, argv)

    @asynccontextmanager
    async def _exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> AsyncIterator[ExecStream]:
        rules = await self._gate(Call("exec", Kind.POD, pod, container, {"argv": list(argv)}))
        if any(rule.lose_answer for rule in rules):
            raise ExecFailed(f"exec Pod {pod}", reason="answer lost", started=True)
        async with self.port.exec(namespace, pod, container, argv) as stream:
            yield stream

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
        """Read a log; rules act on the opening."""
        rules = await self._gate(Call("log", Kind.POD, pod, container))
        if any(rule.lose_answer for rule in rules):
            raise Unreachable(f"log Pod {pod}", reason="answer lost")
        async with self.port.log(
            namespace,
            pod,
            container,
            follow=follow,
            timestamps=timestamps,
            tail_lines=tail_lines,
            limit_bytes=limit_bytes,
            since=since,
        ) as pieces:
            yield pieces

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> "list[Json]":
        """List."""
        return await self._through(
            Call("list", kind), lambda: self.port.list(kind, namespace, labels=labels, fields=fields)
        )

    async def server_version(self) -> tuple[int, int]:
        """(major, minor)."""
        return await self._through(Call("version"), self.port.server_version)
