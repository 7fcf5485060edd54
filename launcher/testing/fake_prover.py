"""The prover of a fake pod: rounds in the cluster's time, by the script, told in the words of the real one."""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.cluster.port import Json
from launcher.testing.fake_script import Script
from launcher.testing.virtual_time import LoopClock

NEEDED = 3
"""Proven rounds in a row, in each family, until a proof stands."""

EAGER, CALM = 0.25, 15.0
EAGER_AFTER_RELEASE = 5.0
OPENNESS = ("open", "intercepted", "leak")
CODES = {
    "open": "policy_not_enforced",
    "intercepted": "policy_intercepted",
    "leak": "policy_leak",
    "unserved": "witness_unserved",
    "unavailable": "witness_unavailable",
    "unusable": "probe_unusable",
}
_FRESH = 2.0


@dataclass
class FakeProver:
    """One prover. ``judge`` says what a round at this moment comes to; ``say`` writes a line to its log."""

    clock: LoopClock
    config: Json
    pod_uid: str
    script: Script
    judge: Callable[[], str]
    say: Callable[[str], None]
    start_id: str = field(default_factory=lambda: secrets.token_hex(16))
    rounds: int = 0
    proven: int = 0
    streak: int = 0
    since: float | None = None
    ever_stood: bool = False
    verdict: str | None = None
    released_at: float | None = None
    blind_since: float | None = None
    first_round_at: float | None = None
    first_good_at: float | None = None
    open_until: float | None = None
    last: Json | None = None
    bad_in_a_row: int = 0

    @property
    def families(self) -> Sequence[str]:
        """The families it looks at."""
        return sorted(self.config["witness"])

    @property
    def unix(self) -> float:
        """The node's clock."""
        return self.clock.now().timestamp()

    @property
    def standing(self) -> bool:
        """Whether the proof stands now."""
        return self.since is not None and self.verdict is None

    def begin(self) -> None:
        """Say that it has started, as each life of it does."""
        self._log({"prover": "started", "startId": self.start_id, "families": list(self.families)})

    def restart(self) -> None:
        """Begin a new life: a latched verdict and release are remembered, the proof is not."""
        self.start_id = secrets.token_hex(16)
        self.streak, self.since, self.last = 0, None, None
        self.begin()

    def pause(self) -> float:
        """Seconds until the next round."""
        if self.released_at is None or self.unix - self.released_at < EAGER_AFTER_RELEASE or not self.standing:
            return EAGER
        return CALM

    def round(self) -> None:
        """Look once, in every family."""
        found = self.judge()
        if self.first_round_at is None:
            self.first_round_at = self.unix
        for family in self.families:
            self.rounds += 1
            self._note(found)
            detail = {"by": self.script.by} if found == "proven" else {"detail": f"scripted {found}", "counted": True}
            self._log(
                {"round": self.rounds, "at": self.unix, "family": family, "verdict": found, "took": 0.2}
                | {"standing": self.standing}
                | detail
            )
            self.last = {"verdict": found, "family": family, "detail": detail.get("detail", ""), "at": self.unix}
        self._weigh(found)

    def _note(self, found: str) -> None:
        if found == "proven":
            self.proven += 1
            self.streak += 1
            self.first_good_at = self.first_good_at or self.unix
            if self.streak >= NEEDED * len(self.families) and self.since is None:
                self.since, self.ever_stood = self.unix, True
            return
        self.streak, self.since = 0, None
        if found in OPENNESS:
            self.open_until = self.unix

    def _weigh(self, found: str) -> None:
        self.bad_in_a_row = self.bad_in_a_row + 1 if found in OPENNESS else 0
        blind = found in ("unavailable", "unserved")
        self.blind_since = (self.blind_since or self.unix) if blind else None
        if self.released_at is None or self.verdict is not None:
            return
        if self.bad_in_a_row > 1:
            self._latch(found)
        elif (
            self.blind_since
            and self.config["onBlind"] == "kill"
            and self._blind_for() >= self.config["blindAfterSeconds"]
        ):
            self._latch("blind")
        elif self.unix >= self.released_at + self.config["timeoutSeconds"] + self.config["timeoutGraceSeconds"]:
            self._latch("timeout")

    def _blind_for(self) -> float:
        return self.unix - self.blind_since if self.blind_since else 0.0

    def _latch(self, verdict: str) -> None:
        self.verdict = verdict
        self._log({"verdict": verdict, "at": self.unix, "detail": f"scripted {verdict}"})

    def release(self, marker: Json) -> tuple[int, str] | None:
        """Latch the release; or say with which exit code and code the gate must stay closed."""
        if marker.get("startId") != self.start_id:
            return 41, "gate_restarted"
        if marker.get("podUid") != self.pod_uid:
            return 42, "marker_refused"
        if not self.standing or self.last is None or self.unix - self.last["at"] > _FRESH:
            return 40, self._code() or "probe_unusable"
        if self.released_at is None:
            self.released_at = self.unix
            self._log({"released": True, "at": self.unix})
        return None

    def _code(self) -> str | None:
        if self.standing:
            return None
        code = CODES.get(self.last["verdict"] if self.last else "unusable", "probe_unusable")
        return code + "_before_release" if self.ever_stood else code

    def state(self) -> Json:
        """Return what ``GET /state`` says."""
        last: dict[str, Any] | None = None
        if self.last is not None:
            last = {key: self.last[key] for key in ("verdict", "family", "detail")} | {
                "age": self.unix - self.last["at"]
            }
        return {
            "startId": self.start_id,
            "verdict": self.verdict,
            "standing": self.standing,
            "standingSince": self.since,
            "everStood": self.ever_stood,
            "rounds": self.rounds,
            "provenRounds": self.proven,
            "by": self.script.by if self.proven else None,
            "backends": {family: {"4": "10.1.2.3", "6": "fd00::3"}[family] for family in self.families},
            "last": last,
            "lastBad": None,
            "code": self._code(),
            "families": {family: {"standing": self.standing, "streak": self.streak} for family in self.families},
            "missingFamilies": [],
            "startedAt": self.first_round_at,
            "firstRoundAt": self.first_round_at,
            "firstGoodAt": self.first_good_at,
            "openUntil": self.open_until,
            "released": self.released_at is not None,
            "releasedAt": self.released_at,
            "blindSince": self.blind_since if self.released_at else None,
            "nodeExposure": list(self.script.node_exposure),
            "leaks": ["scripted"] if self.last and self.last["verdict"] == "leak" else [],
            "now": self.unix,
        }

    def _log(self, line: Json) -> None:
        self.say(json.dumps(line, sort_keys=True))
