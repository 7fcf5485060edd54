"""Part: what a row of rounds is worth. No IO and no clock: every time (seconds, monotonic) is handed in."""

from __future__ import annotations

from isolation.inpod.probe import INTERCEPTED, LEAK, OPEN, PROVEN, UNAVAILABLE, UNSERVED, UNUSABLE, Round

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

ROUNDS_TO_STAND = 3
LOOKS_APART_SECONDS = 0.15
"""Rounds whose controls were all answered at one moment looked at that one moment, and count once."""
OPEN_ROUNDS_TO_LOSE = 2
OPENNESS = (OPEN, INTERCEPTED, LEAK)
BLINDNESS = (UNAVAILABLE, UNSERVED)
FAMILY_MISSING = "witness_family_missing"

CODES = {
    OPEN: "policy_not_enforced",
    INTERCEPTED: "policy_intercepted",
    LEAK: "policy_leak",
    UNAVAILABLE: "witness_unavailable",
    UNSERVED: "witness_unserved",
    UNUSABLE: "probe_unusable",
}


class FamilyProof:
    """The rounds of one address family.

    A streak counts rounds that began after the last round that was not proven, so that no round in flight across it
    can help.
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self.streak = 0
        self.streak_began = 0.0
        self.last_look = float("-inf")
        self.not_before = float("-inf")
        self.first_good_at: Optional[float] = None
        self.last_proven_at: Optional[float] = None
        self.open_rounds = 0
        self.openness = ""
        self.blind_since: Optional[float] = None
        self.unusable_since: Optional[float] = None
        self.by: Optional[str] = None
        self.backend: Optional[str] = None
        self.leaks: list[str] = []

    @property
    def standing(self) -> bool:
        """True after enough proven rounds in a row, until the first that is not."""
        return self.streak >= ROUNDS_TO_STAND

    def note(self, seen: Round) -> bool:
        """Take a round that has ended; False when it says nothing.

        It began before the streak and only failed to look.
        """
        if seen.verdict == PROVEN:
            self.leaks = []
            self._proven(seen)
            return True
        if seen.verdict in BLINDNESS and self.streak and seen.began < self.streak_began:
            return False
        self.leaks = seen.leaks
        self._not_proven(seen)
        return True

    def _proven(self, seen: Round) -> None:
        self.by, self.backend, self.last_proven_at = seen.by, seen.backend, seen.ended
        if self.first_good_at is None or seen.looked < self.first_good_at:
            self.first_good_at = seen.looked
        self.unusable_since = None
        if seen.began <= self.not_before:
            return
        self.blind_since, self.open_rounds = None, 0
        self.streak_began = min(self.streak_began, seen.began) if self.streak else seen.began
        if not self.streak or seen.looked - self.last_look >= LOOKS_APART_SECONDS:
            self.streak += 1
            self.last_look = seen.looked

    def _not_proven(self, seen: Round) -> None:
        self.streak = 0
        self.not_before = max(self.not_before, seen.began)
        if seen.verdict in OPENNESS:
            self.open_rounds, self.openness = self.open_rounds + 1, seen.verdict
        if self.blind_since is None:
            self.blind_since = seen.ended
        if seen.verdict != UNUSABLE:
            self.unusable_since = None
        elif self.unusable_since is None:
            self.unusable_since = seen.ended


class Limits:
    """How long what may last after the release, in seconds."""

    def __init__(self, timeout: float, grace: float, blind_after: Optional[float], unusable_after: float) -> None:
        self.timeout, self.grace, self.blind_after, self.unusable_after = timeout, grace, blind_after, unusable_after


class Standing:
    """The proof over all families of the pod, and its loss during the run, which is for good."""

    def __init__(self, families: list[str], missing: list[str], limits: Limits) -> None:
        self.families = {family: FamilyProof(family) for family in families}
        self.missing, self.limits = missing, limits
        self.verdict: Optional[str] = None
        self.released_at: Optional[float] = None
        self.worker_since: Optional[float] = None
        self.since: Optional[float] = None
        self.ever_stood = False
        self.rounds = self.proven_rounds = 0
        self.last: Optional[Round] = None
        self.last_bad: Optional[Round] = None
        self.open_until: Optional[float] = None

    @property
    def standing(self) -> bool:
        """True while every family of the pod stands and nothing was lost."""
        return self.since is not None and self.verdict is None

    def note(self, seen: Round, now: float) -> bool:
        """Take a round that has ended; False when it does not count."""
        self.rounds += 1
        self.proven_rounds += seen.verdict == PROVEN
        counted = self.families[seen.family].note(seen)
        if counted:
            self.last = seen
            if seen.verdict != PROVEN:
                self.last_bad = seen
            if seen.verdict in OPENNESS:
                self.open_until = now
        self._weigh(now)
        return counted

    def _weigh(self, now: float) -> None:
        stands = bool(self.families) and not self.missing and all(f.standing for f in self.families.values())
        if not stands:
            self.since = None
        elif self.since is None:
            self.since, self.ever_stood = now, True

    def tick(self, now: float) -> Optional[str]:
        """Return the verdict that ends the run, latched; None while nothing is lost.

        Before the release nothing can be.
        """
        if self.verdict is None and self.released_at is not None:
            self.verdict = self._lost(now)
        return self.verdict

    def _lost(self, now: float) -> Optional[str]:
        for family in self.families.values():
            if family.open_rounds >= OPEN_ROUNDS_TO_LOSE:
                return family.openness
        if any(lasted(f.unusable_since, self.limits.unusable_after, now) for f in self.families.values()):
            return UNUSABLE
        if self.limits.blind_after is not None and lasted(self.blind_since, self.limits.blind_after, now):
            return "blind"
        return "timeout" if lasted(self.worker_since, self.limits.timeout + self.limits.grace, now) else None

    @property
    def blind_since(self) -> Optional[float]:
        """When the first family that now sees nothing ceased to be proven."""
        return min((f.blind_since for f in self.families.values() if f.blind_since is not None), default=None)

    @property
    def first_good_at(self) -> Optional[float]:
        """When the first proven round looked, of the family that came last; None until each has had one."""
        firsts = [f.first_good_at for f in self.families.values()]
        known = [first for first in firsts if first is not None]
        return max(known) if known and len(known) == len(firsts) else None

    def fresh(self, now: float, within: float) -> bool:
        """Say whether the proof stands and every family's last proven round ended less than ``within`` seconds ago."""
        ends = [f.last_proven_at for f in self.families.values()]
        return self.standing and all(end is not None and now - end < within for end in ends)

    def release(self, now: float) -> None:
        """Latch the moment of the release; repeating it changes nothing. What came before it cannot end the run."""
        if self.released_at is not None:
            return
        self.released_at = now
        for family in self.families.values():
            family.open_rounds = 0

    def asked(self, now: float) -> None:
        """Latch when the worker's time began: its liveness probe asks once it runs, and nobody asks before.

        From the release it would run while the worker's image is still being pulled.
        """
        if self.released_at is not None and self.worker_since is None:
            self.worker_since = now

    def why_not(self) -> tuple[str, str]:
        """Return code and sentence for a proof that does not stand, or did not when it was asked."""
        if self.missing:
            return FAMILY_MISSING, "the pod has IPv%s, in which the witness has no address" % " and IPv".join(
                self.missing
            )
        if self.last_bad is None:
            return CODES[UNAVAILABLE], "no proof has come to stand yet"
        code = CODES[self.last_bad.verdict] + ("_before_release" if self.ever_stood else "")
        return code, "IPv%s: %s, %s" % (self.last_bad.family, self.last_bad.verdict, self.last_bad.detail)


def lasted(since: Optional[float], limit: float, now: float) -> bool:
    """Say whether what began at ``since``, if it did, has lasted for ``limit`` seconds."""
    return since is not None and now - since >= limit
