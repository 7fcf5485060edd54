"""The record: everything that is known about a run. One frozen value; a change gives a new one."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

SCHEMA_VERSION = 1

MESSAGE_LIMIT = 500
"""Characters of any message kept in a record; longer ones are cut, so that the record's size stays bounded."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, strict=False)


def _utc_milliseconds(at: datetime) -> datetime:
    if at.tzinfo is None:
        msg = "a time without a zone"
        raise ValueError(msg)
    at = at.astimezone(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, the one spelling that records hold."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


Time = Annotated[datetime, AfterValidator(_utc_milliseconds), PlainSerializer(format_time, return_type=str)]


class Phase(StrEnum):
    """Where a run stands. The last five are terminal; ``removed`` is a tombstone."""

    PROVISIONING = "provisioning"
    RELEASING = "releasing"
    ACTIVE = "active"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"
    REMOVED = "removed"

    @property
    def terminal(self) -> bool:
        """True when the run's outcome is known and will not change any more."""
        return self in _TERMINAL


_TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST, Phase.REMOVED})


class Lease(_Value):
    """Who provisions this run, and until when. ``epoch`` rises by one with every take-over."""

    holder: str
    epoch: Annotated[int, Field(ge=1)]
    expires_at: Time


class Stop(_Value):
    """The intent to stop; the run may still have ended on its own before."""

    requested_at: Time
    reason: str | None = None


class PodRef(_Value):
    """The one pod of this run. A pod of the same name with another uid is not ours."""

    uid: str
    name: str


class Result(_Value):
    """How the run ended.

    ``exit_code`` and ``reason`` are fixed by the terminal write; ``diagnostic``, ``result_artifact`` and ``artifacts`` are filled
    in by collect. ``artifacts`` says whether the pod's files can still be had: ``unknown`` before collect looked.
    """

    exit_code: int
    reason: str
    diagnostic: str | None = None
    message: str | None = None
    retriable: bool = False
    result_artifact: dict[str, Any] | None = None
    artifacts: Literal["unknown", "collected", "absent", "expired", "invalid"] = "unknown"


class Rounds(_Value):
    """The prover's measurements: seconds are Unix times of the node's clock."""

    count: int = 0
    proven: int = 0
    first_at: float | None = None
    first_good_at: float | None = None
    standing_since: float | None = None
    last_at: float | None = None
    last_verdict: str | None = None


class Evidence(_Value):
    """Why this run was allowed to start, and whether it was isolated to its end. Fixed in size."""

    pod_uid: str | None = None
    pod_digest: str | None = None
    policy_digest: str | None = None
    policy_uid: str | None = None
    policy_name: str | None = None
    start_id: str | None = None
    witness_backends: dict[str, str] = Field(default_factory=dict)
    rounds: Rounds | None = None
    by: Literal["drop", "refusal"] | None = None
    policy_latency_seconds: float | None = None
    node_exposure: tuple[str, ...] | None = None
    seed_sha256: str | None = None
    seed_bytes: int | None = None
    image_ids: dict[str, str] = Field(default_factory=dict)
    gate_exit: int | None = None
    gate_message: str | None = None
    end: Literal["unknown", "standing", "open", "intercepted", "leak", "blind", "unusable", "timeout"] | None = None
    blind_since: float | None = None
    warnings: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()


class TimelineEntry(_Value):
    """When the record entered a phase, by the API server's clock."""

    phase: Phase
    at: Time


class Record(_Value):
    """Everything known about a run. ``run_id`` and ``spec_hash`` are absent only in a tombstone made for an unknown handle."""

    schema_version: Literal[1] = SCHEMA_VERSION
    token: str
    run_id: str | None
    spec_hash: str | None
    manifest_digest: str | None = None
    phase: Phase
    created_at: Time
    provision_by: Time
    deadline_at: Time | None = None
    started_at: Time | None = None
    collect_until: Time | None = None
    disk_mb: int
    timeout_seconds: int
    collect_exclude: tuple[str, ...] = ()
    require_result: bool = False
    lease: Lease | None = None
    stop: Stop | None = None
    pod: PodRef | None = None
    result: Result | None = None
    evidence: Evidence = Evidence()
    timeline: tuple[TimelineEntry, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
