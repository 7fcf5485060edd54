"""The worker's output as bytes: bounded, and across broken connections without loss or doubling.

Following waits for the worker to start, and ends when it has terminated and all it wrote was handed out. Once the pod
is gone its output is gone, too: then reading ends with what was handed out by then, which may be nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import structlog

from isolation import names
from launcher.cluster.errors import ClusterError, NotFound, Refused
from launcher.cluster.port import ClusterPort, Kind
from launcher.cluster.views import PodView
from launcher.decide.logcursor import LogCursor
from launcher.errors import PodgateError
from launcher.ownpod import belongs
from launcher.settings import Settings
from records.codec import Stored
from records.model import Phase, Record
from records.store import RecordStore

_log = structlog.get_logger()

STAGE = "logs"

MOST_BYTES = 1 << 30
"""Of output handed out by one call. A node keeps 50 MiB a container; only a follower of a chatty worker gets so far."""

IDLE_SECONDS = 60.0
"""A reader that hears nothing for so long looks at the pod: a connection may be dead without a sign."""

POLL_SECONDS = 1.0
"""Between two looks at a pod whose worker does not run yet, and before a connection is opened again."""

BROKEN_SECONDS = 120.0
"""For which no connection may bring anything although the pod can be read: a node that reboots is back by then."""

Found = Literal["waits", "runs", "ended", "gone"]


@dataclass
class _Course:
    """How far one reading has come. ``found`` is what the worker was last seen to do."""

    follow: bool
    found: Found
    cursor: LogCursor = field(default_factory=LogCursor)
    whole: bool = False
    """The last connection brought all that there was."""
    moved: bool = False
    """It brought something, or a worker that runs and is quiet may have had nothing to say."""
    stalled: float | None = None
    """Since when no connection has: monotonic seconds."""

    @property
    def live(self) -> bool:
        """Whether more is to be waited for on one connection."""
        return self.follow and self.found == "runs"

    @property
    def over(self) -> bool:
        """Whether everything that is to be had was handed out."""
        return self.found == "gone" or self.cursor.gone or (self.whole and not self.live)

    def connect(self) -> None:
        """Begin a connection."""
        self.cursor.open()
        self.whole = self.moved = False

    def end_connection(self, began: float, now: float) -> None:
        """Raise ``collect_failed`` when connections have brought nothing for too long."""
        if self.moved or self.whole:
            self.stalled = None
            return
        self.stalled = began if self.stalled is None else self.stalled
        if now - self.stalled > BROKEN_SECONDS:
            raise PodgateError("collect_failed", "the worker's log cannot be read", stage=STAGE)

    def saw(self, found: Found) -> None:
        """Take another look into account. Statuses go back at times; a worker that has run is not waited for."""
        self.found, self.whole = "runs" if found == "waits" else found, False


class WorkerLog:
    """Reads the output of workers of one namespace."""

    def __init__(
        self,
        cluster: ClusterPort,
        store: RecordStore,
        settings: Settings,
        *,
        namespace: str,
        sleep: Callable[[float], Awaitable[None]],
        monotonic: Callable[[], float],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._namespace = namespace
        self._sleep = sleep
        self._monotonic = monotonic
        self._most_bytes = most_bytes
        self._abandoned_after = timedelta(seconds=settings.bounds.abandoned_after)

    async def read(self, token: str, *, follow: bool = False) -> AsyncGenerator[bytes, None]:
        """Yield the worker's output, without changing a byte. Close it when it is left early.

        Raises ``job_not_found``, ``job_removed``, ``collect_failed`` (more than the bound, or a log that cannot be read
        although its pod is there), ClusterError and RecordError.
        """
        await self._stored(token)
        left = self._most_bytes
        async with aclosing(self._output(token, follow=follow)) as pieces:
            async for piece in pieces:
                if within := piece[:left]:
                    yield within
                left -= len(piece)
                if left < 0:
                    message = f"the output has more than {self._most_bytes} bytes"
                    raise PodgateError("collect_failed", message, stage=STAGE)

    async def _output(self, token: str, *, follow: bool) -> AsyncGenerator[bytes, None]:
        found = await self._started(token, follow=follow)
        if found == "waits":
            return
        course = _Course(follow, found)
        while not course.over:
            began = self._monotonic()
            async with aclosing(self._connection(token, course)) as pieces:
                async for piece in pieces:
                    yield piece
            if course.over:
                return
            course.end_connection(began, self._monotonic())
            # A follow that ended says that the worker has, or that the node let go of it: one more reading tells all.
            await self._sleep(POLL_SECONDS)
            course.saw(await self._look(token))

    async def _connection(self, token: str, course: _Course) -> AsyncGenerator[bytes, None]:
        """Yield what one connection brings that is new; ``course`` knows afterwards whether that was all."""
        course.connect()
        try:
            async with aclosing(self._fresh(token, course)) as pieces:
                async for piece in pieces:
                    course.moved = True
                    yield piece
            course.whole = True
        except NotFound:
            course.found = "gone"
        except TimeoutError:
            _log.info("log_silent", token=token, seconds=IDLE_SECONDS)
        except Refused as error:
            _raise_unless_not_started(error)
            # A node may know of a start later than the API server; one that never was leaves no output.
            course.whole = course.found == "ended"
        except ClusterError as error:
            if not error.transient:
                raise
            _log.info("log_reopened", token=token, why=str(error))

    async def _fresh(self, token: str, course: _Course) -> AsyncGenerator[bytes, None]:
        """Open the log where the reading stands. Raises TimeoutError after a long silence, and ClusterError."""
        opened = self._cluster.log(
            self._namespace,
            names.run_name(token),
            names.WORKER,
            follow=course.live,
            timestamps=True,
            since=course.cursor.since,
        )
        async with opened as pieces:
            course.moved = course.live
            while (piece := await _next(pieces)) is not None:
                if fresh := course.cursor.feed(piece):
                    yield fresh
        course.cursor.close()

    async def _started(self, token: str, *, follow: bool) -> Found:
        """Wait, when following, until the worker has started, or never will."""
        while (found := await self._look(token)) == "waits" and follow:
            await self._sleep(POLL_SECONDS)
        return found

    async def _look(self, token: str) -> Found:
        """Say how far the worker is, by its pod; where that says nothing, by the record."""
        raw = await self._cluster.get(Kind.POD, self._namespace, names.run_name(token))
        stored = await self._stored(token)
        if raw is None or not belongs(raw, stored):
            return "waits" if stored.record.pod is None and self._may_start(stored.record) else "gone"
        pod = PodView.of(raw)
        if pod.worker is not None and pod.worker.running is not None:
            return "runs"
        if pod.phase in ("Failed", "Succeeded") or (pod.worker is not None and pod.worker.terminated is not None):
            return "ended"
        # A worker that ran and is shown as waiting again may be shown running again.
        return "waits" if self._may_start(stored.record) else "ended"

    def _may_start(self, record: Record) -> bool:
        """Whether somebody may still start it: nobody may have looked since its launcher went away."""
        until = record.provision_by if record.deadline_at is None else record.deadline_at
        return not record.phase.terminal and self._cluster.now() < until + self._abandoned_after

    async def _stored(self, token: str) -> Stored:
        stored = await self._store.read(token)
        if stored is None:
            raise PodgateError("job_not_found", f"no run has the token {token}", stage=STAGE)
        if stored.record.phase is Phase.REMOVED:
            raise PodgateError("job_removed", "The run was removed, and its output with it.", stage=STAGE)
        return stored


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    """Return the next piece, None at the end. Raises TimeoutError after a silence."""
    async with asyncio.timeout(IDLE_SECONDS):
        return await anext(pieces, None)


def _raise_unless_not_started(error: Refused) -> None:
    """400 says that the container has not started, or never will: then there is no output."""
    if error.status != 400:  # noqa: PLR2004  # HTTP's own number
        raise error
