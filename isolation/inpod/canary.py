"""The preflight's probe: the controlled experiment that gives a block its meaning.

Config: ``mode``, ``witness``, ``controlPort``, ``denyPort``, ``targets`` as the prover's; ``listenPort``;
``latencyTargets`` ({ip, port} of the open canary); ``boundSeconds`` until the answer, ``idleSeconds`` until the end
after it. Environment as the prover's.

``open``     serves ``listenPort`` and looks whether control and deny port answer in each family; ready when all do.
``policed``  looks for a standing proof, for node exposure, and how long after its own start connections to
             ``latencyTargets`` still succeed.

Lines of JSON on stdout; the last one is the answer, with times in seconds from this process's start:

{"final": true, "mode", "ok": bool, "code": null | code, "message", "families": {"4": {"standing", "streak", "verdict",
"detail", "by", "control": "up" | kind, "deny": "tcp silent,udp silent,…", "backend", "allOpen"}},
"missingFamilies": ["6"], "leaks": [name], "nodeExposure": [name], "standingAfter": s | null, "openUntil": s | null,
"rounds": N, "latency": [{"ip", "port", "seconds": s | null, "sawOpen": bool, "stillOpen": bool, "tries": N}]}

``allOpen`` is true when control, deny over TCP and deny over UDP all answered in one round.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub in typeshed; signal itself imports enum: slow
import os
import sys
import time

from isolation.inpod.exposure import Exposure, node_targets
from isolation.inpod.loop import READ, Loop
from isolation.inpod.probe import BANNER, CONNECTED, LOCAL, OPEN, Attempt, Question, Round, Rounds, family_of, plain_ip
from isolation.inpod.serve import accept, hold
from isolation.inpod.standing import FAMILY_MISSING, Limits, Standing
from isolation.inpod.wire import dump, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any, Mapping, Optional

CANARY_GREETING = b"podgate-canary\n"
INTERVAL_SECONDS = 0.25
LATENCY_INTERVAL_SECONDS = 0.1
QUIET_SECONDS = 1.5
"""How long connections must have failed before the policy counts as in force: longer than an attempt is watched."""
GREETS_A_TURN = 64
NEVER = Limits(86_400.0 * 365, 0.0, None, 86_400.0 * 365)


class Listener:
    """Greets whoever connects."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._held = hold(port)
        self._held.listen(128)
        loop.watch(self._held.fileno(), READ, self._greet)

    def _greet(self) -> None:
        for _ in range(GREETS_A_TURN):
            link: Optional[socket] = accept(self._held)
            if link is None:
                return
            try:
                link.send(CANARY_GREETING)
            except OSError:
                pass
            link.close()


class Latency:
    """How long one address could be reached after this process's start. Trouble of our own says nothing."""

    def __init__(self, loop: Loop, target: dict[str, Any], started: float) -> None:
        self._loop, self._started = loop, started
        self.ip, self.port = target["ip"], target["port"]
        self.last_open: Optional[float] = None
        self.closed_from: Optional[float] = None
        self.tries = 0
        loop.at(started, self._try)

    def _try(self) -> None:
        attempt = Attempt(self.ip, self.port)
        attempt.start(self._loop, lambda: self._ended(attempt))
        self._loop.at(time.monotonic() + LATENCY_INTERVAL_SECONDS, self._try)

    def _ended(self, attempt: Attempt) -> None:
        if attempt.kind == LOCAL:
            return
        self.tries += 1
        if attempt.kind in (BANNER, CONNECTED):
            self.last_open = max(self.last_open or 0.0, attempt.began)
            if self.closed_from is not None and self.closed_from < attempt.began:
                self.closed_from = None
        elif self.closed_from is None and attempt.began > (self.last_open or 0.0):
            self.closed_from = attempt.began

    def settled(self, now: float) -> bool:
        """Say whether connections have failed for long enough."""
        return self.closed_from is not None and now - self.closed_from >= QUIET_SECONDS

    def report(self, now: float) -> dict[str, Any]:
        """Return what the launcher is told."""
        closed = self.settled(now)
        seconds = None
        if closed:
            seconds = max(0.0, (self.last_open or self._started) - self._started)
        still_open = self.last_open is not None and not closed
        return {
            "ip": self.ip,
            "port": self.port,
            "seconds": seconds,
            "sawOpen": self.last_open is not None,
            "stillOpen": still_open,
            "tries": self.tries,
        }


