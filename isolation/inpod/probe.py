"""Part: a round, which is one measurement of the policy in one address family, and what it means.

Control connection, then the deny attempts and the targets that must be closed, then a control connection to the same
backend. Nothing here decides about the run: ``judge`` says what one round saw, ``standing.py`` what a row of rounds is
worth.
"""

from __future__ import annotations

import errno
import time
from _socket import (
    AF_INET,
    AF_INET6,
    SO_ERROR,
    SOCK_CLOEXEC,
    SOCK_DGRAM,
    SOCK_NONBLOCK,
    SOCK_STREAM,
    SOL_SOCKET,
    inet_ntop,
    inet_pton,
    socket,
)

from isolation.inpod.loop import READ, WRITE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Generator, Optional

WATCH_SECONDS = 1.2
"""How long each connection is watched: longer than the first retransmission of a SYN, at 1 s."""
SECOND_TRY_SECONDS = 0.25
HEARD_LIMIT = 128
GREETING = "podgate-witness "
DATAGRAM = b"podgate-probe: is this port closed?\n"
DNS_QUESTION = b"PG\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01"
"""Asks for the root's name servers: a name server says nothing to what is no question."""

BANNER, CONNECTED, REFUSED, SILENT, LOCAL = "banner", "connected", "refused", "silent", "local"
PROVEN, OPEN, INTERCEPTED, LEAK = "proven", "open", "intercepted", "leak"
UNSERVED, UNAVAILABLE, UNUSABLE = "unserved", "unavailable", "unusable"

_TURNED_AWAY = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.EPERM, errno.EACCES)
"""Errors of the call itself that are an answer all the same: a reject, or a policy that sits in the socket layer."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN)


def family_of(ip: str) -> str:
    """Return "4" or "6"."""
    return "6" if ":" in ip else "4"


def plain_ip(text: str) -> Optional[str]:
    """Return an address in its canonical spelling, None when it is none."""
    family = AF_INET6 if ":" in text else AF_INET
    try:
        return inet_ntop(family, inet_pton(family, text))
    except OSError:
        return None


def meaning(code: int, *, at_once: bool) -> str:
    """Return what an errno says: an answer of the network, or trouble of our own.

    What arrives later came from the network (RST, ICMP). What the call itself returns is local unless it is a known
    refusal.
    """
    if not at_once:
        return SILENT if code == errno.ETIMEDOUT else REFUSED
    return REFUSED if code in _TURNED_AWAY else LOCAL


class Attempt:
    """One try to reach an address from a fresh socket, watched for WATCH_SECONDS.

    Then ``kind`` and ``text`` say how it went.
    """

    def __init__(self, ip: str, port: int, *, udp: bool = False, delay: float = 0.0, name: str = "") -> None:
        self.ip, self.port, self.udp, self.delay, self.name = ip, port, udp, delay, name
        self.kind = self.text = ""
        self.code = 0
        self.began = 0.0
        self._socket: Optional[socket] = None
        self._connected = udp
        self._heard = b""

    def start(self, loop: Loop, ended: Callable[[], None]) -> None:
        """Begin after the delay; ``ended`` is called once, never from within this call."""
        self._loop, self._ended = loop, ended
        self._timer = loop.at(time.monotonic() + self.delay, self._begin)

    def _begin(self) -> None:
        self.began = time.monotonic()
        family = AF_INET6 if family_of(self.ip) == "6" else AF_INET
        try:
            self._socket = socket(family, (SOCK_DGRAM if self.udp else SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC)
        except OSError as error:
            self.code = error.errno or 0
            return self._end(LOCAL, describe(self.code))
        code = self._reach_out(self._socket)
        if code not in (0, errno.EINPROGRESS):
            self.code = code
            return self._end(meaning(code, at_once=True), describe(code))
        self._loop.watch(self._socket.fileno(), READ if self.udp else READ | WRITE, self._look)
        self._timer = self._loop.at(self.began + WATCH_SECONDS, self._expire)
        return None

    def _reach_out(self, link: socket) -> int:
        try:
            code = link.connect_ex((self.ip, self.port))
            if self.udp and not code:
                link.send(DNS_QUESTION if self.port == 53 else DATAGRAM)
        except OSError as error:
            return error.errno or errno.EINVAL
        return code

    def _look(self) -> None:
        """Look at the socket now; does nothing when there is nothing to see."""
        link = self._socket
        if link is None:
            return
        code = link.getsockopt(SOL_SOCKET, SO_ERROR)
        if code and not (self._connected and not self.udp):
            self._end(meaning(code, at_once=False), describe(code))
        elif not self._connected and is_connected(link):
            self._connected = True
            self._loop.watch(link.fileno(), READ, self._look)
            self._read(link)
        elif self._connected:
            self._read(link)

    def _read(self, link: socket) -> None:
        try:
            piece = link.recv(HEARD_LIMIT)
        except BlockingIOError:
            return None
        except OSError as error:
            code = error.errno or 0
            return self._end(meaning(code, at_once=False) if self.udp else CONNECTED, describe(code))
        self._heard += piece
        if self.udp:
            return self._end(BANNER, "answered")
        if not piece or b"\n" in self._heard or len(self._heard) >= HEARD_LIMIT:
            self._end_of_greeting()
        return None

    def _end_of_greeting(self) -> None:
        line = self._heard.split(b"\n", 1)[0].decode("ascii", "replace")
        if line.startswith(GREETING):
            return self._end(BANNER, line)
        return self._end(CONNECTED, "another greeting" if self._heard else "closed without a greeting")

    def _expire(self) -> None:
        self._look()  # this process may be late: what has arrived meanwhile is no silence
        if not self.kind:
            self._end(CONNECTED, "no greeting") if self._connected and not self.udp else self._end(SILENT, "")

    def _end(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text
        self._loop.cancel(self._timer)
        if self._socket is not None:
            self._loop.forget(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._ended()


def is_connected(link: socket) -> bool:
    """Say whether a connect without an error has come through, or is still under way."""
    try:
        link.getpeername()
    except OSError:
        return False
    return True


def describe(code: int) -> str:
    """Return an errno's name."""
    return errno.errorcode.get(code, "errno %d" % code)


