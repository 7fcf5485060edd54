"""What the gate's end means for the launch that waits for it. Pure. Nothing untrusted ran behind a closed gate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launcher.cluster.views import PodView, Terminated
from launcher.decide.outcome import Outcome, failed, lost
from launcher.errors import CODES
from records.model import Evidence

NO_PROOF = 40
"""The gate's exit code whose message names the proof's own code."""

BOUND_OVER = 44
"""The gate's exit code when no marker came: what that means depends on whether a launcher is left."""

_GATE_EXITS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        NO_PROOF: ("probe_unusable", "the marker came and the proof did not stand"),
        41: ("gate_restarted", "the prover was away or had restarted when the marker came"),
        42: ("launch_superseded", "the marker was for another pod, epoch or seed"),
        43: ("sandbox_lost", "the gate was ended by a signal"),
        BOUND_OVER: ("pod_start_timeout", "no marker came within the provision bound"),
        45: ("seed_failed", "the seed was missing or damaged"),
    }
)
"""Exit code → code and sentence."""


@dataclass(frozen=True)
class GateRefusal:
    """The gate stayed closed: the code that fails the launch, and what the gate said."""

    code: str
    message: str


def gate_verdict(pod: PodView) -> GateRefusal | None:
    """Return why the gate stayed closed, for the launch that holds it; None while it waits, and when it opened."""
    outcome = gate_failed(pod)
    if outcome is None:
        return None
    return GateRefusal(outcome.result.reason, outcome.result.message or "The gate stayed closed.")


def gate_failed(pod: PodView, *, abandoned: bool = False) -> Outcome | None:
    """Say how a gate that stayed closed ends the run; None while it waits, and when it opened.

    ``abandoned``: no launcher held the run any more, so a marker that never came is nobody's delay.
    """
    end = pod.gate.terminated if pod.gate else None
    if end is None or end.exit_code == 0:
        return None
    if end.exit_code is None or end.exit_code not in _GATE_EXITS:
        return _gate_broken(pod, end)
    said = gate_message(end)
    code, sentence = _GATE_EXITS[end.exit_code]
    if end.exit_code == NO_PROOF:
        code = said["code"] if said.get("code") in CODES else code
    if end.exit_code == BOUND_OVER and abandoned:
        code = "launch_abandoned"
    message = f"{sentence}: {said['message']}" if said.get("message") else sentence
    return lost(code, message) if code == "sandbox_lost" else failed(code, message)


def _gate_broken(pod: PodView, end: Terminated) -> Outcome:
    if pod.reason == "DeadlineExceeded":
        return failed("pod_start_timeout", "the pod's own deadline came before the gate opened")
    return failed("pod_start_failed", f"the gate ended with {end.exit_code} ({end.reason})")


def gate_opened(pod: PodView) -> bool:
    """Whether the gate let the worker pass."""
    end = pod.gate.terminated if pod.gate else None
    return end is not None and end.exit_code == 0


def gate_evidence(pod: PodView) -> Evidence:
    """What the gate said, for the record; empty while it waits."""
    end = pod.gate.terminated if pod.gate else None
    if end is None or end.exit_code is None:
        return Evidence()
    return Evidence(gate_exit=end.exit_code, gate_message=gate_message(end).get("message"))


def gate_message(end: Terminated) -> dict[str, str]:
    """The gate's ``code`` and ``message``, as far as its termination message holds them; {} when kubelets cut it."""
    try:
        said = json.loads(end.message or "")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(said, dict):
        return {}
    return {key: value for key in ("code", "message") if isinstance(value := said.get(key), str) and value}
