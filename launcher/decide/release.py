"""Whether the pod that is about to be released is the one that was attested and proven. Pure."""

from dataclasses import dataclass

from launcher.cluster.views import PodView
from launcher.decide.proof import ProverState


@dataclass(frozen=True)
class Lives:
    """What must not have changed between the gate's first sight and the release: one life of each trusted container."""

    uid: str
    prover: str | None
    gate: str | None
    ips: tuple[str, ...]

    @classmethod
    def of(cls, pod: PodView) -> "Lives":
        """Read them off a pod whose gate runs."""
        return cls(
            uid=pod.uid,
            prover=pod.prover.container_id if pod.prover else None,
            gate=pod.gate.container_id if pod.gate else None,
            ips=pod.ips,
        )


def restarted(pod: PodView, first: Lives | None = None) -> str | None:
    """Say what restarted (or was remade) since ``first``, in words; None when this is still its first and only life."""
    for name, container in (("prover", pod.prover), ("gate", pod.gate)):
        if container is not None and (container.restarts or container.last is not None):
            return f"the {name} restarted"
    if first is None:
        return None
    now = Lives.of(pod)
    if now.ips != first.ips:
        return "the pod's address changed"
    if (now.prover, now.gate) != (first.prover, first.gate):
        return "a container was replaced"
    return None


def exposure_refused(state: ProverState, policy: str) -> str | None:
    """Say what of the node the pod can reach when the operator wants that refused; None otherwise."""
    if policy == "refuse" and state.node_exposure:
        return ", ".join(state.node_exposure)
    return None
