"""Time that passes only when nothing else can happen: an event loop for tests that wait for minutes in milliseconds.

Under :class:`VirtualLoop`, ``asyncio.sleep``, ``asyncio.timeout`` and ``loop.time()`` all follow virtual time. When no
callback is ready, no thread of the default executor works and no file is readable, the loop jumps to its next timer. So
a test's course does not depend on the machine's speed. Tests that speak with processes or sockets want the ordinary
loop.
"""

import asyncio
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""What ``LoopClock.now`` says when the loop's time is 0: a whole second, so that times in tests read well."""

_THREADS_WORK = 0.001
"""Seconds of real time between two looks while a thread works."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._virtual = 0.0
        super().__init__(_JumpingSelector(self._jump, self._threads_work))

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual

    def _jump(self, seconds: float) -> None:
        self._virtual += seconds

    def _threads_work(self) -> bool:
        # Nothing public says whether a pool has work under way. A finished thread has queued its callback before it
        # counts as idle, so no result can be overtaken by a jump.
        executor: Any = getattr(self, "_default_executor", None)
        if executor is None:
            return False
        idle = executor._idle_semaphore._value  # noqa: SLF001 - see above
        return bool(executor._work_queue.qsize()) or idle < len(executor._threads)  # noqa: SLF001 - see above


class _JumpingSelector(selectors.SelectSelector):
    """Returns at once where a selector would wait for a timer, and moves the time instead."""

    def __init__(self, jump: Callable[[float], None], threads_work: Callable[[], bool]) -> None:
        super().__init__()
        self._jump = jump
        self._threads_work = threads_work

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        while self._threads_work():
            if ready := super().select(_THREADS_WORK):
                return ready
        if ready := super().select(0):
            return ready
        self._jump(timeout)
        return []


class LoopClock:
    """The running loop's time, as the launcher takes it: ``now``, ``monotonic``, ``sleep``.

    Virtual under VirtualLoop.
    """

    def __init__(self, epoch: datetime = EPOCH) -> None:
        self._epoch = epoch
        self._skew = timedelta(0)

    def monotonic(self) -> float:
        """Seconds of the running loop."""
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """The server's clock, UTC."""
        return self._epoch + timedelta(seconds=self.monotonic()) + self._skew

    async def sleep(self, seconds: float) -> None:
        """Wait by the running loop's time."""
        await asyncio.sleep(seconds)

    def step(self, seconds: float) -> None:
        """Set the server's clock forward or back, as an administrator would; the monotonic clock is not moved."""
        self._skew += timedelta(seconds=seconds)
