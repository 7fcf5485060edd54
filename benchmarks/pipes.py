"""Programs beside this one: none of them outlives the call that started it."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence

SAID_LIMIT = 500
"""Characters of a failed program's last words that an error repeats."""


async def piped(source: Sequence[str], sink: Sequence[str]) -> None:
    """Run ``source | sink``; either failing is a RuntimeError. A cancelled caller leaves neither behind."""
    read, write = os.pipe()
    started: list[Process] = []
    try:
        try:
            started.append(await asyncio.create_subprocess_exec(*source, stdin=DEVNULL, stdout=write))
            started.append(await asyncio.create_subprocess_exec(*sink, stdin=read, stdout=DEVNULL))
        finally:
            os.close(read)
            os.close(write)
        codes = await asyncio.gather(*(each.wait() for each in started))
    finally:
        await _ended(started)
    if any(codes):
        raise RuntimeError(f"{source[0]} | {sink[0]} ended with {codes}")


async def said(*command: str, stdin: str = "", seconds: float) -> str:
    """Run a program and return what it printed. Raises RuntimeError with its last words, TimeoutError."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(stdin.encode())
    finally:
        await _ended([process])
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {err.decode(errors='replace').strip()[-SAID_LIMIT:]}")
    return out.decode()


async def _ended(processes: Sequence[Process]) -> None:
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()
