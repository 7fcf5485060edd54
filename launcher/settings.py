"""Settings as one frozen value. ``settings_sources.py`` reads them, ``settings_table.py`` says what they mean."""

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        if self.renewal >= self.lease:
            msg = "renewal_seconds must be below lease_seconds, or every launch loses its own lease"
            raise ValueError(msg)
        return self


class Settings(BaseModel):
    """What the launcher needs to know, frozen. ``isolation`` is the part that shapes objects."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    isolation: IsolationOptions
    bounds: Bounds = Bounds()
    workspace_root: Path | None = None
    node_exposure: Literal["record", "refuse"] = "record"
    kubeconfig: Path | None = None
    context: str | None = None

    @field_validator("workspace_root")
    @classmethod
    def _confined(cls, root: Path | None) -> Path | None:
        """A root of ``/`` would bind nothing; links are followed, since a link to ``/`` is the same."""
        if root is None:
            return None
        if not root.is_absolute():
            msg = "must be an absolute path"
            raise ValueError(msg)
        if os.path.realpath(root) == "/":
            msg = "must not be /, which would let a spec name any file of this machine"
            raise ValueError(msg)
        return root
