"""The client of ``receive``.

Sends an archive by count, while the far side says how far it got, and compares the verdict.
"""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from launcher.cluster.errors import ClusterError
from launcher.cluster.port import ExecStream
from launcher.errors import PodgateError
from launcher.transfer.archive import Archive
from launcher.transfer.framing import Inbound, TransferBroken

VERDICT_SECONDS = 5.0
"""How long a verdict is waited for after sending broke: it was said before the stream went away, or never."""


@dataclass(frozen=True)
class SeedReceipt:
    """What the receiver counted and hashed, equal to what was sent: archive bytes, their SHA-256 in hex, entries."""

    bytes: int
    sha256: str
    entries: int


async def upload(stream: ExecStream, archive: Archive, length: int, *, idle_seconds: float) -> SeedReceipt:
    """Send one archive of exactly ``length`` bytes. Memory: about 3 MiB.

    Raises TransferBroken (try again), or PodgateError: the receiver's own refusal, or what reading the workspace came
    upon.
    """
    inbound = Inbound(stream, idle_seconds)
    sending = asyncio.create_task(_send(stream, archive, length))
    answering = asyncio.create_task(_verdict(inbound))
    try:
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            await _survive(sending, answering)
        verdict = await answering
        return _compared(verdict, archive, complete=sending.done() and sending.exception() is None)
    finally:
        for task in (sending, answering):
            task.cancel()
        await asyncio.gather(sending, answering, return_exceptions=True)


async def _survive(sending: "asyncio.Task[None]", answering: "asyncio.Task[dict[str, Any]]") -> None:
    """Sending ended first. When it broke, the far side's verdict, if there is one, is the better reason."""
    try:
        await sending
    except ClusterError as error:
        await asyncio.wait({answering}, timeout=VERDICT_SECONDS)
        if not answering.done() or answering.exception() is not None:
            raise TransferBroken(str(error)) from error


async def _send(stream: ExecStream, archive: Archive, length: int) -> None:
    await stream.send(length.to_bytes(8, "big"))
    async with aclosing(archive.frames()) as frames:
        async for frame in frames:
            await stream.send(bytes(frame))
    if archive.bytes != length:
        raise PodgateError("seed_failed", f"the archive has {archive.bytes} bytes instead of the {length} announced")
    await stream.send(archive.sha256)


async def _verdict(inbound: Inbound) -> dict[str, Any]:
    while True:
        line = await inbound.line()
        if "ok" in line:
            return line


def _compared(verdict: Mapping[str, Any], archive: Archive, *, complete: bool) -> SeedReceipt:
    if verdict["ok"] is not True:
        code = verdict.get("code")
        message = str(verdict.get("message", "the receiver gave no reason"))[:400]
        if verdict.get("cut") is True:
            raise TransferBroken(message)
        raise PodgateError("launch_superseded" if code == "launch_superseded" else "seed_failed", message, stage="seed")
    receipt = SeedReceipt(verdict.get("bytes", -1), verdict.get("sha256", ""), verdict.get("entries", -1))
    if not complete or (receipt.bytes, receipt.sha256) != (archive.bytes, archive.sha256.hex()):
        raise TransferBroken("the receiver's count and digest are not those of what was sent")
    return receipt
