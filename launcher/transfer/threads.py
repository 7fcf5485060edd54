"""Blocking work beside the event loop, never left running behind anyone's back.

What it uses is freed only when it has ended.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``work`` in a thread.

    A cancelled caller is told only when the thread has ended, so that it may free what was in use.
    """
    running = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _ended(running)
        raise


class Ahead(Generic[T]):
    """Keeps one call of ``work`` running ahead of whoever takes its values."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._running: asyncio.Future[T] | None = self._start()

    def _start(self) -> "asyncio.Future[T]":
        return asyncio.get_running_loop().run_in_executor(None, self._work)

    async def take(self) -> T:
        """Return the next value, and start on the one after it.

        Raises what ``work`` raised; then nothing runs any more.
        """
        running = self._running if self._running is not None else self._start()
        self._running = running
        value = await asyncio.shield(running)
        self._running = self._start()
        return value

    async def settle(self) -> None:
        """Wait until nothing runs; its value or error is dropped."""
        if self._running is not None:
            await _ended(self._running)


class Behind(Generic[T]):
    """Works values off in a thread, one at a time, while the next is being fetched."""

    def __init__(self, work: Callable[[T], None]) -> None:
        self._work = work
        self._running: asyncio.Future[None] | None = None

    async def put(self, value: T) -> None:
        """Start on ``value`` once the one before is done. Raises what the work on that one raised."""
        await self.drain()
        self._running = asyncio.get_running_loop().run_in_executor(None, self._work, value)

    async def drain(self) -> None:
        """Wait for the work under way. Raises what it raised."""
        if self._running is not None:
            await asyncio.shield(self._running)

    async def settle(self) -> None:
        """Wait until nothing runs; an error is dropped."""
        if self._running is not None:
            await _ended(self._running)


async def _ended(running: "asyncio.Future[Any]") -> None:
    await asyncio.wait([running])
    if not running.cancelled():
        running.exception()