class Greeting:
    """What a control banner says: whether the backend's deny listeners are up, at which port, and its own address."""

    def __init__(self, *, deny_up: bool, ip: str, port: str) -> None:
        self.deny_up, self.ip, self.port = deny_up, ip, port

    @classmethod
    def of(cls, attempt: Optional[Attempt], family: str) -> Optional[Greeting]:
        """Return what an attempt heard; None when it was no control banner with an address of the family."""
        words = attempt.text.split(" ") if attempt and attempt.kind == BANNER else []
        if (
            len(words) != 5
            or words[1] != "control"
            or words[2] not in ("deny=up", "deny=down")
            or words[3][:3] != "ip="
            or words[4][:5] != "port="
        ):
            return None
        ip = plain_ip(words[3][3:])
        if not ip or family_of(ip) != family:
            return None
        return cls(deny_up=words[2] == "deny=up", ip=ip, port=words[4][5:])


class Round:
    """What one round in one family saw.

    Times are monotonic; ``looked`` is when its deny attempts began, which its control may delay.
    """

    def __init__(self, family: str, verdict: str, detail: str = "") -> None:
        self.family, self.verdict, self.detail = family, verdict, detail
        self.began = self.looked = self.ended = time.monotonic()
        self.by: Optional[str] = None
        self.backend: Optional[str] = None
        self.leaks: list[str] = []
        self.control = self.deny = ""


class Question:
    """Where to look: the witness in one family and the targets of that family that must be closed."""

    def __init__(self, family: str, witness: str, config: dict[str, Any]) -> None:
        self.family, self.witness = family, witness
        self.control_port, self.deny_port = config["controlPort"], config["denyPort"]
        self.targets = [target for target in config["targets"] if family_of(target["ip"]) == family]

    def control(self, ip: str) -> Attempt:
        """Return a control connection."""
        return Attempt(ip, self.control_port)

    def deny(self, ip: str) -> list[Attempt]:
        """Return two SYNs and two datagrams from fresh sockets, in flight together."""
        return [
            Attempt(ip, self.deny_port, udp=udp, delay=delay)
            for delay in (0.0, SECOND_TRY_SECONDS)
            for udp in (False, True)
        ]

    def closed(self) -> list[Attempt]:
        """Return one attempt a target."""
        return [Attempt(t["ip"], t["port"], udp=t["protocol"] == "udp", name=t["name"]) for t in self.targets]


