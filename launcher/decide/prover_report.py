"""What the prover said about a run, read from the end of its log. Pure, bounded, tolerant: an odd line is skipped."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self, cast, get_args

from records.model import Evidence, Rounds

Verdict = Literal["open", "intercepted", "leak", "blind", "unusable", "timeout"]
End = Literal["unknown", "standing", "open", "intercepted", "leak", "blind", "unusable", "timeout"]

OPENNESS = frozenset({"open", "intercepted", "leak"})
BLINDNESS = frozenset({"unavailable", "unserved"})

LINES = 2000
"""Of the log's end that are read. A calm prover writes some 500 lines an hour, so this reaches back beyond any collect
window; its verdict is one line among them."""

BYTES = 1024 * 1024
"""Of the log's end that are kept: some 500 bytes a line; more is not from our prover."""

LINE_BYTES = 4096
"""A longer line is not one of the prover's."""

SEEN_BEFORE_VERDICT_SECONDS = 3.0
"""Two rounds of at most 1.7 s, a quarter of a second apart, lead to a verdict of openness: it was first seen this long
before, when the rounds themselves are not in the log any more."""

PROVEN_YET_FALLEN = 6
"""Proven rounds in a row (three in each of two families) after which a proof that still does not stand cannot be coming
up again: a verdict was latched that the log no longer shows."""


@dataclass(frozen=True)
class RoundLine:
    """One finished round. ``at`` is its end in Unix seconds of the node's clock, ``took`` its length in seconds."""

    number: int
    at: float
    verdict: str
    standing: bool
    family: str | None = None
    took: float = 0.0
    detail: str = ""
    counted: bool = True


@dataclass(frozen=True)
class ProverReport:
    """The end of the prover's log.

    ``readable`` is False when there was no log to read, or nothing of the prover's in it: then nothing is known, which
    is never the same as isolated. ``rounds`` are in the order of the log, the newest last.
    """

    readable: bool = False
    start_id: str | None = None
    verdict: Verdict | None = None
    verdict_at: float | None = None
    detail: str = ""
    openness_at: float | None = None
    rounds: tuple[RoundLine, ...] = ()

    @classmethod
    def of_log(cls, log: bytes) -> Self:
        """Read the log's end; its first line may be cut."""
        report = cls()
        for line in _objects(log[-BYTES:].splitlines()[-LINES:]):
            report = report._with(line)
        return report

    def _with(self, line: Mapping[str, Any]) -> Self:
        if line.get("prover") == "started":
            # A prover that starts again with a verdict remembers it from its earlier life.
            again = _verdict(line.get("verdict"))
            started = replace(self, readable=True, start_id=_text(line.get("startId")) or None)
            return replace(started, verdict=again) if again and self.verdict is None else started
        if "round" in line:
            seen = _round(line)
            return self if seen is None else replace(self, readable=True, rounds=(*self.rounds, seen))
        latched = _verdict(line.get("verdict"))
        # The first verdict is for good: a later line can only be one that we did not write.
        if latched is None or self.verdict is not None:
            return self
        return self._latched(latched, _seconds(line.get("at")), _text(line.get("detail")))

    def _latched(self, verdict: Verdict, at: float | None, detail: str) -> Self:
        first = _first_openness(self.rounds) if verdict in OPENNESS else None
        if first is None and verdict in OPENNESS and at is not None:
            first = at - SEEN_BEFORE_VERDICT_SECONDS
        return replace(self, readable=True, verdict=verdict, verdict_at=at, detail=detail, openness_at=first)

    @property
    def last(self) -> RoundLine | None:
        """The newest round that counts."""
        return next((seen for seen in reversed(self.rounds) if seen.counted), None)

    @property
    def standing(self) -> bool:
        """True when the newest round left the proof standing and nothing was lost."""
        return self.readable and self.verdict is None and self.last is not None and self.last.standing

    @property
    def fallen_unseen(self) -> bool:
        """True when a verdict was latched whose line is not in the log's end (an earlier container's, or dropped)."""
        tail = self.rounds[-PROVEN_YET_FALLEN:]
        fallen = all(seen.verdict == "proven" and not seen.standing for seen in tail)
        return self.verdict is None and len(tail) == PROVEN_YET_FALLEN and fallen

    @property
    def undecided(self) -> bool:
        """True when the newest round shows openness and the prover has not said yet whether that was the second."""
        return self.verdict is None and self.last is not None and self.last.verdict in OPENNESS

    @property
    def lost_before(self) -> float | None:
        """When what led to the verdict was first seen (Unix seconds); None when there is no verdict with a time."""
        return self.openness_at if self.openness_at is not None else self.verdict_at

    def lost_while_alive(self, finished_at: datetime | None) -> bool:
        """Whether the verdict concerns the worker's life. ``finished_at``: the node's, cut to the second; None: alive.

        A tie counts as lost, and so does a verdict without a time: what cannot be told apart is not called isolated.
        """
        if self.verdict is None:
            return False
        if finished_at is None or self.lost_before is None:
            return True
        return self.lost_before < finished_at.timestamp() + 1

    def end(self, finished_at: datetime | None) -> End:
        """What the worker's end found: the proof's state at that moment, or unknown."""
        if not self.readable or self.fallen_unseen:
            return "unknown"
        if self.verdict is not None and self.lost_while_alive(finished_at):
            return self.verdict
        known = [seen for seen in self.rounds if seen.counted and _until(seen, finished_at)]
        state = _state_after(known[-1]) if known else "unknown"
        # One open round without a verdict is neither a loss nor a proof.
        return "unknown" if state in OPENNESS else state

    def evidence(self, before: Rounds | None, finished_at: datetime | None) -> Evidence:
        """What of this belongs into the record, on top of what the release recorded there."""
        blind = _blind_since(self.rounds)
        if self.last is None:
            return Evidence(end=self.end(finished_at))
        rounds = (before or Rounds()).model_copy(
            update={
                "count": max(before.count if before else 0, self.last.number),
                "last_at": self.last.at,
                "last_verdict": self.last.verdict,
            }
        )
        return Evidence(end=self.end(finished_at), rounds=rounds, blind_since=blind)


