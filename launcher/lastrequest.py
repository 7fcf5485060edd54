"""A last request that is carried out also while its caller is being cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def carried_out(request: Coroutine[Any, Any, Any], *, within: float) -> str | None:
    """Carry a request out, for at most ``within`` seconds; return why it was not done, None when it was.

    For clean-up: its trouble must hide neither a result nor a cancellation. A second cancellation ends the wait, and
    the request goes on for as long as the loop does.
    """
    task = asyncio.ensure_future(request)
    done, _ = await asyncio.wait({task}, timeout=within)
    if not done:
        task.cancel()
        return f"not done in {within:g} s"
    error = task.exception()
    return None if error is None else str(error)
