"""What differs between platforms, and between egress profiles: frozen data, and the few functions that apply it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from isolation.options import EgressProfile, IsolationOptions
from isolation.resources import Share, Shares
from isolation.spec import JobSpec, SpecInvalid

PlatformName = Literal["generic", "gke-autopilot"]


@dataclass(frozen=True)
class Added:
    """Something that a platform adds to every pod. Attestation lets nothing but this pass, and only as an addition.

    ``parent`` is the path of the map or list it is added to. In a map ``prefix`` is how the added member's name begins;
    in a list, or when ``parent`` itself is added, ``value`` is the whole of it.
    """

    parent: str
    prefix: str | None = None
    value: Any = None


@dataclass(frozen=True)
class Platform:
    """A kind of cluster with its own ideas about resources. Amounts are per container unless said otherwise."""

    name: PlatformName
    cpu_floor: int = 1
    """Millicores."""
    cpu_step: int = 1
    """Millicores."""
    memory_per_cpu: tuple[int, int] | None = None
    """Least and most MiB per processor."""
    disk_per_pod: int | None = None
    """Most MiB of local disk of a whole pod."""
    adds: tuple[Added, ...] = ()

    def conform(self, share: Share) -> Share:
        """The least share that covers what was asked and that the platform has no reason to rewrite."""
        cpu, memory = max(share.millicores, self.cpu_floor), share.memory_mib
        if self.memory_per_cpu is not None:
            cpu = max(cpu, _up(memory * 1000, self.memory_per_cpu[1]))
        cpu = _up(cpu, self.cpu_step) * self.cpu_step
        if self.memory_per_cpu is not None:
            memory = max(memory, _up(cpu * self.memory_per_cpu[0], 1000))
        return replace(share, millicores=cpu, memory_mib=memory)


def _up(amount: int, by: int) -> int:
    """Division rounded up."""
    return -(-amount // by)


GENERIC = Platform("generic")

GKE_AUTOPILOT = Platform(
    "gke-autopilot",
    cpu_floor=250,
    cpu_step=250,
    memory_per_cpu=(1024, 6656),
    disk_per_pod=10_240,
    adds=(
        Added("$.metadata.annotations", prefix="autopilot.gke.io/"),
        Added("$.metadata.annotations", prefix="dev.gvisor."),
        Added("$.metadata.labels", prefix="autopilot.gke.io/"),
        Added("$.metadata.labels", prefix="topology.kubernetes.io/"),
        Added("$.spec.nodeSelector", value=MappingProxyType({"sandbox.gke.io/runtime": "gvisor"})),
        Added(
            "$.spec.tolerations",
            value=MappingProxyType(
                {"effect": "NoSchedule", "key": "sandbox.gke.io/runtime", "operator": "Equal", "value": "gvisor"}
            ),
        ),
        Added(
            "$.spec.tolerations",
            value=MappingProxyType(
                {"effect": "NoSchedule", "key": "kubernetes.io/arch", "operator": "Equal", "value": "amd64"}
            ),
        ),
    ),
)

PLATFORMS: Mapping[str, Platform] = MappingProxyType({p.name: p for p in (GENERIC, GKE_AUTOPILOT)})


def conformed(platform: Platform, asked: Shares) -> Shares:
    """All shares as the platform wants them. Raises SpecInvalid when the pod's disk is beyond the platform."""
    fitted = Shares(
        prover=platform.conform(asked.prover),
        gate=platform.conform(asked.gate),
        keeper=platform.conform(asked.keeper),
        worker=platform.conform(asked.worker),
    )
    if platform.disk_per_pod is not None and fitted.disk_mib > platform.disk_per_pod:
        have, need = f"{platform.disk_per_pod:,}", f"{fitted.disk_mib:,}"
        message = f"{platform.name} gives a pod {have} MiB of local disk, and with logs this one would need {need}"
        raise SpecInvalid([{"path": "$.diskMb", "message": message}])
    return fitted


def egress_profile(spec: JobSpec, options: IsolationOptions) -> EgressProfile:
    """The profile that the spec names. Raises SpecInvalid when the operator has none of that name."""
    profile = options.egress_profiles.get(spec.egress)
    if profile is None:
        known = ", ".join(sorted(options.egress_profiles))
        raise SpecInvalid(
            [{"path": "$.egress", "message": f"is no egress profile of this installation; there are: {known}"}]
        )
    return profile
