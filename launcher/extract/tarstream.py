"""A strict reader of the one kind of tar that our sender writes: ustar headers with small extended ones, nothing else.

It is pushed: bytes go in as they come, entries and their content come out at a sink. Its memory is one header and one
extended header (64 KiB). Everything unusual is refused by name rather than guessed: sparse files, GNU long names,
global headers, prefixes, base-256 numbers.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from launcher.errors import PodgateError
from launcher.extract.rules import shown

BLOCK = 512
EXTENDED_LIMIT = 64 << 10
"""Bytes of one extended header: two long paths fit in many times over."""
NUMBER_DIGITS = 20
"""A decimal longer than this is no size, and converting it costs more than it is worth."""
_ZERO = bytes(BLOCK)
_END_BLOCKS = 2
_KINDS: dict[bytes, Literal["file", "directory", "symlink"]] = {
    b"0": "file",
    b"\0": "file",
    b"5": "directory",
    b"2": "symlink",
}
_SPECIAL = {
    b"1": "a hard link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a fifo",
    b"7": "a special file",
    b"S": "a sparse file",
}
_KEYS = (b"path", b"linkpath", b"size", b"mtime")


@dataclass(frozen=True)
class Entry:
    """One entry as the archive says it; nothing about it has been believed yet."""

    kind: Literal["file", "directory", "symlink"]
    path: bytes
    size: int
    executable: bool
    mtime: int
    target: bytes


class Sink(Protocol):
    """What takes the entries. Each is begun, written in pieces that add up to its size, and ended."""

    def begin(self, entry: Entry) -> None:
        """Take an entry; raises PodgateError when it may not be."""

    def write(self, data: memoryview) -> None:
        """Take the next bytes of the entry's content."""

    def end(self) -> None:
        """Close the entry."""

    def header(self, size: int) -> None:
        """Count bytes that are no content: extended headers."""


def malformed(what: str) -> PodgateError:
    """Return the error for an archive that our sender cannot have written."""
    return PodgateError("collect_failed", f"the archive is damaged: {what}")


class TarStream:
    """Takes an archive in pieces of any size."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._pending = bytearray()
        self._wanted = BLOCK
        self._extended_size = 0
        self._records: dict[bytes, bytes] = {}
        self._content = 0
        self._padding = 0
        self._zeros = 0

    def feed(self, data: memoryview) -> None:
        """Take the next bytes. Raises PodgateError at the first thing that may not be."""
        while data:
            if self._content:
                data = self._feed_content(data)
            elif self._padding:
                skipped = min(self._padding, len(data))
                self._padding -= skipped
                data = data[skipped:]
            elif self._zeros == _END_BLOCKS:
                raise malformed("bytes behind its end")
            else:
                data = self._feed_header(data)

    def finish(self) -> None:
        """Check that the archive ended where an archive ends."""
        if self._zeros != _END_BLOCKS or self._pending:
            raise malformed("it has no end")

    def _feed_content(self, data: memoryview) -> memoryview:
        piece = data[: self._content]
        self._sink.write(piece)
        self._content -= len(piece)
        if not self._content:
            self._sink.end()
        return data[len(piece) :]

    def _feed_header(self, data: memoryview) -> memoryview:
        if not self._pending and len(data) >= self._wanted:
            block, rest = bytes(data[: self._wanted]), data[self._wanted :]
        else:
            taken = min(self._wanted - len(self._pending), len(data))
            self._pending += data[:taken]
            rest = data[taken:]
            if len(self._pending) < self._wanted:
                return rest
            block = bytes(self._pending)
            self._pending.clear()
        self._block(block)
        return rest

    def _block(self, block: bytes) -> None:
        if self._extended_size:
            self._records = _records(block[: self._extended_size])
            self._extended_size, self._wanted = 0, BLOCK
        elif block == _ZERO and not self._records:
            self._zeros += 1
        elif self._zeros or (self._records and block[156:157] == b"x"):
            raise malformed("a header in the wrong place")
        else:
            self._header(block)

    def _header(self, block: bytes) -> None:
        if _octal(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
            raise malformed("a header's checksum is wrong")
        flag, size = block[156:157], _octal(block[124:136])
        if flag == b"x":
            if not 0 < size <= EXTENDED_LIMIT:
                raise malformed("an extended header of a size that may not be")
            self._sink.header(size)
            self._extended_size, self._wanted = size, -(-size // BLOCK) * BLOCK
            return
        self._begin(_entry(block, flag, size, self._records))

    def _begin(self, entry: Entry) -> None:
        self._records = {}
        self._sink.begin(entry)
        self._content, self._padding = entry.size, -entry.size % BLOCK
        if not entry.size:
            self._sink.end()


def _entry(block: bytes, flag: bytes, size: int, records: dict[bytes, bytes]) -> Entry:
    path = records.get(b"path", _text(block[:100]))
    if flag not in _KINDS:
        raise PodgateError("extract_special", f"{_SPECIAL.get(flag, 'an entry of an unknown kind')}: {shown(path)}")
    if _text(block[345:500]):
        raise malformed("a header with a prefix")
    size = _decimal(records[b"size"]) if b"size" in records else size
    kind = _KINDS[flag]
    if kind != "file" and size:
        raise PodgateError("extract_size_limit", f"a {kind} with a body: {shown(path)}")
    if kind == "directory" and path.endswith(b"/"):
        path = path[:-1]
    target = records.get(b"linkpath", _text(block[157:257]))
    return Entry(kind, path, size, bool(_octal(block[100:108]) & 0o100), _octal(block[136:148]), target)


def _records(body: bytes) -> dict[bytes, bytes]:
    """Return the records of an extended header. Only keys that our sender writes are let through, each once."""
    found: dict[bytes, bytes] = {}
    while body:
        digits, space, _ = body[: NUMBER_DIGITS + 1].partition(b" ")
        length = _decimal(digits) if space else 0
        if not len(digits) + 1 < length <= len(body) or body[length - 1 : length] != b"\n":
            raise malformed("an extended header's lengths are wrong")
        key, equals, value = body[len(digits) + 1 : length - 1].partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise PodgateError("extract_special", "a sparse file")
        if not equals or key not in _KEYS or key in found:
            raise malformed("an extended header with a key that is never sent")
        found[key] = value
        body = body[length:]
    return found


def _text(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    if digits.strip(b"01234567"):
        raise malformed("a header with a bad number")
    return int(digits, 8) if digits else 0


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > NUMBER_DIGITS:
        raise malformed("an extended header with a bad number")
    return int(digits)
