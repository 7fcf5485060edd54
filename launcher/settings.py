"""Settings: environment ``PODGATE_<UPPER_SNAKE>``, then a TOML file, then flags; later wins."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from isolation.options import IsolationOptions


class Bounds(BaseModel):
    """Every wait has its limit here, in seconds, with the reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    provision: Annotated[float, Field(gt=0)] = 300
    """Scheduling, pulls, proof and seed together; the gate knows it, too."""
    first_proof: Annotated[float, Field(gt=0)] = 60
    """Policy engines learn a new pod's address with a delay: seconds, on large clusters up to a minute."""
    preflight: Annotated[float, Field(gt=0)] = 120
    preflight_success_kept: Annotated[float, Field(ge=0)] = 600
    preflight_failure_kept: Annotated[float, Field(ge=0)] = 15
    lease: Annotated[float, Field(gt=0)] = 30
    renewal: Annotated[float, Field(gt=0)] = 10
    abandoned_after: Annotated[float, Field(ge=0)] = 60
    """How long a lease must have been over before an observer calls the launch abandoned."""
    remove_wait: Annotated[float, Field(gt=0)] = 60
    tombstone_kept: Annotated[float, Field(ge=0)] = 7 * 86_400
    orphan_age: Annotated[float, Field(ge=0)] = 900
    transfer_idle: Annotated[float, Field(gt=0)] = 60
    """A transfer without any progress for this long is broken: the server's own queues drain in a few seconds."""
    concurrent_launches: Annotated[int, Field(ge=1)] = 16


class Settings(BaseModel):
    """What the launcher needs to know, frozen. ``isolation`` is the part that shapes objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    isolation: IsolationOptions
    bounds: Bounds = Bounds()
    workspace_root: Path | None = None
    node_exposure: Literal["record", "refuse"] = "record"
    kubeconfig: Path | None = None
    context: str | None = None
