"""Where a reader of a container's log is, so that a connection that breaks loses no byte and doubles none. Pure.

The API serves a log from a whole second on. So the cursor counts the bytes it has seen since the first line of the
second it has reached, and skips as many when the log is opened there again: that is exact for any bytes, for lines with
equal times, and in the middle of a line. Lines later than all it has seen are never skipped, should the log have been
rotated meanwhile. Whatever carries no time is not the container's: servers put their own apologies into the stream.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

STAMP_BYTES = 64
"""A time as kubelets write it has 30 to 35 characters."""

NO_OUTPUT = b"unable to retrieve container logs for "
"""What the server answers, with 200, once the runtime has let go of the container."""


@dataclass
class LogCursor:
    """Reads a log with timestamps piece by piece. Memory is bounded whatever the lines' length.

    ``since`` is what to open the log with; None: from its beginning.
    """

    since: datetime | None = None
    gone: bool = False
    """The server said that it cannot get at the log any more."""
    _latest: tuple[datetime, int] | None = None
    _told: int = 0
    """Bytes handed out since the first line of the second ``since``."""
    _at: int = 0
    """The same of this connection: what lies before ``_told`` has been handed out already."""
    _head: bytes = b""
    _in_line: bool = False
    _ours: bool = False
    _counts: bool = False

    def open(self) -> None:
        """Begin anew at ``since``, after a connection has ended."""
        self._at, self._head, self._in_line = 0, b"", False

    def feed(self, piece: bytes) -> bytes:
        """Take a piece of the stream; return what of it is new output."""
        out: list[bytes] = []
        at = 0
        while at < len(piece):
            if not self._in_line:
                at = self._begin(piece, at)
                continue
            # By index: cutting each line off the piece would copy the rest of it as often as it has lines.
            newline = piece.find(b"\n", at) + 1
            end = newline or len(piece)
            out.append(self._content(piece[at:end]))
            at, self._in_line = end, not newline
        return b"".join(out)

    def close(self) -> None:
        """Note that the stream has ended: the beginning of a line without a time can only be the server's own."""
        self._notice(self._head)
        self._head = b""

    def _begin(self, piece: bytes, at: int) -> int:
        """Take the time at a line's beginning, as far as it has come; return where in the piece the line goes on."""
        known = len(self._head)
        head = self._head + piece[at : at + STAMP_BYTES - known]
        stamp, space, _ = head.partition(b" ")
        if not space and b"\n" not in head and len(head) < STAMP_BYTES:
            self._head = head
            return len(piece)
        time = _time(stamp) if space else None
        self._head, self._in_line, self._ours = b"", True, time is not None
        if time is None:
            self._notice(head)
            return at
        self._reach(time)
        return at + len(stamp) + 1 - known

    def _reach(self, at: tuple[datetime, int]) -> None:
        """Note a line's time: a new second is where the log would be opened again."""
        second, _ = at
        if self._latest is None or at > self._latest:
            # Nothing that late was handed out: if something was still to be skipped, the log was rotated meanwhile.
            self._latest, self._told = at, self._at
        if self.since is None or second > self.since:
            self.since, self._told, self._at = second, 0, 0
        # Two streams of one container may be written slightly out of order; a line from before would not come again.
        self._counts = second >= self.since

    def _content(self, content: bytes) -> bytes:
        if not self._ours:
            return b""
        if not self._counts:
            return content
        known = max(0, min(len(content), self._told - self._at))
        self._at += len(content)
        self._told = max(self._told, self._at)
        return content[known:]

    def _notice(self, head: bytes) -> None:
        self.gone = self.gone or head.startswith(NO_OUTPUT)


def _time(stamp: bytes) -> tuple[datetime, int] | None:
    """Return the second and its nanoseconds, which tell lines apart that microseconds would not."""
    try:
        at = datetime.fromisoformat(stamp.decode("ascii"))
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    fraction = _FRACTION.search(stamp)
    nanoseconds = int(fraction[1][:9].ljust(9, b"0")) if fraction else 0
    return at.astimezone(UTC).replace(microsecond=0), nanoseconds


_FRACTION = re.compile(rb"\.([0-9]+)")
