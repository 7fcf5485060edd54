"""What the prover's state means for a launch: wait, go on, or refuse with a name. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.errors import before_release

Family = Literal["4", "6"]


@dataclass(frozen=True)
class LastRound:
    """The newest finished round. ``age`` is in seconds, by the prover's own clock, at the time of the state."""

    verdict: str
    family: str | None
    detail: str
    age: float


@dataclass(frozen=True)
class ProverState:
    """One answer of the prover's ``/state``; times are Unix seconds of the node's clock."""

    start_id: str
    standing: bool
    ever_stood: bool
    verdict: str | None = None
    standing_since: float | None = None
    rounds: int = 0
    proven_rounds: int = 0
    by: Literal["drop", "refusal"] | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    last: LastRound | None = None
    last_bad: LastRound | None = None
    first_round_at: float | None = None
    first_good_at: float | None = None
    open_until: float | None = None
    released: bool = False
    blind_since: float | None = None
    node_exposure: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    now: float = 0.0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "ProverState | None":
        """Read a state line; None for a line that is no state (``waiting``, ``marker``, or not ours)."""
        start_id = state.get("startId")
        if not isinstance(start_id, str):
            return None
        last, bad = state.get("last"), state.get("lastBad")
        return cls(
            start_id=start_id,
            standing=state.get("standing") is True,
            ever_stood=state.get("everStood") is True,
            verdict=state.get("verdict"),
            standing_since=state.get("standingSince"),
            rounds=int(state.get("rounds") or 0),
            proven_rounds=int(state.get("provenRounds") or 0),
            by=state.get("by"),
            backends=dict(state.get("backends") or {}),
            last=_last_round(last) if isinstance(last, Mapping) else None,
            last_bad=_last_round(bad) if isinstance(bad, Mapping) else None,
            first_round_at=state.get("firstRoundAt"),
            first_good_at=state.get("firstGoodAt"),
            open_until=state.get("openUntil"),
            released=state.get("released") is True,
            blind_since=state.get("blindSince"),
            node_exposure=tuple(state.get("nodeExposure") or ()),
            leaks=tuple(state.get("leaks") or ()),
            now=float(state.get("now") or 0.0),
        )

    @property
    def policy_latency_seconds(self) -> float | None:
        """How long after its first round the pod was still seen open; 0 when it never was."""
        if self.first_round_at is None or self.first_good_at is None:
            return None
        return round(max(0.0, (self.open_until or self.first_round_at) - self.first_round_at), 3)


def _last_round(last: Mapping[str, Any]) -> LastRound:
    return LastRound(
        verdict=str(last.get("verdict")),
        family=last.get("family"),
        detail=str(last.get("detail") or ""),
        age=float(last.get("age") or 0.0),
    )


@dataclass(frozen=True)
class Waiting:
    """No proof yet, and still time for it."""

    message: str


@dataclass(frozen=True)
class Stands:
    """The proof stands, and has not been broken since it first stood."""

    state: ProverState


@dataclass(frozen=True)
class Refuse:
    """The launch ends here, with this code."""

    code: str
    message: str


ProofVerdict = Waiting | Stands | Refuse

CODE_OF_ROUND: Mapping[str, str] = {
    "open": "policy_not_enforced",
    "intercepted": "policy_intercepted",
    "leak": "policy_leak",
    "unserved": "witness_unserved",
    "unavailable": "witness_unavailable",
    "unusable": "probe_unusable",
}
"""The code that a round's verdict becomes when it is the last word."""


def judge(first_stood: ProverState | None, state: ProverState | None, *, bound_over: bool) -> ProofVerdict:
    """Say what ``state`` means. ``first_stood`` is the first state of this launch in which the proof stood.

    A fall between two looks shows itself by another ``standing_since``: a proof that was broken is another one.
    """
    # Another prover process than the one whose proof stood: the pod has not lived through one proof.
    if first_stood is not None and state is not None and state.start_id != first_stood.start_id:
        return Refuse("gate_restarted", "The prover restarted after its proof had stood; the run was not released.")
    # The proof had stood and does not any more, or fell and stood up again while nobody looked.
    if first_stood is not None and state is not None and not _same_proof(first_stood, state):
        return Refuse(before_release(_code(state)), f"The proof stood and fell before the release: {_detail(state)}.")
    # It stood already in a state that nobody saw; only a take-over or a cut stream can miss that.
    if first_stood is None and state is not None and state.ever_stood and not state.standing:
        return Refuse(before_release(_code(state)), f"The proof stood and fell before the release: {_detail(state)}.")
    if state is not None and state.standing:
        return Stands(state)
    if bound_over:
        return Refuse(_code(state), f"No proof came to stand within its bound; the last round: {_detail(state)}.")
    return Waiting(_detail(state))


def _same_proof(first: ProverState, now: ProverState) -> bool:
    return now.standing and now.standing_since == first.standing_since


def _code(state: ProverState | None) -> str:
    bad = _telling(state)
    if bad is None:
        return "probe_unusable"
    if "witness_family_missing" in bad.detail:
        return "witness_family_missing"
    return CODE_OF_ROUND.get(bad.verdict, "probe_unusable")


def _telling(state: ProverState | None) -> LastRound | None:
    """Return the last round that was not proven: the newest one may be another family's, which is proven."""
    return None if state is None else state.last_bad or state.last


def _detail(state: ProverState | None) -> str:
    if state is None:
        return "the prover has not answered yet"
    bad = _telling(state)
    if bad is None:
        return "the prover has not finished a round yet"
    family = f" (IPv{bad.family})" if bad.family else ""
    return f"{bad.verdict}{family} {bad.detail}".strip()


def families_missing(pod_ips: tuple[str, ...], witness_ips: Mapping[str, str]) -> tuple[str, ...]:
    """Address families that the pod has and the witness's Service has not: an unpoliced family would be a hole."""
    families = {"6" if ":" in ip else "4" for ip in pod_ips}
    return tuple(sorted(families - set(witness_ips)))
