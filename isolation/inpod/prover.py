"""Proves, from before the gate until after the worker's end, that this pod's network policy is enforced.

Environment: PODGATE_POD_UID, PODGATE_POD_IPS, PODGATE_HOST_IPS (downward API; lists by comma) and
KUBERNETES_SERVICE_HOST and _PORT. Process 1 is a supervisor that keeps the health port bound while the measuring child
is away, so that nobody else can take it and answer 200 in its place. What must outlive the child (release, verdict) is
in ``stateFile`` on a memory volume of the prover's own.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub in typeshed; signal itself imports enum: slow
import os
import sys
import time

from isolation.inpod.exposure import Exposure, node_targets
from isolation.inpod.loop import Loop
from isolation.inpod.probe import PROVEN, UNAVAILABLE, UNUSABLE, Question, Round, Rounds, family_of, plain_ip
from isolation.inpod.serve import Server, hold
from isolation.inpod.standing import BLINDNESS, FAMILY_MISSING, Limits, Standing
from isolation.inpod.wire import dump, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Mapping, Optional

EAGER_AFTER_RELEASE_SECONDS = 5.0
BLIND_EAGER_SECONDS = 10.0
BLIND_SECONDS = 2.0
"""Between rounds of a prover that has been blind for a while.

A thousand of them must not overrun the witness that comes back.
"""
ROUNDS_UNDER_WAY = 64
RESTART_SECONDS, RESTART_LIMIT_SECONDS, SOUND_LIFE_SECONDS = 0.1, 2.0, 10.0
"""A child that ends is restarted at once; one that ends again and again, more and more slowly.

