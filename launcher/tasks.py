"""Running pieces of work beside one another, with errors that come out as they are."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


async def run_beside(main: Coroutine[Any, Any, T], *guards: Coroutine[Any, Any, Any]) -> T:
    """Run ``main`` to its end while ``guards`` run beside it; a guard that fails cancels it, and its error is raised.

    A guard that returns is done and says nothing. Nothing is left running afterwards, however this ends; when both end
    at the same moment, ``main``'s own end counts.
    """
    work = asyncio.ensure_future(main)
    pending: set[asyncio.Future[Any]] = {work, *(asyncio.ensure_future(guard) for guard in guards)}
    everything = tuple(pending)
    try:
        while not work.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                _raise_first(done)
        return work.result()
    finally:
        await _end(*everything)


async def both(one: Coroutine[Any, Any, T], other: Coroutine[Any, Any, U]) -> tuple[T, U]:
    """Run two pieces of work at once and return both results; the first failure ends the other and is raised."""
    first, second = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        await asyncio.wait({first, second}, return_when=asyncio.FIRST_EXCEPTION)
        _raise_first({task for task in (first, second) if task.done()})
        return first.result(), second.result()
    finally:
        await _end(first, second)


def _raise_first(done: set[asyncio.Future[Any]]) -> None:
    for task in done:
        if task.exception() is not None:
            task.result()


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
