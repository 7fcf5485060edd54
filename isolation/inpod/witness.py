"""The witness: a control port that every run may reach, and a deny port (TCP and UDP) that none may.

Config: ``controlPort``, ``denyPort``. Each connection is greeted with one line and closed:

deny port     ``podgate-witness deny``, over UDP as the answer to a datagram of at least the answer's length
control port  ``podgate-witness control deny=up ip=10.1.2.3 port=8788``: ``ip`` is this backend's own address in the
              connection's family, ``port`` its deny port, and ``deny=up`` is said only when, after this very
              connection was accepted, a connection to that port through that address has read its greeting, and a
              datagram its answer. One look serves all connections accepted before it began.

A source address may have 16 connections at once and 50 a second; more are closed without a word, so that a worker that
floods one port takes nothing from the others.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub in typeshed; signal itself imports enum: slow
import errno
import os
import select
import sys
import time
from _socket import (
    AF_INET,
    AF_INET6,
    IPPROTO_IPV6,
    IPV6_RECVPKTINFO,
    IPV6_V6ONLY,
    SO_REUSEADDR,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    socket,
)

from isolation.inpod.wire import parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

DENY = b"podgate-witness deny\n"
LOOK_SECONDS = 0.4
"""A look that takes longer says deny=down. Two in a row stay below the 1.2 s that a prover watches a connection."""
EVERYWHERE = "0.0.0.0"  # noqa: S104 - to be reached is what the witness is for
AT_ONCE, A_SECOND = 16, 50
SOURCES = 65536
BACKLOG = 4096
ACCEPTS_A_TURN = 256
DATAGRAMS_A_TURN = 256
QUESTION = b"podgate-witness asks itself: is the deny port up?\n"


class Source:
    """What one source address has open, and how many connections it may still make now."""

    __slots__ = ("at", "credit", "open")

    def __init__(self, now: float) -> None:
        self.credit, self.at, self.open = float(A_SECOND), now, 0

    def admits(self, now: float) -> bool:
        """Count one more, or say no."""
        self.credit = min(float(A_SECOND), self.credit + (now - self.at) * A_SECOND)
        self.at = now
        if self.credit < 1 or self.open >= AT_ONCE:
            return False
        self.credit -= 1
        return True


class Sources:
    """All sources of late; those that are idle are forgotten when there are too many."""

    def __init__(self) -> None:
        self._known: dict[str, Source] = {}

    def of(self, ip: str, now: float) -> Source:
        """Return a source's account."""
        found = self._known.get(ip)
        if found is None:
            if len(self._known) >= SOURCES:
                self._forget(now)
            found = self._known[ip] = Source(now)
        return found

    def _forget(self, now: float) -> None:
        self._known = {ip: s for ip, s in self._known.items() if s.open or now - s.at < 1.0}