Each end is a few lines of log.
"""
LINES_AT_ONCE = 400
LINE_EVERY_SECONDS = 5.0
LONGEST_TURN_SECONDS = 0.5


class Log:
    """JSON lines on stdout, so few that a day's log stays below 5 MB.

    A burst, then one line in a while; the rest is counted. A full pipe drops the line as well: nobody's reading may
    delay a round.
    """

    def __init__(self, now: float) -> None:
        self._credit, self._at, self._unsaid = float(LINES_AT_ONCE), now, 0

    def round(self, line: dict[str, Any], now: float) -> None:
        """Say how a round ended, when the budget allows it."""
        self._credit = min(float(LINES_AT_ONCE), self._credit + (now - self._at) / LINE_EVERY_SECONDS)
        self._at = now
        if self._credit < 1:
            self._unsaid += 1
            return
        if self.event({**line, "unsaid": self._unsaid} if self._unsaid else line):
            self._credit, self._unsaid = self._credit - 1, 0

    def event(self, line: dict[str, Any]) -> bool:
        """Say something that happens once."""
        try:
            os.write(1, (dump(line) + "\n").encode())
        except OSError:
            return False
        return True


class Memory:
    """What outlives the child, in one small file that is replaced by rename."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written = ""

    def load(self) -> dict[str, Any]:
        """Return what was remembered, {} at the first start; a file that cannot be read counts as a lost proof."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return parse_object(file.read(4096))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return {"verdict": UNUSABLE}

    def save(self, fact: dict[str, Any]) -> bool:
        """Remember; False when that is impossible. What is remembered already costs nothing."""
        text = dump(fact)
        if text == self._written:
            return True
        try:
            with open(self._path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.rename(self._path + ".new", self._path)
        except OSError:
            return False
        self._written = text
        return True


class Prover:
    """The measuring child: rounds, their worth, and the port where both can be asked for."""

    def __init__(self, config: dict[str, Any], environment: Mapping[str, str], loop: Loop) -> None:
        self.config, self.loop = config, loop
        self.start_id = os.urandom(16).hex()
        self.pod_uid = environment.get("PODGATE_POD_UID", "")
        self.started_at = time.monotonic()
        self.first_round_at: Optional[float] = None
        self.log, self.memory, self.rounds = Log(self.started_at), Memory(config["stateFile"]), Rounds(loop)
        ips = [ip for ip in map(plain_ip, environment.get("PODGATE_POD_IPS", "").split(",")) if ip]
        families = sorted({family_of(ip) for ip in ips})
        witness = {family: plain_ip(ip) for family, ip in config["witness"].items()}
        self.questions = [Question(f, ip, config) for f in families for ip in [witness.get(f)] if ip]
        missing = [family for family in families if not witness.get(family)]
        self.standing = Standing(families, missing, limits_of(config))
        self.exposure = Exposure(loop, node_targets(environment))
        self._recall(self.memory.load())

    def _recall(self, fact: dict[str, Any]) -> None:
        self.standing.verdict = fact.get("verdict")
        self.standing.released_at = fact.get("releasedAt")
        self.standing.worker_since = fact.get("workerSince")
        self.standing.ever_stood = bool(fact.get("everStood"))
        for family in self.standing.families.values():
            family.blind_since = fact.get("blindSince")

    def _remember(self) -> bool:
        standing = self.standing
        if standing.released_at is None:
            return True
        return self.memory.save(
            {
                "verdict": standing.verdict,
                "releasedAt": standing.released_at,
                "workerSince": standing.worker_since,
                "everStood": standing.ever_stood,
                "blindSince": standing.blind_since,
            }
        )

    def run(self) -> None:
        """Measure until the parent is gone; process 1 ends this child by a signal."""
        parent = os.getppid()
        started = {"prover": "started", "startId": self.start_id, "families": list(self.standing.families)}
        lost = self.standing.verdict  # latched in an earlier life: a log that begins with this start says it, too
        self.log.event({**started, "verdict": lost} if lost else started)
        self._next_rounds()
        while os.getppid() == parent:
            self.loop.turn(LONGEST_TURN_SECONDS)
            self._weigh()

    def _next_rounds(self) -> None:
        now = time.monotonic()
        if self.first_round_at is None:
            self.first_round_at = now
        for family in self.standing.missing:
            self._ended(Round(family, UNAVAILABLE, FAMILY_MISSING))
        for question in self.questions:
            if self.rounds.under_way < ROUNDS_UNDER_WAY:
                self.rounds.begin(question, self._ended)
        self._timer = self.loop.at(now + self._pause(now), self._next_rounds)

    def _pause(self, now: float) -> float:
        """Return the seconds until the next rounds begin."""
        standing, eager, calm = self.standing, float(self.config["intervalSeconds"]), float(self.config["calmSeconds"])
        if standing.verdict is not None:
            return calm
        released = standing.released_at
        if released is None or now - released < EAGER_AFTER_RELEASE_SECONDS:
            return eager
        if standing.standing:
            return calm
        blind = standing.last is not None and standing.last.verdict in BLINDNESS
        long = standing.blind_since is not None and now - standing.blind_since > BLIND_EAGER_SECONDS
        return max(eager, BLIND_SECONDS) if blind and long else eager

    def _ended(self, seen: Round) -> None:
        now = time.monotonic()
        stood = self.standing.standing
        counted = self.standing.note(seen, now)
        self.log.round(self._line(seen, now, counted=counted), now)
        if stood and not self.standing.standing:
            self.loop.cancel(self._timer)  # a proof that fell is looked at again at once, not after the calm pause
            self._timer = self.loop.at(now + float(self.config["intervalSeconds"]), self._next_rounds)

    def _weigh(self) -> None:
        before = self.standing.verdict
        after = self.standing.tick(time.monotonic())
        if after != before:
            last = self.standing.last_bad
            self.log.event(
                {"verdict": after, "at": time.time(), "detail": last.detail if last and after != "timeout" else ""}
            )
        self._remember()

    def _line(self, seen: Round, now: float, *, counted: bool) -> dict[str, Any]:
        line: dict[str, Any] = {
            "round": self.standing.rounds,
            "at": time.time(),
            "family": seen.family,
            "verdict": seen.verdict,
            "took": now - seen.began,
            "standing": self.standing.standing,
        }
        if seen.verdict == PROVEN:
            return {**line, "by": seen.by, "backend": seen.backend}
        return {**line, "detail": seen.detail, "deny": seen.deny, "counted": counted}

    def answer(self, method: str, path: str, body: str) -> tuple[int, str, str]:
        """Answer one request; status, content type and content."""
        if (method, path) == ("GET", "/healthz"):
            self.standing.asked(time.monotonic())
            verdict = self.standing.tick(time.monotonic())
            said = verdict or ("standing" if self.standing.standing else "waiting")
            return 503 if verdict else 200, "text/plain", said + "\n"
        if (method, path) == ("GET", "/state"):
            return 200, "application/json", dump(self.state()) + "\n"
        if (method, path) == ("POST", "/release"):
            status, answer = self.release(body)
            return status, "application/json", dump(answer) + "\n"
        return 404, "text/plain", "no such thing\n"

    def state(self) -> dict[str, Any]:
        """Return what is known, with times as Unix seconds of this node's clock."""
        now, standing = time.monotonic(), self.standing
        families = standing.families.values()
        bys = {family.by for family in families if family.by}
        last = standing.last
        return {
            "startId": self.start_id,
            "verdict": standing.tick(now),
            "standing": standing.standing,
            "standingSince": unix(standing.since),
            "everStood": standing.ever_stood,
            "rounds": standing.rounds,
            "provenRounds": standing.proven_rounds,
            "by": "refusal" if "refusal" in bys else "drop" if bys else None,
            "backends": {family.family: family.backend for family in families if family.backend},
            "last": last
            and {"verdict": last.verdict, "family": last.family, "detail": last.detail, "age": now - last.ended},
            "lastBad": standing.last_bad
            and {
                "verdict": standing.last_bad.verdict,
                "family": standing.last_bad.family,
                "detail": standing.last_bad.detail,
                "age": now - standing.last_bad.ended,
            },
            "code": None if standing.standing else standing.why_not()[0],
            "families": {f.family: {"standing": f.standing, "streak": f.streak} for f in families},
            "missingFamilies": standing.missing,
            "startedAt": unix(self.started_at),
            "firstRoundAt": unix(self.first_round_at),
            "firstGoodAt": unix(standing.first_good_at),
            "openUntil": unix(standing.open_until),
            "released": standing.released_at is not None,
            "releasedAt": unix(standing.released_at),
            "blindSince": unix(standing.blind_since) if standing.released_at is not None else None,
            "nodeExposure": self.exposure.reachable,
            "leaks": [name for family in families for name in family.leaks],
            "now": time.time(),
        }

    def release(self, body: str) -> tuple[int, dict[str, Any]]:
        """Latch the release when the marker is for this pod and this start, and the proof stands now."""
        refusal = self._refusal(body)
        if refusal:
            return 409, {"ok": False, "exit": refusal[0], "code": refusal[1], "message": refusal[2]}
        first = self.standing.released_at is None
        self.standing.release(time.monotonic())
        if not self._remember():
            self.standing.released_at = None if first else self.standing.released_at
            return 409, {
                "ok": False,
                "exit": 41,
                "code": "probe_unusable",
                "message": "the release could not be remembered",
            }
        if first:
            self.log.event({"released": True, "at": time.time()})
        return 200, {"ok": True}

    def _refusal(self, body: str) -> Optional[tuple[int, str, str]]:
        try:
            marker = parse_object(body)
        except ValueError:
            return 42, "marker_refused", "the marker is not a JSON object"
        if marker.get("startId") != self.start_id:
            return 41, "gate_restarted", "the marker names another start of the prover"
        if not self.pod_uid or marker.get("podUid") != self.pod_uid:
            return 42, "marker_refused", "the marker is for another pod"
        if not self.standing.fresh(time.monotonic(), float(self.config["freshSeconds"])):
            return (40, *self.standing.why_not())
        return None


