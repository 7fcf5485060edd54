"""Seeding: everything about workspace and input is decided before anything is created.

Sending then only carries it out.
"""

import asyncio
import errno
import json
import os
import stat
import weakref
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from isolation.limits import INPUT_BYTES
from isolation.names import GATE
from isolation.spec import JobSpec
from launcher.cluster.port import ClusterPort
from launcher.errors import PodgateError
from launcher.extract.rules import ENTRY_LIMIT
from launcher.extract.tree import LOOK, open_below
from launcher.settings import Settings
from launcher.transfer.archive import Archive, Source
from launcher.transfer.framing import TransferBroken
from launcher.transfer.programs import STORAGE, argv
from launcher.transfer.retry import Sleep, tried
from launcher.transfer.scan import READ, Listing, scan
from launcher.transfer.threads import in_thread
from launcher.transfer.upload import SeedReceipt, upload

__all__ = ["PreparedSeed", "SeedReceipt", "prepare", "send_seed"]

STAGE = "seed"
FIXED_ENTRIES = 3
"""``workspace``, ``input`` and the input's file, beside the workspace's own entries."""


@dataclass(frozen=True)
class PreparedSeed:
    """A seed that was looked at and fits: it holds the workspace open, so close it (also as a context manager).

    ``archive_bytes`` is the exact length of what will be sent, ``content_bytes`` the sum of the files' sizes,
    ``entries`` what the workspace holds.
    """

    source: Source
    archive_bytes: int
    content_bytes: int
    entries: int
    disk_bytes: int
    _held: ExitStack = field(repr=False)

    def __post_init__(self) -> None:
        # A caller that was cancelled while a thread prepared never sees the seed, so it must not need to close it.
        weakref.finalize(self, self._held.close)

    def close(self) -> None:
        """Let go of the workspace; again is harmless."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def prepare(spec: JobSpec, settings: Settings, *, bound_to_root: bool) -> PreparedSeed:
    """Look at workspace and input, completely. Blocking: seconds for 100,000 entries. Nothing is created.

    ``bound_to_root``: both must lie below ``settings.workspace_root``, reached without symbolic links (relative paths
    start there); otherwise they may lie anywhere. Raises ``workspace_{invalid,changed,too_large,unreadable}``,
    ``input_invalid``.
    """
    places = _Places(settings.workspace_root if bound_to_root else None, bound=bound_to_root)
    disk_bytes = spec.disk_mb << 20
    content = None if spec.input is None else _input(places, spec.input)
    if spec.workspace is None:
        return _prepared(Source(None, None, content), None, content, disk_bytes, ExitStack())
    with ExitStack() as held:
        workspace = places.open(spec.workspace, LOOK, "workspace_invalid", "the workspace")
        held.callback(os.close, workspace)
        listing = held.enter_context(closing(scan(workspace, disk_bytes=disk_bytes - len(content or b""))))
        return _prepared(Source(workspace, listing, content), listing, content, disk_bytes, held)


def _prepared(
    source: Source, listing: Listing | None, content: bytes | None, disk_bytes: int, held: ExitStack
) -> PreparedSeed:
    length = source.length()
    content_bytes = len(content or b"") + (listing.content_bytes if listing is not None else 0)
    entries = listing.entries if listing is not None else 0
    return PreparedSeed(source, length, content_bytes, entries, disk_bytes, held.pop_all())


class _Places:
    """Opens host paths, following no link where the spec came from someone else."""

    def __init__(self, root: Path | None, *, bound: bool) -> None:
        self._root = root
        self._bound = bound

    def open(self, path: Path, flags: int, code: str, what: str) -> int:
        """Open what a spec names. Raises PodgateError with ``code``."""
        try:
            return self._below(path, flags, code, what) if self._bound else self._anywhere(path, flags, code, what)
        except OSError as error:
            wrong = error.errno in {errno.ENOTDIR, errno.ELOOP}
            said = os.strerror(error.errno or 0).lower()
            reason = "is, or lies beneath, a symbolic link or a file of another kind" if wrong else said
            raise PodgateError(code, f"{what}: {reason}") from error

    def _anywhere(self, path: Path, flags: int, code: str, what: str) -> int:
        if os.path.realpath(path) == "/":
            raise PodgateError(code, f"{what} may not be the root of the file system")
        return os.open(os.path.abspath(path), flags)  # noqa: PTH100  resolve() would follow the very link to be refused

    def _below(self, path: Path, flags: int, code: str, what: str) -> int:
        root = self._checked_root(code)
        below = os.path.relpath(os.path.abspath(root / path), root)  # noqa: PTH100  likewise
        parts = tuple(os.fsencode(part) for part in Path(below).parts)
        if not parts or b".." in parts:
            raise PodgateError(code, f"{what} does not lie below the workspace root")
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            above = open_below(top, parts[:-1])
        finally:
            os.close(top)
        try:
            return os.open(parts[-1], flags, dir_fd=above)
        finally:
            os.close(above)

    def _checked_root(self, code: str) -> Path:
        if self._root is None:
            raise PodgateError(
                code, "no workspace root is set, so specs may not name host paths (PODGATE_WORKSPACE_ROOT)"
            )
        root = Path(os.path.abspath(self._root))  # noqa: PTH100  the operator's own path stays as written
        if os.path.realpath(root) == "/":
            raise PodgateError(code, "the workspace root may not be /")
        return root


def _input(places: _Places, path: Path) -> bytes:
    fd = places.open(path, READ, "input_invalid", "the input")
    try:
        content = _read_regular(fd)
    except OSError as error:
        raise PodgateError("input_invalid", f"the input: {os.strerror(error.errno or 0)}") from error
    finally:
        os.close(fd)
    _check_json(content)
    return content


def _read_regular(fd: int) -> bytes:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise PodgateError("input_invalid", "the input is not a regular file")
    content = bytearray()
    while piece := os.read(fd, INPUT_BYTES + 1 - len(content)):
        content += piece
    if len(content) > INPUT_BYTES:
        raise PodgateError("input_invalid", f"the input has more than {INPUT_BYTES >> 10} KiB")
    return bytes(content)


def _check_json(content: bytes) -> None:
    try:
        json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PodgateError("input_invalid", "the input is not JSON in UTF-8") from error


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")


async def send_seed(
    cluster: ClusterPort,
    namespace: str,
    pod: str,
    prepared: PreparedSeed,
    *,
    epoch: int,
    idle_seconds: float,
    sleep: Sleep = asyncio.sleep,
) -> SeedReceipt:
    """Put a seed into the gate, in place under ``epoch``.

    The caller bounds the whole; ``idle_seconds`` bounds each silence.

    A broken transfer starts again from a clean directory, up to three times in all. Raises ``seed_failed``,
    ``launch_superseded`` (a receiver of a newer epoch was there), and what reading the workspace comes upon:
    ``workspace_changed``, ``workspace_unreadable``.
    """
    command = argv("receive", _config(prepared, epoch))

    async def attempt() -> SeedReceipt:
        archive = await in_thread(Archive, prepared.source)
        async with cluster.exec(namespace, pod, GATE, command) as stream:
            return await upload(stream, archive, prepared.archive_bytes, idle_seconds=idle_seconds)

    try:
        return await tried(attempt, sleep=sleep)
    except TransferBroken as error:
        raise PodgateError("seed_failed", f"the seed did not arrive whole: {error}", stage=STAGE) from error


def _config(prepared: PreparedSeed, epoch: int) -> dict[str, Any]:
    return {"root": STORAGE, "epoch": epoch, "maxBytes": prepared.disk_bytes, "maxEntries": ENTRY_LIMIT + FIXED_ENTRIES}
