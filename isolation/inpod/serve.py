"""Part: the prover's port. HTTP/1.1, one request a connection, at most a few connections, each with a deadline.

The worker can reach this port. Whatever it sends costs a bounded amount of memory and of the rounds' time: one read of
a connection at a time, the oldest connection closed when there are too many, and a few accepted in one turn.
"""

from __future__ import annotations

import errno
import time
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    SO_REUSEPORT,
    SOCK_CLOEXEC,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)

from isolation.inpod.loop import READ, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional

    Answer = tuple[int, str, str]
    """Status, content type, content."""

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the kubelet probes the pod's address, the gate loopback
CONNECTIONS = 32
ACCEPTS_A_TURN = 8
REQUEST_LIMIT = 8 << 10
REQUEST_SECONDS = 1.0
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 409: "Conflict", 503: "Service Unavailable"}


def hold(port: int) -> socket:
    """Bind the port on all addresses of both families, without listening.

    Raises OSError: EADDRINUSE when another uid has it.

    SO_REUSEPORT lets only this uid bind it again. SO_REUSEADDR must not be set: it would let anybody share a port
    nobody listens on.
    """
    try:
        held = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
        held.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        held.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
        held.bind(("::", port))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        held = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
        held.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
        held.bind((EVERYWHERE, port))
    return held


class Connection:
    """One client, from its accept to its answer or its deadline."""

    def __init__(self, server: Server, link: socket) -> None:
        self._server, self._link = server, link
        self._got = b""
        server.loop.watch(link.fileno(), READ, self._read)
        self._timer = server.loop.at(time.monotonic() + REQUEST_SECONDS, self.close)

    def _read(self) -> None:
        try:
            piece = self._link.recv(REQUEST_LIMIT)
        except BlockingIOError:
            return None
        except OSError:
            return self.close()
        self._got += piece
        if not piece or len(self._got) > REQUEST_LIMIT:
            return self.close()
        if is_whole(self._got):
            self._respond()
        return None

    def _respond(self) -> None:
        status, kind, content = self._server.respond(self._got)
        body = content.encode("utf-8", "replace")
        head = "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        try:
            self._link.send((head % (status, REASONS[status], kind, len(body))).encode() + body)
        except OSError:
            pass  # the client is gone, or does not read; an answer fits into any socket's buffer
        self.close()

    def close(self) -> None:
        """Let go of the client; a second call does nothing."""
        if self._server.connections.pop(self._link.fileno(), None) is None:
            return
        self._server.loop.cancel(self._timer)
        self._server.loop.forget(self._link.fileno())
        self._link.close()


class Server:
    """Accepts on a bound socket and hands each whole request to ``answer(method, path, body)``."""

    def __init__(self, loop: Loop, listening: socket, answer: Callable[[str, str, str], Answer]) -> None:
        self.loop, self._listening, self._answer = loop, listening, answer
        self.connections: dict[int, Connection] = {}
        listening.listen(128)
        loop.watch(listening.fileno(), READ, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            link = accept(self._listening)
            if link is None:
                return
            if len(self.connections) >= CONNECTIONS:
                next(iter(self.connections.values())).close()
            self.connections[link.fileno()] = Connection(self, link)

    def respond(self, request: bytes) -> Answer:
        """Return the answer to one whole request; never raises for what a client sent."""
        top, _, body = request.partition(b"\r\n\r\n")
        words = top.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
        if len(words) != 3:
            return 400, "text/plain", "not a request\n"
        return self._answer(words[0], words[1], body.decode("utf-8", "replace"))


def accept(listening: socket) -> Optional[socket]:
    """Accept one connection, non-blocking; None when there is none, or no room for one."""
    try:
        descriptor, _ = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - socket.accept does so
    except OSError:
        return None
    link = socket(fileno=descriptor)
    link.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return link


def is_whole(request: bytes) -> bool:
    """Say whether head and body have come; a length that cannot be read counts as none."""
    top, end, body = request.partition(b"\r\n\r\n")
    if not end:
        return False
    for line in top.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip().isdigit():
            return len(body) >= int(value)
    return True
