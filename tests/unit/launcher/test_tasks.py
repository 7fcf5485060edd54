"""Work beside work: whose error comes out, and that nothing is left running."""

import asyncio

import pytest

from launcher.tasks import both, run_beside

pytestmark = pytest.mark.anyio


class Ended:
    """Notes how a coroutine that would wait for ever ended."""

    def __init__(self) -> None:
        self.cancelled = False

    async def forever(self):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def value(answer):
    await asyncio.sleep(0)
    return answer


async def failing(error):
    await asyncio.sleep(0)
    raise error


async def test_the_main_work_ends_its_guards():
    guard = Ended()

    assert await run_beside(value(3), guard.forever()) == 3
    assert guard.cancelled


async def test_a_guard_that_fails_ends_the_main_work_with_its_own_error():
    work = Ended()

    with pytest.raises(LookupError):
        await run_beside(work.forever(), failing(LookupError()))
    assert work.cancelled


async def test_a_guard_that_returns_says_nothing():
    assert await run_beside(value(3), value(None)) == 3


async def test_an_error_of_the_main_work_comes_out_as_it_is():
    guard = Ended()

    with pytest.raises(ValueError, match="mine"):
        await run_beside(failing(ValueError("mine")), guard.forever())
    assert guard.cancelled


async def test_cancelling_from_outside_ends_everything():
    work, guard = Ended(), Ended()
    running = asyncio.create_task(run_beside(work.forever(), guard.forever()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert work.cancelled
    assert guard.cancelled


async def test_both_results_come_back():
    assert await both(value(1), value("two")) == (1, "two")


async def test_the_first_failure_of_both_ends_the_other():
    other = Ended()

    with pytest.raises(LookupError):
        await both(failing(LookupError()), other.forever())
    assert other.cancelled
