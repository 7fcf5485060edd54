"""What an operator chose, as far as it shapes a run's objects. Frozen; the launcher's settings produce it."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Frozen = ConfigDict(frozen=True, extra="forbid")

Port = Annotated[int, Field(ge=1, le=65535)]
Digested = Annotated[str, Field(pattern=r"^[^@\s]+@sha256:[0-9a-f]{64}$")]
Dns1123 = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class Uids(BaseModel):
    """Numeric identities inside the pod. The prover's differs from the worker's, so that the worker can neither signal it nor take its port."""

    model_config = Frozen
    prover: Annotated[int, Field(ge=1, le=2**31 - 1)] = 64000
    worker: Annotated[int, Field(ge=1, le=2**31 - 1)] = 64001
    group: Annotated[int, Field(ge=1, le=2**31 - 1)] = 64002


class HostAlias(BaseModel):
    """A name that the worker may resolve without DNS."""

    model_config = Frozen
    ip: str
    hostnames: tuple[str, ...]


class EgressRule(BaseModel):
    """One destination an egress profile opens: pods by selectors, or a CIDR; one port."""

    model_config = Frozen
    pod_selector: dict[str, str] | None = None
    namespace_selector: dict[str, str] | None = None
    cidr: str | None = None
    port: Port
    protocol: Literal["TCP", "UDP"] = "TCP"


class EgressProfile(BaseModel):
    """What a run may reach besides the witness's control port."""

    model_config = Frozen
    rules: tuple[EgressRule, ...] = ()
    host_aliases: tuple[HostAlias, ...] = ()
    dns: bool = False


class ClosedTarget(BaseModel):
    """An address that must be closed for a run, tried in every round. ``name`` is what evidence and errors call it."""

    model_config = Frozen
    ip: str
    port: Port
    protocol: Literal["tcp", "udp"] = "tcp"
    name: str


class Allowance(BaseModel):
    """A reviewed difference that attestation lets through: exact JSON path, and exact value or prefix."""

    model_config = Frozen
    path: str
    value: object | None = None
    prefix: str | None = None
    reason: Annotated[str, Field(min_length=1)]


class IsolationOptions(BaseModel):
    """Everything besides the spec that the canonical manifests depend on."""

    model_config = Frozen
    namespace: Dns1123 = "podgate"
    trusted_image: Digested
    witness: Dns1123 = "podgate-witness"
    control_port: Port = 8787
    deny_port: Port = 8788
    health_port: Port = 8799
    runtime_class: str | None = None
    priority_class: str | None = None
    platform: Literal["generic", "gke-autopilot"] = "generic"
    network_policy_scope: Literal["run", "shared"] = "run"
    egress_profiles: dict[str, EgressProfile] = Field(default_factory=lambda: {"none": EgressProfile()})
    closed_targets: tuple[ClosedTarget, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    on_blind: Literal["kill", "record"] = "kill"
    blind_after_seconds: Annotated[int, Field(ge=1)] = 300
    uids: Uids = Uids()
    provision_seconds: Annotated[int, Field(ge=1)] = 300
    collect_window_seconds: Annotated[int, Field(ge=0)] = 3600
    stop_grace_seconds: Annotated[int, Field(ge=1)] = 10
