"""Tells the launcher how the proof goes, and takes its marker; ends when stdin ends.

Config: ``root``, ``healthPort``. One JSON line on stdout whenever a round more has ended, {"waiting": …} while the
prover cannot be reached. A line on stdin is the marker; it is answered with {"marker": "written"} or {"marker":
"refused", "message": …}.
"""

from __future__ import annotations

import os
import select
import sys
import time

from isolation.inpod.wire import ask, dump, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

POLL_SECONDS = 0.1
PROVER_SECONDS = 0.5
WAITING_SECONDS = 1.0
"""Between two lines that say the same waiting."""
MARKER_LIMIT = 4096
UNREAD_LIMIT = 64 << 10


class Out:
    """Stdout that never blocks: state lines are dropped while nobody reads, answers to a marker are kept."""

    def __init__(self) -> None:
        os.set_blocking(1, False)
        self._unsent = b""

    def say(self, line: dict[str, Any], *, keep: bool = False) -> None:
        """Queue a line and send what can be sent. Raises OSError when the reader is gone."""
        if keep or not self._unsent:
            self._unsent += dump(line).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what the pipe takes."""
        try:
            sent = os.write(1, self._unsent) if self._unsent else 0
        except BlockingIOError:
            return
        self._unsent = self._unsent[sent:]


class In:
    """Stdin by lines, without ever waiting."""

    def __init__(self) -> None:
        os.set_blocking(0, False)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._got = b""

    def wait(self, seconds: float) -> bool:
        """Wait for input; False when there will be none any more."""
        if not self._poll.poll(max(0.0, seconds) * 1000):
            return True
        try:
            piece = os.read(0, UNREAD_LIMIT)
        except BlockingIOError:
            return True
        self._got = (self._got + piece)[:UNREAD_LIMIT]
        return bool(piece)

    def line(self) -> Optional[bytes]:
        """Return the next whole line, None when there is none yet."""
        head, end, rest = self._got.partition(b"\n")
        if not end:
            return None
        self._got = rest
        return head


class View:
    """Looks at the prover and says what is new."""

    def __init__(self, port: int, out: Out) -> None:
        self._port, self._out = port, out
        self._seen: object = None
        self._waited_at = float("-inf")

    def look(self) -> None:
        """Ask once, and say the state when it has changed."""
        try:
            _, state = ask(self._port, "GET /state", "", PROVER_SECONDS)
        except (OSError, ValueError) as error:
            return self._waiting(str(error))
        news = (state.get("startId"), state.get("rounds"), state.get("verdict"), state.get("released"))
        if news != self._seen:
            self._seen = news
            self._out.say(state)
        return None

    def _waiting(self, why: str) -> None:
        if time.monotonic() - self._waited_at >= WAITING_SECONDS:
            self._waited_at = time.monotonic()
            self._seen = None
            self._out.say({"waiting": why})


def take(root: str, line: bytes) -> dict[str, Any]:
    """Put the marker in place by rename; return what to answer."""
    if len(line) > MARKER_LIMIT:
        return {"marker": "refused", "message": "longer than %d bytes" % MARKER_LIMIT}
    try:
        parse_object(line.decode("utf-8"))
        write_whole(os.path.join(root, ".marker"), line)
    except (OSError, ValueError) as error:
        return {"marker": "refused", "message": str(error)}
    return {"marker": "written"}


def write_whole(path: str, body: bytes) -> None:
    """Write a file that is there whole or not at all."""
    fresh = "%s.%d" % (path, os.getpid())
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
    try:
        os.write(descriptor, body)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(fresh, path)


def follow(config: dict[str, Any]) -> None:
    """Look and listen until stdin ends. Raises OSError when stdout's reader is gone."""
    heard, out = In(), Out()
    view, next_look, goes_on = View(config["healthPort"], out), 0.0, True
    while goes_on:
        if time.monotonic() >= next_look:
            view.look()
            next_look = time.monotonic() + POLL_SECONDS
        goes_on = heard.wait(next_look - time.monotonic())
        line = heard.line()
        while line is not None:
            if line.strip():
                out.say(take(config["root"], line), keep=True)
            line = heard.line()
        out.flush()


def main() -> None:
    """Run; a broken stream is an end like any other."""
    try:
        follow(parse_object(sys.argv[1]))
    except OSError:
        os._exit(0)


if __name__ == "__main__":
    main()
