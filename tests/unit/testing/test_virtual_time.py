"""Time passes only when nothing else can happen."""

import asyncio
import time

import pytest

from launcher.testing.virtual_time import EPOCH, LoopClock

pytestmark = pytest.mark.anyio


async def test_an_hour_passes_at_once() -> None:
    began, clock = time.monotonic(), LoopClock()
    await clock.sleep(3600)
    assert (clock.now() - EPOCH).total_seconds() >= 3600
    assert time.monotonic() - began < 5


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    woken = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    await asyncio.gather(*[sleeper(seconds) for seconds in (3.0, 1.0, 2.0)])
    assert woken == [1.0, 2.0, 3.0]


async def test_a_timeout_does_not_overtake_work_in_a_thread() -> None:
    async with asyncio.timeout(1):
        assert await asyncio.to_thread(_slow) == "done"


async def test_a_timeout_ends_what_waits_for_ever() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1_000_000):
            await asyncio.Event().wait()


def _slow() -> str:
    time.sleep(0.2)
    return "done"
