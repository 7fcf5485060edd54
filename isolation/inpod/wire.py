"""Part: JSON and HTTP for programs that must start fast.

The packages ``json``, ``http`` and ``socket`` cost about half a second at a tenth of a CPU; these functions nothing.
Programs name this part with an import, and ``source()`` puts its text in that import's place.
"""

from __future__ import annotations

import errno
import time
from _socket import AF_INET, SOCK_CLOEXEC, SOCK_STREAM, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

QUOTE = '"'
ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
WORDS = {"null": None, "true": True, "false": False}
DEPTH_LIMIT = 32
DIGITS_LIMIT = 64
ANSWER_LIMIT = 64 << 10
"""Bytes of an HTTP answer; the prover's state is below 4 KiB."""


class _Reader:
    """Reads one JSON text from its begin.

    Anything can come in: whatever is no JSON raises ValueError, and nothing else.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def whole(self) -> Any:
        """Return the one value that the text is."""
        value = self._value(0)
        if self._next():
            raise ValueError("more than one JSON text")
        return value

    def _next(self) -> str:
        """Return the next character that is no space, without taking it; empty at the end."""
        while self._text[self._at : self._at + 1] in (" ", "\t", "\r", "\n"):
            self._at += 1
        return self._text[self._at : self._at + 1]

    def _takes(self, character: str) -> bool:
        if self._next() != character:
            return False
        self._at += 1
        return True

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_LIMIT:
            raise ValueError("nested too deeply")
        if self._takes("{"):
            return dict(self._sequence("}", depth, pairs=True))
        if self._takes("["):
            return self._sequence("]", depth, pairs=False)
        return self._string() if self._next() == QUOTE else self._word()

    def _sequence(self, end: str, depth: int, *, pairs: bool) -> list[Any]:
        found: list[Any] = []
        while not self._takes(end):
            if found and not self._takes(","):
                raise ValueError("a comma is missing")
            found.append(self._pair(depth) if pairs else self._value(depth + 1))
        return found

    def _pair(self, depth: int) -> tuple[str, Any]:
        if self._next() != QUOTE:
            raise ValueError("a member without a name")
        name = self._string()
        if not self._takes(":"):
            raise ValueError("a member without a value")
        return name, self._value(depth + 1)

    def _string(self) -> str:
        parts: list[str] = []
        self._at += 1
        while True:
            quote = self._text.find(QUOTE, self._at)
            if quote < 0:
                raise ValueError("a string without an end")
            escape = self._text.find("\\", self._at, quote)
            parts.append(self._text[self._at : quote if escape < 0 else escape])
            if escape < 0:
                self._at = quote + 1
                return _checked("".join(parts))
            self._at = escape + 1
            parts.append(self._escaped())

    def _escaped(self) -> str:
        mark = self._text[self._at : self._at + 1]
        self._at += 1
        if mark != "u":
            return ESCAPES[mark] if mark in ESCAPES else _fail("an unknown escape")
        high = self._code()
        if not 0xD800 <= high < 0xDC00:
            return chr(high)
        if self._text[self._at : self._at + 2] != "\\u":
            raise ValueError("half a character")
        self._at += 2
        low = self._code()
        if not 0xDC00 <= low < 0xE000:
            raise ValueError("half a character")
        return chr(0x10000 + ((high - 0xD800) << 10) + low - 0xDC00)

    def _code(self) -> int:
        digits = self._text[self._at : self._at + 4]
        if len(digits) != 4 or digits.strip("0123456789abcdefABCDEF"):
            raise ValueError("a broken escape")
        self._at += 4
        return int(digits, 16)

    def _word(self) -> Any:
        start = self._at
        while self._text[self._at : self._at + 1].isalnum() or self._text[self._at : self._at + 1] in ("+", "-", "."):
            self._at += 1
        word = self._text[start : self._at]
        return WORDS[word] if word in WORDS else _number(word)


def _fail(what: str) -> str:
    raise ValueError(what)


def _checked(text: str) -> str:
    """Refuse what no UTF-8 text could hold: halves of characters."""
    for character in text:
        if 0xD800 <= ord(character) < 0xE000:
            raise ValueError("half a character")
    return text


def _number(word: str) -> float:
    digits = word[1:] if word[:1] == "-" else word
    if not word.isascii() or not digits[:1].isdigit() or not digits[-1:].isdigit() or len(digits) > DIGITS_LIMIT:
        raise ValueError("not a JSON text")
    if digits[0] == "0" and digits[1:2].isdigit():
        raise ValueError("a number with a zero in front")
    return int(word) if digits.isdigit() else float(word)


def parse(text: str) -> Any:
    """Return the value of one JSON text. Raises ValueError for anything else, whatever it is."""
    return _Reader(text).whole()


def parse_object(text: str) -> dict[str, Any]:
    """Return one JSON object. Raises ValueError for anything else."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - one error for whatever came in
    return value


def dump(value: object) -> str:
    """Return compact JSON; keys in their own order, floats to the millisecond."""
    if isinstance(value, str):
        return QUOTE + "".join(map(_escape, value)) + QUOTE if _needs_escapes(value) else QUOTE + value + QUOTE
    if isinstance(value, dict):
        return "{" + ",".join(dump(str(key)) + ":" + dump(item) for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dump, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(round(value, 3)) if isinstance(value, (int, float)) else dump(str(value))


def _needs_escapes(text: str) -> bool:
    return not (text.isascii() and text.isprintable()) or QUOTE in text or "\\" in text


def _escape(character: str) -> str:
    code = ord(character)
    if code > 0xFFFF:
        return "\\u%04x\\u%04x" % (0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF))
    if code < 0x20 or code > 0x7E:
        return "\\u%04x" % code
    return "\\" + character if character in (QUOTE, "\\") else character


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