def limits_of(config: dict[str, Any]) -> Limits:
    """Return the run's limits."""
    blind_after = float(config["blindAfterSeconds"]) if config["onBlind"] == "kill" else None
    return Limits(config["timeoutSeconds"], config["timeoutGraceSeconds"], blind_after, config["unusableAfterSeconds"])


def unix(at: Optional[float]) -> Optional[float]:
    """Return a monotonic time as Unix seconds of the clock as it is now."""
    return None if at is None else time.time() - time.monotonic() + at


def measure(config: dict[str, Any]) -> None:
    """Be the child: listen first, so that the port answers while the first rounds are under way."""
    os.set_blocking(1, False)
    loop = Loop()
    listening = hold(config["healthPort"])
    prover = Prover(config, os.environ, loop)
    Server(loop, listening, prover.answer)
    prover.run()


class Supervisor:
    """Process 1: restarts the child whenever it ends, and ends with it at SIGTERM.

    It imports, reads and decides nothing.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._child = 0

    def run(self) -> None:
        """Never returns."""
        _signal.signal(_signal.SIGTERM, self._stop)
        _signal.signal(_signal.SIGINT, self._stop)
        pause = RESTART_SECONDS
        while True:
            began = time.monotonic()
            self._child = os.fork()
            if not self._child:
                self._be_child()
            self._wait()
            sound = time.monotonic() - began > SOUND_LIFE_SECONDS
            pause = RESTART_SECONDS if sound else min(2 * pause, RESTART_LIMIT_SECONDS)
            time.sleep(pause)

    def _be_child(self) -> None:
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        try:
            self._work()
        except BaseException:  # noqa: BLE001 - whatever it is, show it, and never return into the loop
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)

    def _wait(self) -> None:
        """Reap whatever ends, as process 1 must, until the child has."""
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == self._child:
                self._child = 0
                os.write(2, b"prover: the measuring process ended (status %d), starting another\n" % status)
                return

    def _stop(self, _number: int, _frame: object) -> None:
        if self._child:
            os.kill(self._child, _signal.SIGKILL)
        os._exit(0)


def main() -> None:
    """Keep the port bound for as long as the container lives."""
    config = parse_object(sys.argv[1])
    held = hold(config["healthPort"])
    try:
        Supervisor(lambda: measure(config)).run()
    finally:
        held.close()


if __name__ == "__main__":
    main()
