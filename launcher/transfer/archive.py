"""The seed's archive, made from a listing as it is read: its exact length is known before its first byte.

Layout: ``workspace/…`` and ``input/…``, pax headers, modes 0644 and 0755. A file is compared with the listing when it
is opened and again when it was read; a difference ends the archive by name.
"""

import hashlib
import os
import tarfile
from collections.abc import AsyncGenerator, Generator, Iterator

from launcher.errors import PodgateError
from launcher.extract.rules import shown
from launcher.extract.tree import open_below
from launcher.transfer.scan import READ, Listed, Listing, vanished_or_unreadable
from launcher.transfer.threads import Ahead

BLOCK = 512
FRAME_BYTES = 128 << 10
"""What one send takes: as fast as any larger (measured), and far below what makes a server close the stream."""
BATCH_BYTES = 512 << 10
"""What one hop into a thread reads: hundreds of small files, or a piece of a large one. Two of them are in flight."""
READ_BYTES = 256 << 10
END = bytes(2 * BLOCK)
_MTIME_LIMIT = 8**11 - 1
_TYPES = {b"f": tarfile.REGTYPE, b"d": tarfile.DIRTYPE, b"l": tarfile.SYMTYPE}


class Source:
    """What goes into an archive: an open workspace with its listing (either may be absent), and the input's content."""

    def __init__(self, workspace: int | None, listing: Listing | None, content: bytes | None) -> None:
        self._workspace = workspace
        self._listing = listing
        self._content = content

    def length(self) -> int:
        """Return the archive's exact length in bytes, without reading any content."""
        return len(END) + sum(len(head) + -(-size // BLOCK) * BLOCK for head, size, _ in self._heads())

    def pieces(self) -> Generator[bytes, None, None]:
        """Yield the archive. Blocking. Raises ``workspace_changed``, ``workspace_unreadable``."""
        reader = _Reader(-1 if self._workspace is None else self._workspace)
        try:
            for head, size, entry in self._heads():
                yield head
                if entry is not None and entry.kind == b"f":
                    yield from reader.content(entry)
                elif size and self._content is not None:
                    yield self._content
                yield bytes(-size % BLOCK)
            yield END
        finally:
            reader.close()

    def _heads(self) -> Iterator[tuple[bytes, int, Listed | None]]:
        yield _header("workspace", b"d"), 0, None
        for entry in self._listing or ():
            name = "workspace/" + entry.path.decode("utf-8")
            yield _header(name, entry.kind, entry), entry.size, entry
        yield _header("input", b"d"), 0, None
        if self._content is not None:
            yield (
                _header("input/input.json", b"f", Listed(b"f", b"", size=len(self._content))),
                len(self._content),
                None,
            )


def _header(name: str, kind: bytes, entry: Listed | None = None) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = _TYPES[kind]
    info.mode = 0o755 if kind == b"d" else 0o644
    if entry is not None:
        info.size = entry.size
        info.mtime = min(max(entry.mtime_ns // 10**9, 0), _MTIME_LIMIT)
        info.mode = 0o755 if entry.executable else info.mode
        info.linkname = entry.target.decode("utf-8")
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


class _Reader:
    """Reads listed files by descriptors.

    The directory last used stays open, since a listing goes directory by directory.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._above: bytes | None = None
        self._fd = -1

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def content(self, entry: Listed) -> Iterator[bytes]:
        """Yield a file's content, exactly as long as it was listed."""
        try:
            yield from self._content(entry)
        except OSError as error:
            raise vanished_or_unreadable(error, entry.path) from error

    def _content(self, entry: Listed) -> Iterator[bytes]:
        above, _, name = entry.path.rpartition(b"/")
        fd = os.open(name, READ, dir_fd=self._directory(above))
        try:
            if not entry.same(os.fstat(fd)):
                raise _changed(entry)
            left = entry.size
            while left:
                piece = os.read(fd, min(left, READ_BYTES))
                if not piece:
                    raise _changed(entry)
                left -= len(piece)
                yield piece
            if not entry.same(os.fstat(fd)):
                raise _changed(entry)
        finally:
            os.close(fd)

    def _directory(self, path: bytes) -> int:
        if path != self._above:
            self.close()
            self._above = None
            self._fd = open_below(self._root, tuple(path.split(b"/")) if path else ())
            self._above = path
        return self._fd


def _changed(entry: Listed) -> PodgateError:
    return PodgateError("workspace_changed", f"changed while it was read: {shown(entry.path)}")


class Archive:
    """One pass over a source.

    Batches read in a thread, one ahead of the sender, with the digest of what was handed out.
    """

    def __init__(self, source: Source) -> None:
        self._pieces = source.pieces()
        self._left = bytearray()
        self._digest = hashlib.sha256()
        self.bytes = 0

    @property
    def sha256(self) -> bytes:
        """Return the digest of all batches so far."""
        return self._digest.digest()

    def batch(self) -> bytes:
        """Return the next part of at most 512 KiB; empty at the end. Blocking."""
        gathered = self._left
        while len(gathered) < BATCH_BYTES:
            piece = next(self._pieces, None)
            if piece is None:
                break
            gathered += piece
        batch = bytes(memoryview(gathered)[:BATCH_BYTES])
        del gathered[: len(batch)]
        self._digest.update(batch)
        self.bytes += len(batch)
        return batch

    async def frames(self) -> AsyncGenerator[memoryview, None]:
        """Yield the archive in frames of at most 128 KiB. Close it (``aclosing``): a thread may be reading ahead."""
        ahead = Ahead(self.batch)
        try:
            while batch := await ahead.take():
                for at in range(0, len(batch), FRAME_BYTES):
                    yield memoryview(batch)[at : at + FRAME_BYTES]
        finally:
            await ahead.settle()
            self._pieces.close()