class Canary:
    """Rounds in every family until there is an answer, or the bound is over."""

    def __init__(self, config: dict[str, Any], environment: Mapping[str, str], loop: Loop) -> None:
        self.loop, self.open_mode = loop, config["mode"] == "open"
        self.mode: str = config["mode"]
        self.started = time.monotonic()
        self.until = self.started + config["boundSeconds"]
        ips = [ip for ip in map(plain_ip, environment.get("PODGATE_POD_IPS", "").split(",")) if ip]
        families = sorted({family_of(ip) for ip in ips})
        witness = {family: plain_ip(ip) for family, ip in config["witness"].items()}
        missing = [family for family in families if not witness.get(family)]
        self.questions = [Question(f, ip, config) for f in families for ip in [witness.get(f)] if ip]
        self.standing = Standing(families, missing, NEVER)
        self.rounds, self.exposure = Rounds(loop), Exposure(loop, [] if self.open_mode else node_targets(environment))
        self.last: dict[str, Round] = {}
        self.all_open: set[str] = set()
        self.stood_at: Optional[float] = None
        self.latencies = [
            Latency(loop, t, self.started) for t in config["latencyTargets"] if family_of(t["ip"]) in families
        ]

    def run(self) -> dict[str, Any]:
        """Return the answer."""
        self._next_rounds()
        while time.monotonic() < self.until and not self._decided():
            self.loop.turn(INTERVAL_SECONDS)
        return self.report()

    def _next_rounds(self) -> None:
        for question in self.questions:
            self.rounds.begin(question, self._ended)
        self.loop.at(time.monotonic() + INTERVAL_SECONDS, self._next_rounds)

    def _ended(self, seen: Round) -> None:
        now = time.monotonic()
        self.standing.note(seen, now)
        self.last[seen.family] = seen
        if self.standing.standing and self.stood_at is None:
            self.stood_at = now
        answers = seen.deny.split(",")
        if seen.verdict == OPEN and seen.backend and "tcp " + BANNER in answers and "udp " + BANNER in answers:
            self.all_open.add(seen.family)

    def _decided(self) -> bool:
        if self.standing.missing or not self.standing.families:
            return True
        if self.open_mode:
            return self.all_open == set(self.standing.families)
        now = time.monotonic()
        return (
            self.standing.standing and self.exposure.looked and all(latency.settled(now) for latency in self.latencies)
        )

    def _problem(self) -> tuple[Optional[str], str]:
        if not self.standing.families:
            return "probe_unusable", "the pod's addresses are not known"
        if self.standing.missing:
            return FAMILY_MISSING, "the pod has IPv%s, in which the witness has no address" % " and IPv".join(
                self.standing.missing
            )
        if not self.open_mode:
            return (None, "") if self.standing.standing else self._not_standing()
        closed = sorted(set(self.standing.families) - self.all_open)
        if not closed:
            return None, ""
        detail = "; ".join("IPv%s: %s" % (f, self._unpoliced(f)) for f in closed)
        return "witness_unavailable", "an unpoliced pod could not reach both of the witness's ports: " + detail

    def _not_standing(self) -> tuple[str, str]:
        code, message = self.standing.why_not()
        return code.replace("_before_release", ""), message

    def _unpoliced(self, family: str) -> str:
        seen = self.last.get(family)
        if seen is None:
            return "no round ended"
        return "control %s, deny %s" % (seen.control, seen.deny or "not tried")

    def report(self) -> dict[str, Any]:
        """Return everything a launcher decides from."""
        now, standing = time.monotonic(), self.standing
        code, message = self._problem()
        return {
            "final": True,
            "mode": self.mode,
            "ok": code is None,
            "code": code,
            "message": message,
            "families": {family: self._family(family) for family in standing.families},
            "missingFamilies": standing.missing,
            "leaks": sorted({name for seen in self.last.values() for name in seen.leaks}),
            "nodeExposure": self.exposure.reachable,
            "standingAfter": self._since_start(self.stood_at),
            "openUntil": self._since_start(standing.open_until),
            "latency": [latency.report(now) for latency in self.latencies],
            "rounds": standing.rounds,
        }

    def _family(self, family: str) -> dict[str, Any]:
        proof, seen = self.standing.families[family], self.last.get(family)
        return {
            "standing": proof.standing,
            "streak": proof.streak,
            "verdict": seen.verdict if seen else None,
            "detail": seen.detail if seen else "",
            "by": proof.by,
            "control": seen.control if seen else "",
            "deny": seen.deny if seen else "",
            "backend": seen.backend if seen else None,
            "allOpen": family in self.all_open,
        }

    def _since_start(self, at: Optional[float]) -> Optional[float]:
        return None if at is None else at - self.started


def stop(_number: int, _frame: object) -> None:
    """End at once."""
    os._exit(0)


def say(line: dict[str, Any]) -> None:
    """Write one line of JSON."""
    os.write(1, (dump(line) + "\n").encode())


def main() -> None:
    """Measure, answer, and stay until SIGTERM or the idle bound; the open canary goes on serving meanwhile."""
    _signal.signal(_signal.SIGTERM, stop)
    _signal.signal(_signal.SIGINT, stop)
    config, loop = parse_object(sys.argv[1]), Loop()
    if config["mode"] == "open":
        Listener(loop, config["listenPort"])
    say({"canary": "started", "mode": config["mode"]})
    say(Canary(config, os.environ, loop).run())
    # A loop of its own for the wait would stop the listener; the rounds' one goes on until the bound.
    until = time.monotonic() + config["idleSeconds"]
    while time.monotonic() < until:
        loop.turn(1.0)


if __name__ == "__main__":
    main()
