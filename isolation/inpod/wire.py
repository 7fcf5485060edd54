"""Part: JSON and HTTP for programs that must start fast.

The packages ``json``, ``http`` and ``socket`` cost about half a second at a tenth of a CPU; what follows costs nothing to import.
Programs name this part with an import, and ``source()`` puts its text in that import's place.
"""

from __future__ import annotations

import errno
import time
from _json import encode_basestring_ascii, make_scanner
from _socket import AF_INET, SOCK_CLOEXEC, SOCK_STREAM, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ANSWER_LIMIT = 64 << 10
"""Bytes of an HTTP answer; the prover's state is below 4 KiB."""


class _Plain:
    """What the scanner is asked for: plain values, strictly, and no NaN."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = None
    memo: dict[str, str] = {}


_scan = make_scanner(_Plain())  # type: ignore[arg-type]  # the stub names its own class; any object with these fields will do


def parse(text: str) -> Any:
    """Return the value of one JSON text. Raises ValueError for anything else, whatever it is."""
    text = text.strip()
    try:
        value, end = _scan(text, 0)
    except (StopIteration, RecursionError, TypeError) as error:
        raise ValueError("not a JSON text") from error
    if end != len(text):
        raise ValueError("more than one JSON text")
    return value


def parse_object(text: str) -> dict[str, Any]:
    """Return one JSON object. Raises ValueError for anything else."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def dump(value: object) -> str:
    """Return compact JSON; keys in their own order, floats to the millisecond."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        return "{" + ",".join(dump(str(key)) + ":" + dump(item) for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dump, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(round(value, 3)) if isinstance(value, (int, float)) else dump(str(value))


def ask(port: int, request: str, body: str = "", seconds: float = 1.0) -> tuple[int, dict[str, Any]]:
    """Send ``METHOD /path`` to this pod's own port; return the status and the JSON object that came back.

    Raises OSError when nothing answers within ``seconds`` in total, ValueError when the answer is not ours.
    """
    until = time.monotonic() + seconds
    link = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC)
    try:
        link.settimeout(seconds)
        link.connect(("127.0.0.1", port))
        head = "%s HTTP/1.1\r\nHost: pod\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (
            request,
            len(body.encode()),
        )
        link.sendall((head + body).encode())
        answer = _read_all(link, until)
    finally:
        link.close()
    top, _, content = answer.partition(b"\r\n\r\n")
    status = top.split(b" ", 2)[1:2]
    if not top.startswith(b"HTTP/1.1 ") or not status or not status[0].isdigit():
        raise ValueError("not an HTTP answer")
    return int(status[0]), parse_object(content.decode("utf-8"))


def _read_all(link: socket, until: float) -> bytes:
    answer = b""
    while len(answer) <= ANSWER_LIMIT:
        left = until - time.monotonic()
        if left <= 0:
            raise OSError(errno.ETIMEDOUT, "no whole answer in time")
        link.settimeout(left)
        piece = link.recv(16 << 10)
        if not piece:
            return answer
        answer += piece
    raise ValueError("an answer too long to be ours")
