"""Retries, in one place: a port around a port that repeats what may be repeated.

* get, list, version: Unreachable, Throttled.
* create: these and Conflict (a quota's update race: nothing was created). A create whose answer was lost is repeated
  and then says AlreadyExists, honestly: whose object that is, the caller has to look at.
* replace: Throttled, and Unreachable only when the request was certainly not sent. When it may have been carried out,
  that is surfaced: a repeat would end in a Conflict with our own write. Who wrote reads again and decides again.
* delete with a uid: Unreachable, Throttled; absent after a lost answer counts as deleted by us. Without a uid only what
  was certainly not carried out, as a repeat could hit a successor of the same name.
* watch, log: opening them, as get. What breaks later is the reader's to resume, who knows where it was.
* exec: never; what a process has already done only its caller knows.
"""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from launcher.cluster.errors import ClusterError, Conflict, Throttled, Unreachable
from launcher.cluster.port import AdminPort, ExecStream, Json, Kind, WatchEvent

T = TypeVar("T")

Repeatable = Callable[[ClusterError], bool]


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often to try, in seconds."""

    budget: float = 90.0
    """All tries of one call together. An API server that is away for a minute (a restart, a failover) fails no run."""
    first: float = 0.2
    """Upper bound of the first pause; it doubles from try to try."""
    longest: float = 5.0
    """Upper bound of any pause that the server did not ask for, so that its return is noticed within this."""


class RetryingCluster:
    """Implements ``AdminPort`` over another one.

    Pauses are drawn evenly between nothing and their bound (full jitter).
    """

    def __init__(
        self,
        port: AdminPort,
        policy: RetryPolicy | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]],
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._port = port
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._monotonic = monotonic
        self._uniform = uniform

    def now(self) -> datetime:
        """Return the API server's clock."""
        return self._port.now()

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Json | None:
        """Read one object; None when it is absent."""
        return await self._repeat(lambda: self._port.get(kind, namespace, name), not_carried_out_or_harmless)

    async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
        """Create; AlreadyExists may mean our own create whose answer was lost."""
        return await self._repeat(lambda: self._port.create(kind, namespace, body, dry_run=dry_run), of_a_create)

    async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
        """Replace; Unreachable means that it may have been carried out: read again and decide again."""
        return await self._repeat(lambda: self._port.replace(kind, namespace, name, body), not_carried_out)

    async def delete(
        self, kind: Kind, namespace: str, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> bool:
        """Delete; True when it was there at the first try, also when only a later try got an answer."""
        unsure = False

        async def attempt() -> bool:
            nonlocal unsure
            try:
                return await self._port.delete(kind, namespace, name, uid=uid, grace_seconds=grace_seconds) or unsure
            except Unreachable as error:
                unsure = unsure or error.sent
                raise

        return await self._repeat(attempt, not_carried_out if uid is None else not_carried_out_or_harmless)

    @asynccontextmanager
    async def watch(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch one object; only the opening is repeated."""
        async with self._opened(
            lambda: self._port.watch(kind, namespace, name, resource_version=resource_version)
        ) as events:
            yield events

    def exec(
        self, namespace: str, pod: str, container: str, argv: Sequence[str]
    ) -> AbstractAsyncContextManager[ExecStream]:
        """Run argv in a container; never repeated."""
        return self._port.exec(namespace, pod, container, argv)

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
        """Read a log; only the opening is repeated."""
        async with self._opened(
            lambda: self._port.log(
                namespace,
                pod,
                container,
                follow=follow,
                timestamps=timestamps,
                tail_lines=tail_lines,
                limit_bytes=limit_bytes,
                since=since,
            )
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
        """List completely."""
        return await self._repeat(
            lambda: self._port.list(kind, namespace, labels=labels, fields=fields), not_carried_out_or_harmless
        )

    async def server_version(self) -> tuple[int, int]:
        """(major, minor) of the API server."""
        return await self._repeat(self._port.server_version, not_carried_out_or_harmless)

    @asynccontextmanager
    async def _opened(self, opening: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        async with AsyncExitStack() as stack:
            yield await self._repeat(lambda: stack.enter_async_context(opening()), not_carried_out_or_harmless)

    async def _repeat(self, attempt: Callable[[], Awaitable[T]], repeatable: Repeatable) -> T:
        began = self._monotonic()

        async def once() -> T:
            # Tenacity awaits only what was written as a coroutine function.
            return await attempt()

        def over(state: RetryCallState) -> bool:
            # The pause that would come next counts, too: a wait that ends beyond the budget is not begun.
            return self._monotonic() - began + state.upcoming_sleep > self._policy.budget

        retrying = AsyncRetrying(
            sleep=self._sleep,
            wait=self._pause,
            stop=over,
            retry=retry_if_exception(lambda error: isinstance(error, ClusterError) and repeatable(error)),
            reraise=True,
        )
        return await retrying(once)

    def _pause(self, state: RetryCallState) -> float:
        bound = min(self._policy.longest, self._policy.first * 2 ** min(state.attempt_number - 1, 30))
        drawn = self._uniform(0.0, bound)
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Throttled) and error.retry_after is not None:
            # Somewhat later than asked for, each at another moment: everyone was told the same second.
            return error.retry_after + drawn
        return drawn


def not_carried_out(error: ClusterError) -> bool:
    """Say whether the request certainly did nothing, and may do better the next time."""
    return isinstance(error, Throttled) or (isinstance(error, Unreachable) and not error.sent)


def not_carried_out_or_harmless(error: ClusterError) -> bool:
    """Say whether to repeat a request that does no harm when carried out twice."""
    return isinstance(error, Throttled | Unreachable)


def of_a_create(error: ClusterError) -> bool:
    """Say whether to repeat a create: its second carrying out finds the name taken."""
    return isinstance(error, Throttled | Unreachable | Conflict)
