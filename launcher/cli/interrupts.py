"""Ctrl-C, counted: the first asks for an orderly end, the second lets go."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class LetGoError(Exception):
    """The person pressed Ctrl-C twice: this process leaves, and the run goes on without it."""


class Interrupts:
    """A queue of interrupts. Tests call :meth:`press`; :meth:`installed` lets SIGINT and SIGTERM do it."""

    def __init__(self) -> None:
        self._pressed: asyncio.Queue[None] = asyncio.Queue()

    def press(self) -> None:
        """Count one."""
        self._pressed.put_nowait(None)

    async def next(self) -> None:
        """Wait for one."""
        await self._pressed.get()

    @contextmanager
    def installed(self) -> Iterator["Interrupts"]:
        """Take SIGINT and SIGTERM over for as long as the block runs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.press)
        try:
            yield self
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def supervised(
    work: Coroutine[Any, Any, T],
    interrupts: Interrupts,
    *,
    first: Callable[[], Awaitable[None]],
    second: Callable[[], None],
) -> T:
    """Do the work; on the first interrupt call ``first`` beside it, on the second call ``second`` and raise LetGoError.

    The work itself is not cancelled by an interrupt: it sees the end that ``first`` brings about. ``second`` may end
    the process, so that nothing has to be cancelled: a cancelled launch would clean up what the person wants to
    leave.
    """
    task = asyncio.ensure_future(work)
    helpers: list[asyncio.Future[None]] = []
    try:
        if not await _interrupted(task, interrupts, helpers):
            return await task
        helpers.append(asyncio.ensure_future(first()))
        if not await _interrupted(task, interrupts, helpers):
            return await task
        second()
        raise LetGoError
    finally:
        everything: list[asyncio.Future[Any]] = [task, *helpers]
        for each in everything:
            each.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def _interrupted(task: asyncio.Future[Any], interrupts: Interrupts, helpers: list[asyncio.Future[None]]) -> bool:
    pressed = asyncio.ensure_future(interrupts.next())
    helpers.append(pressed)
    await asyncio.wait({task, pressed}, return_when=asyncio.FIRST_COMPLETED)
    return not task.done()
