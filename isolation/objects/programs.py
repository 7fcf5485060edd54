"""Configuration of the in-pod programs, and the commands that run them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from isolation.digest import canonical_json
from isolation.inpod import ProgramName, source
from isolation.options import Port

INTERPRETER = ("python3", "-I", "-S", "-c")
"""Isolated, and without ``site``: the image's own site customisations have no part in a proof.

It also starts sooner so.
"""

POD_UID_ENV = "PODGATE_POD_UID"
"""Downward API ``metadata.uid``; prover and gate."""
POD_IPS_ENV = "PODGATE_POD_IPS"
"""Downward API ``status.podIPs``; prover and canary."""
HOST_IPS_ENV = "PODGATE_HOST_IPS"
"""Downward API ``status.hostIPs``; prover and canary."""

Family = Literal["4", "6"]
Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]


class _Config(BaseModel):
    """Frozen; spelt in camelCase on the command line."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, validate_default=True
    )


class Target(_Config):
    """An address that must be closed. ``name`` is what evidence calls it."""

    ip: str
    port: Port
    protocol: Literal["tcp", "udp"] = "tcp"
    name: Annotated[str, Field(min_length=1, max_length=200)]


Targets = Annotated[tuple[Target, ...], Field(max_length=32)]
"""At most 32: each is one more socket in every round, and rounds overlap."""


class ProverConfig(_Config):
    """What the prover looks at, and how long what may last. ``witness`` has the Service's ClusterIP of each family."""

    witness: dict[Family, str]
    control_port: Port
    deny_port: Port
    health_port: Port
    targets: Targets = ()
    timeout_seconds: Annotated[int, Field(ge=1)]
    on_blind: Literal["kill", "record"] = "kill"
    blind_after_seconds: Seconds = 300
    state_file: str = "/run/prover/verdict.json"
    interval_seconds: Seconds = 0.25
    """Between rounds until 5 s after the release, and after a round that was not proven."""
    calm_seconds: Seconds = 15
    """Between rounds of a standing proof after that."""
    unusable_after_seconds: Seconds = 30
    timeout_grace_seconds: Annotated[float, Field(ge=0)] = 15
    """Beyond the timeout: the launcher, if there is one, ends a worker sooner."""
    fresh_seconds: Seconds = 2
    """How old the last proven round of a family may be at the release."""


class GateConfig(_Config):
    """Where the seed lies and how long the gate waits, in seconds from its start."""

    root: str = "/run/podgate"
    health_port: Port
    bound_seconds: Seconds
    termination_log: str = "/dev/termination-log"


class FollowConfig(_Config):
    """Where the marker goes and where the prover answers."""

    root: str = "/run/podgate"
    health_port: Port


class KeeperConfig(_Config):
    """The keeper needs to know nothing."""


class WitnessConfig(_Config):
    """The two ports; the second one over TCP and UDP."""

    control_port: Port
    deny_port: Port


class Address(_Config):
    """Where the open canary listens."""

    ip: str
    port: Port


class CanaryConfig(_Config):
    """The preflight's probe. ``latency_targets`` are the open canary's addresses, for the policed one."""

    mode: Literal["open", "policed"]
    witness: dict[Family, str]
    control_port: Port
    deny_port: Port
    listen_port: Port = 8789
    targets: Targets = ()
    latency_targets: Annotated[tuple[Address, ...], Field(max_length=4)] = ()
    bound_seconds: Seconds = 60
    idle_seconds: Seconds = 300


AnyConfig = ProverConfig | GateConfig | FollowConfig | KeeperConfig | WitnessConfig | CanaryConfig


def canonical(config: BaseModel) -> str:
    """Return the configuration as one canonical JSON object."""
    return canonical_json(config.model_dump(mode="json", by_alias=True)).decode()


def argv(program: ProgramName, config: BaseModel) -> list[str]:
    """Return the argument vector that runs a program, for an exec: nothing is expanded there."""
    return [*INTERPRETER, source(program), canonical(config)]


def pod_command(program: ProgramName, config: BaseModel) -> tuple[list[str], list[str]]:
    """Return (command, args) for a container.

    ``$`` is doubled: the kubelet turns ``$$`` into ``$`` and expands ``$(NAME)``.
    """
    *command, settings = (word.replace("$", "$$") for word in argv(program, config))
    return command, [settings]
