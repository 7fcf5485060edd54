"""What the gate's end means for the launch that waits for it. Pure."""

from dataclasses import dataclass

from launcher.cluster.views import PodView
from launcher.decide.outcome import gate_failed


@dataclass(frozen=True)
class GateRefusal:
    """The gate stayed closed: the code that fails the launch, and what the gate said."""

    code: str
    message: str


def gate_verdict(pod: PodView) -> GateRefusal | None:
    """Return why the gate stayed closed; None while it waits, and when it opened."""
    outcome = gate_failed(pod)
    if outcome is None:
        return None
    return GateRefusal(outcome.result.reason, outcome.result.message or "The gate stayed closed.")