def ask_policy(question: Question) -> Generator[list[Attempt], None, Round]:
    """One round: each yield is a list of attempts to be carried out together.

    Without a control banner no backend is known; the deny attempts then go to the Service's address, since a greeting
    from there is openness all the same.
    """
    began = time.monotonic()
    before = question.control(question.witness)
    yield [before]
    first = Greeting.of(before, question.family)
    denied, closed, after = question.deny(first.ip if first else question.witness), question.closed(), None
    looked = time.monotonic()
    if before.kind != LOCAL:
        yield denied + closed
    if first:
        after = question.control(first.ip)
        yield [after]
    found = judge(question.family, before, [a for a in denied if a.kind], [a for a in closed if a.kind], after)
    found.began, found.looked = began, looked
    return found


def judge(
    family: str, before: Attempt, denied: list[Attempt], closed: list[Attempt], after: Optional[Attempt]
) -> Round:
    """Return what the attempts of one round mean, most alarming first."""
    first, last = Greeting.of(before, family), Greeting.of(after, family)
    found = _verdict(family, before, denied, closed, after)
    found.leaks = [a.name for a in closed if a.kind in (BANNER, CONNECTED)]
    found.backend = first.ip if first else None
    found.control = "up" if first and last and first.deny_up and last.deny_up else before.kind
    found.deny = ",".join(("udp " if a.udp else "tcp ") + a.kind for a in denied)
    if found.verdict == PROVEN:
        found.by = "refusal" if any(a.kind == REFUSED for a in denied) else "drop"
    return found


def _verdict(
    family: str, before: Attempt, denied: list[Attempt], closed: list[Attempt], after: Optional[Attempt]
) -> Round:
    first, last = Greeting.of(before, family), Greeting.of(after, family)
    greeted = [a for a in denied if a.kind == BANNER]
    if greeted:
        return Round(family, OPEN, "deny port answered over " + ("UDP" if all(a.udp for a in greeted) else "TCP"))
    connected = [a for a in denied if a.kind == CONNECTED]
    if connected:
        return Round(family, INTERCEPTED, "deny port accepted: " + connected[0].text)
    leaks = [a.name for a in closed if a.kind in (BANNER, CONNECTED)]
    if leaks:
        return Round(family, LEAK, "reached " + ", ".join(leaks))
    stuck = [a for a in (before, after, *denied) if a and a.kind == LOCAL] + [
        a for a in closed if a.kind == LOCAL and a.code in _EXHAUSTED
    ]
    if stuck:
        return Round(family, UNUSABLE, stuck[0].text)
    if not first:
        return Round(family, UNAVAILABLE, "control: " + (before.text or before.kind))
    if not last or not after:
        return Round(family, UNAVAILABLE, "control afterwards: " + (after.text or after.kind if after else "not tried"))
    if last.ip != first.ip:
        return Round(family, UNAVAILABLE, "another backend answered at the backend's address")
    if not (first.deny_up and last.deny_up):
        return Round(family, UNSERVED, "the witness says deny=down")
    # A witness set up with another deny port vouches for that one; silence on ours would prove nothing.
    if any({str(a.port)} != {first.port, last.port} for a in denied):
        return Round(family, UNSERVED, "the witness's deny port is " + first.port)
    return Round(family, PROVEN)


class Rounds:
    """Carries rounds out; any number may be under way at once."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.under_way = 0

    def begin(self, question: Question, ended: Callable[[Round], None]) -> None:
        """Start one round; ``ended`` is told what it saw, within about 4 s."""
        self.under_way += 1
        self._advance(ask_policy(question), ended)

    def _advance(self, steps: Generator[list[Attempt], None, Round], ended: Callable[[Round], None]) -> None:
        try:
            attempts = next(steps)
        except StopIteration as stop:
            self.under_way -= 1
            stop.value.ended = time.monotonic()
            return ended(stop.value)
        left = len(attempts)

        def one_ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._advance(steps, ended)

        for attempt in attempts:
            attempt.start(self._loop, one_ended)
        return None
