"""How often a transfer is tried: once more for each thing that time heals, from a clean directory each time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from launcher.cluster.errors import ClusterError, ExecFailed, Throttled, Unreachable
from launcher.transfer.framing import TransferBroken

TRIES = 3
"""Each refused exec leaves a connection between API server and kubelet.

Each broken one costs the whole transfer again.
"""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0

OUTAGE_SECONDS = 90.0
"""How long an API server that nobody reaches is waited for, besides the tries: as long as any other request waits."""

NOBODY = (None, 429, 502, 503, 504)
"""Answers to the opening of an exec, or the lack of one, that come from no kubelet: nothing was tried yet."""

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


async def tried(attempt: Callable[[], Awaitable[T]], *, sleep: Sleep = asyncio.sleep) -> T:
    """Run ``attempt`` up to three times, with growing pauses; an outage of the API server is waited for, and no try.

    Raises the last TransferBroken; other errors pass at once.
    """
    loop = asyncio.get_running_loop()
    tries, pause, paused, outage_began = 1, FIRST_PAUSE_SECONDS, 0.0, None
    while True:
        try:
            return await _once(attempt)
        except TransferBroken as error:
            if _nobody_answered(error):
                outage_began = loop.time() if outage_began is None else outage_began
                if max(loop.time() - outage_began, paused) >= OUTAGE_SECONDS:
                    raise
            elif tries == TRIES:
                raise
            else:
                tries += 1
        seconds = pause * random.uniform(0.5, 1.0)  # noqa: S311  jitter is no secret
        await sleep(seconds)
        pause, paused = min(pause * 4, LONGEST_PAUSE_SECONDS), paused + seconds


def _nobody_answered(error: TransferBroken) -> bool:
    cause = error.__cause__
    return not error.begun and isinstance(cause, ClusterError) and cause.status in NOBODY


async def _once(attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await attempt()
    except ExecFailed as error:
        raise TransferBroken(str(error), begun=error.started) from error
    except (Unreachable, Throttled) as error:
        raise TransferBroken(str(error), begun=False) from error
