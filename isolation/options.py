"""What an operator chose, as far as it shapes a run's objects. Frozen; the launcher's settings produce it."""

import ipaddress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

Frozen = ConfigDict(frozen=True, extra="forbid")

Port = Annotated[int, Field(ge=1, le=65535)]
Digested = Annotated[str, Field(pattern=r"^[^@\s]+@sha256:[0-9a-f]{64}$")]
Dns1123 = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Subdomain = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Uid = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""Never 0: every container runs as non-root."""


def _canonical_address(text: str) -> str:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        raise ValueError("an address with a zone is of one host only")
    return str(address)


def _canonical_network(text: str) -> str:
    return str(ipaddress.ip_network(text))


Address = Annotated[str, AfterValidator(_canonical_address)]
"""A literal IPv4 or IPv6 address, in its canonical spelling."""
Network = Annotated[str, AfterValidator(_canonical_network)]
"""A CIDR without host bits, in its canonical spelling."""


class Uids(BaseModel):
    """Numeric identities inside the pod.

    The prover's differs from the worker's, so that the worker can neither signal it nor take its port.
    """

    model_config = Frozen
    prover: Uid = 64000
    worker: Uid = 64001
    group: Uid = 64002

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.prover == self.worker:
            raise ValueError("prover and worker need different uids")
        return self


class HostAlias(BaseModel):
    """A name that the worker may resolve without DNS."""

    model_config = Frozen
    ip: Address
    hostnames: Annotated[tuple[Subdomain, ...], Field(min_length=1)]


class EgressRule(BaseModel):
    """One destination that an egress profile opens: pods by selectors, or a CIDR; and one port.

    Pods are of the run's namespace unless another is selected.
    """

    model_config = Frozen
    pod_selector: dict[str, str] | None = None
    namespace_selector: dict[str, str] | None = None
    cidr: Network | None = None
    port: Port
    protocol: Literal["TCP", "UDP"] = "TCP"

    @model_validator(mode="after")
    def _one_destination(self) -> Self:
        selected = self.pod_selector is not None or self.namespace_selector is not None
        if selected == (self.cidr is not None):
            raise ValueError("give either selectors or a cidr")
        return self


class EgressProfile(BaseModel):
    """What a run may reach besides the witness's control port."""

    model_config = Frozen
    rules: tuple[EgressRule, ...] = ()
    host_aliases: tuple[HostAlias, ...] = ()
    dns: bool = False


class ClosedTarget(BaseModel):
    """An address that must be closed for a run, tried in every round. ``name`` is what evidence and errors call it."""

    model_config = Frozen
    ip: Address
    port: Port
    protocol: Literal["tcp", "udp"] = "tcp"
    name: Annotated[str, Field(min_length=1, max_length=100)]


class Allowance(BaseModel):
    """A reviewed difference that attestation lets through: exact JSON path, and exact value or prefix.

    ``value`` is the stored value. ``prefix`` is the beginning of a stored string; an image must still have the digest
    that was sent. What the cluster takes away can never be allowed.
    """

    model_config = Frozen
    path: Annotated[str, Field(pattern=r"^\$.")]
    value: JsonValue = None
    prefix: Annotated[str, Field(min_length=1)] | None = None
    reason: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.value is None) == (self.prefix is None):
            raise ValueError("give either value or prefix")
        return self


NO_EGRESS = "none"
"""The profile that every run has unless it asks for another: the witness's control port and nothing else."""


def _with_none(profiles: dict[str, EgressProfile]) -> dict[str, EgressProfile]:
    if profiles.get(NO_EGRESS, EgressProfile()) != EgressProfile():
        raise ValueError(f"the egress profile {NO_EGRESS!r} opens nothing")
    return {NO_EGRESS: EgressProfile(), **profiles}


class IsolationOptions(BaseModel):
    """Everything besides the spec that the canonical manifests depend on."""

    model_config = Frozen
    namespace: Dns1123 = "podgate"
    trusted_image: Digested
    witness: Dns1123 = "podgate-witness"
    control_port: Port = 8787
    deny_port: Port = 8788
    health_port: Port = 8799
    runtime_class: Subdomain | None = None
    priority_class: Subdomain | None = None
    platform: Literal["generic", "gke-autopilot"] = "generic"
    network_policy_scope: Literal["run", "shared"] = "run"
    egress_profiles: Annotated[dict[Dns1123, EgressProfile], AfterValidator(_with_none)] = Field(
        default_factory=lambda: {NO_EGRESS: EgressProfile()}
    )
    closed_targets: Annotated[tuple[ClosedTarget, ...], Field(max_length=32)] = ()
    """At most 32: the prover tries each in every round, and rounds overlap."""
    allowances: tuple[Allowance, ...] = ()
    on_blind: Literal["kill", "record"] = "kill"
    blind_after_seconds: Annotated[int, Field(ge=1)] = 300
    uids: Uids = Uids()
    provision_seconds: Annotated[int, Field(ge=1)] = 300
    collect_window_seconds: Annotated[int, Field(ge=0)] = 3600
    stop_grace_seconds: Annotated[int, Field(ge=1)] = 10

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.control_port == self.deny_port:
            raise ValueError("the witness needs two different ports")
        if self.platform == "gke-autopilot" and self.runtime_class is None:
            raise ValueError("gke-autopilot needs a runtime_class: gVisor is what isolates there")
        return self