class Loop:
    """Descriptors and their callbacks; a callback may be told of a descriptor that is not ready."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}
        self.looks: set[Look] = set()

    def watch(self, link: socket, events: int, call: Callable[[], None]) -> None:
        """Call when ready."""
        self._poll.register(link.fileno(), events)
        self._calls[link.fileno()] = call

    def close(self, link: socket) -> None:
        """Forget and close."""
        if self._calls.pop(link.fileno(), None):
            self._poll.unregister(link.fileno())
        link.close()

    def run(self) -> None:
        """Serve for ever."""
        while True:
            for descriptor, _ in self._poll.poll(0.05 if self.looks else 5.0):
                call = self._calls.get(descriptor)
                if call:
                    call()
            now = time.monotonic()
            for look in [look for look in self.looks if now >= look.until]:
                look.end(up=False)


class Look:
    """One look at our own deny port through one of our addresses: its greeting over TCP and its answer over UDP."""

    def __init__(self, loop: Loop, ip: str, port: int, ended: Callable[..., None]) -> None:
        self._loop, self._ended = loop, ended
        self.until = time.monotonic() + LOOK_SECONDS
        self._heard = {"tcp": b"", "udp": b""}
        self._links: list[socket] = []
        loop.looks.add(self)
        for name, kind in (("tcp", SOCK_STREAM), ("udp", SOCK_DGRAM)):
            self._ask(name, kind, ip, port)

    def _ask(self, name: str, kind: int, ip: str, port: int) -> None:
        try:
            link = socket(AF_INET6 if ":" in ip else AF_INET, kind | SOCK_NONBLOCK | SOCK_CLOEXEC)
        except OSError:
            return  # the look then ends at its time, as a failure
        self._links.append(link)
        try:
            if link.connect_ex((ip, port)) in (0, errno.EINPROGRESS):
                if name == "udp":
                    link.send(QUESTION)
                self._loop.watch(link, select.EPOLLIN, lambda: self._hear(name, link))
        except OSError:
            return

    def _hear(self, name: str, link: socket) -> None:
        try:
            piece = link.recv(64)
        except BlockingIOError:
            return None
        except OSError:
            return self.end(up=False)
        self._heard[name] += piece
        if self._heard[name] == DENY:
            if all(heard == DENY for heard in self._heard.values()):
                self.end(up=True)
        elif not piece or not DENY.startswith(self._heard[name]):
            self.end(up=False)
        return None

    def end(self, *, up: bool) -> None:
        """Tell once."""
        if self not in self._loop.looks:
            return
        self._loop.looks.discard(self)
        for link in self._links:
            self._loop.close(link)
        self._ended(up=up)


class Address:
    """One of our own addresses: who waits for a look through it, and the look under way."""

    def __init__(self, loop: Loop, ip: str, deny_port: int) -> None:
        self._loop, self._ip, self._deny_port = loop, ip, deny_port
        self._waiting: list[Client] = []
        self._looking = False

    def wait(self, client: Client) -> None:
        """Answer the client after a look that begins now or later."""
        self._waiting.append(client)
        if not self._looking:
            self._look()

    def _look(self) -> None:
        served, self._waiting, self._looking = self._waiting, [], True

        def ended(*, up: bool) -> None:
            line = "podgate-witness control deny=%s ip=%s port=%d\n" % (
                "up" if up else "down",
                self._ip,
                self._deny_port,
            )
            for client in served:
                client.greet(line.encode())
            self._looking = False
            if self._waiting:
                self._look()

        Look(self._loop, self._ip, self._deny_port, ended)


class Client:
    """One accepted connection; it is greeted once and closed."""

    def __init__(self, link: socket, source: Optional[Source]) -> None:
        self._link, self._source = link, source
        if source:
            source.open += 1

    def greet(self, line: bytes) -> None:
        """Send the line, if the client is still there, and let go."""
        try:
            self._link.send(line)
        except OSError:
            pass
        self._link.close()
        if self._source:
            self._source.open -= 1


class Witness:
    """Both ports, in both families where the kernel has them."""

    def __init__(self, config: dict[str, Any], loop: Loop) -> None:
        self._loop, self._deny_port = loop, config["denyPort"]
        self._sources, self._addresses = Sources(), {}  # type: Sources, dict[str, Address]
        control, deny = listen(config["controlPort"], SOCK_STREAM), listen(self._deny_port, SOCK_STREAM)
        self._datagrams = listen(self._deny_port, SOCK_DGRAM)
        loop.watch(control, select.EPOLLIN, lambda: self._accept(control, self._control))
        loop.watch(deny, select.EPOLLIN, lambda: self._accept(deny, self._deny))
        loop.watch(self._datagrams, select.EPOLLIN, self._answer_datagrams)

    def _accept(self, listening: socket, serve: Callable[[Client, str], None]) -> None:
        now = time.monotonic()
        for _ in range(ACCEPTS_A_TURN):
            try:
                descriptor, peer = listening._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - socket.accept does so
            except OSError:
                return
            self._admit(socket(fileno=descriptor), plain(peer[0]), now, serve)

    def _admit(self, link: socket, peer: str, now: float, serve: Callable[[Client, str], None]) -> None:
        """Our own looks are not counted; whoever has too much is closed without a word."""
        link.setblocking(False)  # noqa: FBT003 - the socket's own signature
        try:
            own = plain(link.getsockname()[0])
        except OSError:
            return link.close()
        source = None if peer == own else self._sources.of(peer, now)
        if source and not source.admits(now):
            return link.close()
        return serve(Client(link, source), own)

    def _deny(self, client: Client, _own: str) -> None:
        client.greet(DENY)

    def _control(self, client: Client, own: str) -> None:
        address = self._addresses.get(own)
        if address is None:
            address = self._addresses[own] = Address(self._loop, own, self._deny_port)
        address.wait(client)

    def _answer_datagrams(self) -> None:
        now = time.monotonic()
        for _ in range(DATAGRAMS_A_TURN):
            try:
                asked, where, _, peer = self._datagrams.recvmsg(256, 128)
                own = len(asked) == len(QUESTION) and asked == QUESTION
                if len(asked) >= len(DENY) and (own or self._sources.of(plain(peer[0]), now).admits(now)):
                    # from the very address that was asked: a connected client takes no answer from another
                    self._datagrams.sendmsg([DENY], where, 0, peer)
            except BlockingIOError:
                return
            except OSError:
                continue


def listen(port: int, kind: int) -> socket:
    """Return a socket bound on all addresses of both families. Raises OSError when the port is taken."""
    flags = kind | SOCK_NONBLOCK | SOCK_CLOEXEC
    try:
        link = socket(AF_INET6, flags)
        link.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0)
        if kind == SOCK_DGRAM:
            link.setsockopt(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
        else:
            link.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        link.bind(("::", port))
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        link = socket(AF_INET, flags)
        if kind == SOCK_STREAM:
            link.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        link.bind((EVERYWHERE, port))
    if kind == SOCK_STREAM:
        link.listen(BACKLOG)
    return link


def plain(ip: str) -> str:
    """Return an IPv4 address that an IPv6 socket shows as mapped, and drop a zone."""
    return (ip[7:] if ip.startswith("::ffff:") and "." in ip else ip).split("%", 1)[0]


def stop(_number: int, _frame: object) -> None:
    """End at once: a client that is cut off asks again, and gets another backend."""
    os._exit(0)


def main() -> None:
    """Serve until SIGTERM."""
    config = parse_object(sys.argv[1])
    _signal.signal(_signal.SIGTERM, stop)
    _signal.signal(_signal.SIGINT, stop)
    loop = Loop()
    Witness(config, loop)
    os.write(1, b"witness: serving\n")
    loop.run()


if __name__ == "__main__":
    main()
