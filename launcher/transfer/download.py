"""The clients of ``send``: a run's result, and its workspace into a strict extraction.

The verdict comes in-band, at the end.
"""

import asyncio
import base64
import binascii
import builtins
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isolation.names import KEEPER
from launcher.cluster.port import ClusterPort, ExecStream
from launcher.errors import CODES, PodgateError
from launcher.transfer.framing import FRAME_LIMIT, Inbound, TransferBroken
from launcher.transfer.programs import CURRENT, argv
from launcher.transfer.retry import Sleep, tried
from launcher.transfer.threads import Behind

IDLE_SECONDS = 60.0
"""As ``bounds.transfer_idle``; callers with settings hand their own in."""
BATCH_BYTES = 512 << 10
"""What is gathered before a thread writes it out: one hop for hundreds of small files."""
EXCLUDED_NAMES = (
    "node_modules",
    ".venv",
    "venv",
    "__pycache__",
    ".pytest_cache",
    ".ruff_cache",
    ".mypy_cache",
    ".tox",
    ".vite",
    ".cache",
)
"""Directories and links of these names never come back, at any depth.

They are caches, large, and hold links to elsewhere.
"""


@dataclass(frozen=True)
class ResultRead:
    """A worker's result. ``content`` is None when there is none, or when it has more than the bytes asked for."""

    present: bool
    bytes: int
    content: builtins.bytes | None


@dataclass(frozen=True)
class Received:
    """A workspace that came whole.

    Archive bytes and digest as both sides counted them, and directories dropped by exclusions.
    """

    bytes: int
    sha256: str
    entries: int
    excluded: tuple[str, ...]


async def read_result(
    cluster: ClusterPort,
    namespace: str,
    pod: str,
    max_bytes: int,
    *,
    idle_seconds: float = IDLE_SECONDS,
    sleep: Sleep = asyncio.sleep,
) -> ResultRead:
    """Read ``output/result.json``, at most ``max_bytes``.

    Raises ``result_invalid`` (no regular file), ``collect_failed``.
    """
    config = {"root": CURRENT, "what": "result", "maxBytes": max_bytes}

    async def attempt() -> ResultRead:
        async with cluster.exec(namespace, pod, KEEPER, argv("send", config)) as stream:
            line = await Inbound(stream, idle_seconds).line(max_bytes * 2 + 4096)
        return _result(line, max_bytes)

    try:
        return await tried(attempt, sleep=sleep)
    except TransferBroken as error:
        raise PodgateError("collect_failed", f"the result could not be read: {error}", stage="collect") from error


def _result(line: Mapping[str, Any], max_bytes: int) -> ResultRead:
    _check_ok(line)
    present, size, content = line.get("present"), line.get("bytes"), line.get("content")
    if not isinstance(present, bool) or not isinstance(size, int) or size < 0:
        raise TransferBroken("a result's line without its fields")
    if not present or (content is None and size > max_bytes):
        return ResultRead(present, size, None)
    try:
        body = base64.b64decode(content if isinstance(content, str) else "?", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TransferBroken("a result that is not base64") from error
    if len(body) != size or size > max_bytes or hashlib.sha256(body).hexdigest() != line.get("sha256"):
        raise TransferBroken("the result's length or digest is wrong")
    return ResultRead(True, size, body)  # noqa: FBT003  a field of a value, named there


def workspace_argv(*, exclude: Sequence[str], max_bytes: int, max_entries: int) -> list[str]:
    """Return what is run in the keeper to send the workspace."""
    config = {
        "root": CURRENT, "what": "workspace", "excludeNames": list(EXCLUDED_NAMES), "excludePaths": list(exclude),
        "maxBytes": max_bytes, "maxEntries": max_entries,
    }  # fmt: skip
    return argv("send", config)


async def download(stream: ExecStream, take: Callable[[bytes], None], *, idle_seconds: float) -> Received:
    """Hand a workspace's archive to ``take`` (blocking, called in a thread, one call at a time).

    The sender's verdict is compared with what came.

    Memory: about 2 MiB. Raises TransferBroken (try again), PodgateError: the sender's own refusal, or what ``take``
    raised. Nothing that was taken is to be used unless this returns.
    """
    inbound = Inbound(stream, idle_seconds)
    _check_ok(await inbound.line())
    tally = _Tally(take)
    writing = Behind(tally.work)
    try:
        async for batch in _batches(inbound):
            await writing.put(batch)
        await writing.drain()
    finally:
        await writing.settle()
    return tally.compared(await inbound.line())


class _Tally:
    """Counts and hashes what is taken."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._digest = hashlib.sha256()
        self._bytes = 0

    def work(self, batch: bytes) -> None:
        """Take one batch. Blocking."""
        self._digest.update(batch)
        self._bytes += len(batch)
        self._take(batch)

    def compared(self, line: Mapping[str, Any]) -> Received:
        """Return what came, when the sender's last line says the same."""
        _check_ok(line)
        entries, excluded = line.get("entries"), line.get("excluded")
        if (line.get("bytes"), line.get("sha256")) != (self._bytes, self._digest.hexdigest()):
            raise TransferBroken("the sender's count and digest are not those of what came")
        if not isinstance(entries, int) or not isinstance(excluded, list):
            raise TransferBroken("a last line without its fields")
        return Received(self._bytes, self._digest.hexdigest(), entries, tuple(str(path) for path in excluded))


async def _batches(inbound: Inbound) -> AsyncIterator[bytes]:
    """Yield the frames' content, gathered to about 512 KiB, up to the empty frame."""
    gathered = bytearray()
    while length := int.from_bytes(await inbound.exactly(4), "big"):
        if length > FRAME_LIMIT:
            raise TransferBroken("a frame longer than any that is sent")
        while length:
            piece = await inbound.some(length)
            gathered += piece
            length -= len(piece)
        if len(gathered) >= BATCH_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _check_ok(line: Mapping[str, Any]) -> None:
    if line.get("ok") is True:
        return
    code, message = line.get("code"), str(line.get("message", "the sender gave no reason"))[:400]
    raise PodgateError(code if code in _SENDERS_CODES else "collect_failed", message, stage="collect")


_SENDERS_CODES = frozenset(code for code in CODES if code.startswith("extract_") or code == "result_invalid")
"""What a pod may say of itself; everything else would be a claim about us."""
