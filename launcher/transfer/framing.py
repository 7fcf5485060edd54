"""The receiving half of an exec's stdout.

Lines and counted bytes, out of pieces of any size, each with an idle deadline.
"""

import asyncio
import json
from typing import Any

from launcher.cluster.port import ExecStream

FRAME_LIMIT = 1 << 20
"""Bytes of one frame; the sender makes at most 256 KiB, and a larger length is damage (or a pod that lies)."""
LINE_LIMIT = 8 << 20
"""Bytes of one line: 1,000 excluded paths of up to 4,000 bytes, escaped, are the longest that is sent."""


class TransferBroken(Exception):
    """The stream was cut, stalled, or said what our program never says.

    Nothing that came is to be used; a new try may succeed.

    ``begun`` is False when not one byte of ours can have reached a process.
    """

    def __init__(self, message: str, *, begun: bool = True) -> None:
        super().__init__(message)
        self.begun = begun


class Inbound:
    """Reads an exec's stdout. Memory: one piece of the stream, or one line."""

    def __init__(self, stream: ExecStream, idle_seconds: float) -> None:
        self._stream = stream
        self._idle = idle_seconds
        self._piece = memoryview(b"")

    async def some(self, limit: int) -> memoryview:
        """Return 1 to ``limit`` bytes.

        Raises TransferBroken at the stream's end, or after the idle time without a byte.
        """
        while not self._piece:
            self._piece = memoryview(await self._next())
        taken, self._piece = self._piece[:limit], self._piece[limit:]
        return taken

    async def exactly(self, length: int) -> bytes:
        """Return ``length`` bytes; for short things."""
        body = bytearray()
        while len(body) < length:
            body += await self.some(length - len(body))
        return bytes(body)

    async def line(self, limit: int = LINE_LIMIT) -> dict[str, Any]:
        """Return the next line, a JSON object. Raises TransferBroken when it is none, or longer than ``limit``."""
        body = bytearray()
        while True:
            piece = bytes(await self.some(limit))
            head, newline, rest = piece.partition(b"\n")
            body += head
            if len(body) > limit:
                raise TransferBroken("a line longer than any that is sent")
            if newline:
                self._piece = memoryview(rest + bytes(self._piece))
                return _object(bytes(body))

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._idle):
                piece = await self._stream.receive()
        except TimeoutError:
            raise TransferBroken(f"nothing came for {self._idle:g} s") from None
        if piece is None:
            raise TransferBroken(ended(self._stream))
        return piece


def ended(stream: ExecStream) -> str:
    """Return why a stream may have ended, as far as the server or the program said so.

    It explains, and proves nothing.
    """
    status = stream.status
    said = (
        [part for part in (status.reason, status.message) if part] if status is not None and not status.success else []
    )
    lines = stream.stderr.decode("utf-8", "replace").strip().splitlines()
    return ": ".join(["the stream ended early", *said, *lines[-1:]])[:400]


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise TransferBroken("a line that is no JSON object")
    return value