UNREAD = ProverReport()
"""The report of a prover whose log could not be read."""


def at_utc(seconds: float) -> datetime | None:
    """Unix seconds as a time; None for a number that is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _objects(lines: Iterable[bytes]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        if len(line) > LINE_BYTES:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def _round(line: Mapping[str, Any]) -> RoundLine | None:
    number, at = line["round"], _seconds(line.get("at"))
    if not isinstance(number, int) or isinstance(number, bool) or at is None:
        return None
    return RoundLine(
        number=number,
        at=at,
        verdict=_text(line.get("verdict")) or "unknown",
        standing=line.get("standing") is True,
        family=_text(line.get("family")) or None,
        took=_seconds(line.get("took")) or 0.0,
        detail=_text(line.get("detail")),
        counted=line.get("counted") is not False,
    )


def _verdict(value: object) -> Verdict | None:
    return cast("Verdict", value) if isinstance(value, str) and value in get_args(Verdict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _seconds(value: object) -> float | None:
    """A finite number of seconds; JSON of Python's own also knows NaN and Infinity."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < 1e12 else None  # noqa: PLR2004  # far beyond any clock; NaN fails it, too


def _first_openness(rounds: tuple[RoundLine, ...]) -> float | None:
    """Begin of the first of the open rounds that led to the verdict: those of its family since its last proven one."""
    newest = next((seen for seen in reversed(rounds) if seen.verdict in OPENNESS), None)
    if newest is None:
        return None
    first = newest
    for seen in reversed(rounds):
        if seen.family != newest.family or not seen.counted:
            continue
        if seen.verdict == "proven" and seen.at - seen.took < first.at - first.took:
            break
        if seen.verdict in OPENNESS:
            first = seen
    return first.at - first.took


def _until(seen: RoundLine, finished_at: datetime | None) -> bool:
    return finished_at is None or seen.at - seen.took < finished_at.timestamp() + 1


def _state_after(seen: RoundLine) -> End:
    """What one round says when it is the last word: a proof that is only just coming up again counts as blind."""
    if seen.standing:
        return "standing"
    if seen.verdict in OPENNESS or seen.verdict == "unusable":
        return cast("End", seen.verdict)
    return "blind"


def _blind_since(rounds: tuple[RoundLine, ...]) -> float | None:
    """End of the first round of the blindness that lasts to the log's end; None when the newest round is another."""
    since = None
    for seen in reversed(rounds):
        if not seen.counted:
            continue
        if seen.verdict not in BLINDNESS:
            break
        since = seen.at
    return since
