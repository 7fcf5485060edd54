"""How often a transfer is tried: once more for each thing that time heals, from a clean directory each time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from launcher.cluster.errors import ExecFailed, Throttled, Unreachable
from launcher.transfer.framing import TransferBroken

TRIES = 3
"""Each refused exec leaves a connection between API server and kubelet.

Each broken one costs the whole transfer again.
"""
FIRST_PAUSE_SECONDS = 0.5

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


async def tried(attempt: Callable[[], Awaitable[T]], *, sleep: Sleep = asyncio.sleep) -> T:
    """Run ``attempt`` up to three times, with growing pauses.

    Raises the last TransferBroken; other errors pass at once.
    """
    pause = FIRST_PAUSE_SECONDS
    for _ in range(TRIES - 1):
        try:
            return await _once(attempt)
        except TransferBroken:
            await sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  jitter is no secret
            pause *= 4
    return await _once(attempt)


async def _once(attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await attempt()
    except ExecFailed as error:
        raise TransferBroken(str(error), begun=error.started) from error
    except (Unreachable, Throttled) as error:
        raise TransferBroken(str(error), begun=False) from error
