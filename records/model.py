"""The record: everything that is known about a run. One frozen value; a change gives a new one.

Text is cut at :data:`MESSAGE_LIMIT` characters and collections at their own limits when a value is made, never refused:
whatever a node or a policy engine says, the write that ends a run must be possible.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

SCHEMA_VERSION: Literal[1] = 1

MESSAGE_LIMIT = 500
"""Characters of any text kept in a record; longer ones are cut, so that the record's size stays bounded."""

TIMELINE_LIMIT = 8
"""Entries of a timeline. A run enters each phase at most once, so five are ever needed."""

_TIME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z", re.ASCII)

_T = TypeVar("_T")
_K = TypeVar("_K")


class _Value(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    def evolve(self, **changes: Any) -> Self:
        """Return this value with some fields changed, validated again (``model_copy`` would not)."""
        return type(self).model_validate({name: getattr(self, name) for name in type(self).model_fields} | changes)


def _one_spelling(at: Any) -> Any:
    if not isinstance(at, str):
        return at
    if not _TIME.fullmatch(at):
        msg = "a time that is not RFC 3339 in UTC with milliseconds"
        raise ValueError(msg)
    return datetime.fromisoformat(at)


def _utc_milliseconds(at: datetime) -> datetime:
    if at.tzinfo is None:
        msg = "a time without a zone"
        raise ValueError(msg)
    at = at.astimezone(UTC)
    return at.replace(microsecond=at.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds, the one spelling that records hold."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _cut(text: str) -> str:
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"


def _encodable(text: Any) -> Any:
    """Replace lone surrogates, which come from undecodable output and could not be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8") if isinstance(text, str) else text


def _first(limit: int) -> Callable[[tuple[_T, ...]], tuple[_T, ...]]:
    return lambda items: items[:limit]


def _few(limit: int) -> Callable[[dict[_K, _T]], dict[_K, _T]]:
    return lambda items: dict(sorted(items.items())[:limit]) if len(items) > limit else items


Time = Annotated[
    datetime,
    BeforeValidator(_one_spelling),
    AfterValidator(_utc_milliseconds),
    PlainSerializer(format_time, return_type=str),
]
Text = Annotated[str, BeforeValidator(_encodable), AfterValidator(_cut)]


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
    """Who provisions this run, and until when. ``epoch`` rises by one with every take-over.

    ``holder`` names one launch call, not a process: it is how a launch whose answer was lost recognises its own write.
    """

    holder: Text
    epoch: Annotated[int, Field(ge=1)]
    expires_at: Time


class Stop(_Value):
    """The intent to stop; the run may still have ended on its own before."""

    requested_at: Time
    reason: Text | None = None


class PodRef(_Value):
    """The one pod of this run. A pod of the same name with another uid is not ours."""

    uid: Text
    name: Text


class Result(_Value):
    """How the run ended.

    ``exit_code`` and ``reason`` are fixed by the terminal write; collect fills in ``diagnostic``, ``result_artifact``
    and ``artifacts``, which says whether the pod's files can still be had: ``unknown`` before collect looked.
    """

    exit_code: int
    reason: Text
    diagnostic: Text | None = None
    message: Text | None = None
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
    last_verdict: Text | None = None


class Evidence(_Value):
    """Why this run was allowed to start, and whether it was isolated to its end. Fixed in size."""

    pod_uid: Text | None = None
    pod_digest: Text | None = None
    policy_digest: Text | None = None
    policy_uid: Text | None = None
    policy_name: Text | None = None
    start_id: Text | None = None
    witness_backends: Annotated[dict[Text, Text], AfterValidator(_few(4))] = Field(default_factory=dict)
    rounds: Rounds | None = None
    by: Literal["drop", "refusal"] | None = None
    policy_latency_seconds: float | None = None
    node_exposure: Annotated[tuple[Text, ...], AfterValidator(_first(16))] | None = None
    seed_sha256: Text | None = None
    seed_bytes: int | None = None
    image_ids: Annotated[dict[Text, Text], AfterValidator(_few(16))] = Field(default_factory=dict)
    gate_exit: int | None = None
    gate_message: Text | None = None
    end: Literal["unknown", "standing", "open", "intercepted", "leak", "blind", "unusable", "timeout"] | None = None
    blind_since: float | None = None
    disruption: Text | None = None
    """The code of what was seen to begin ending the pod: an evicted pod, once gone, leaves no trace of why."""
    warnings: Annotated[tuple[Text, ...], AfterValidator(_first(16))] = ()
    violations: Annotated[tuple[Text, ...], AfterValidator(_first(64))] = ()

    def merged(self, news: "Evidence") -> "Evidence":
        """Add ``news``: what it says wins, what it leaves unsaid stays, so that two observers lose nothing.

        Only ``blind_since`` can be taken back, by saying None: a prover may see again.
        """
        said = {name: getattr(news, name) for name in news.model_fields_set}
        changes = {name: value for name, value in said.items() if value not in (None, (), {})}
        if "blind_since" in said:
            changes["blind_since"] = said["blind_since"]
        if "image_ids" in changes:
            changes["image_ids"] = self.image_ids | news.image_ids
        if "warnings" in changes:
            changes["warnings"] = tuple(dict.fromkeys(self.warnings + news.warnings))
        return self.evolve(**changes)


class TimelineEntry(_Value):
    """When the record entered a phase, by the API server's clock."""

    phase: Phase
    at: Time


class Record(_Value):
    """Everything known about a run. Only a tombstone made for an unknown handle has no ``run_id`` and ``spec_hash``."""

    schema_version: Literal[1] = SCHEMA_VERSION
    token: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
    run_id: Annotated[str, Field(min_length=1, max_length=200)] | None
    spec_hash: Annotated[str, Field(max_length=200)] | None
    manifest_digest: Annotated[str, Field(max_length=200)] | None = None
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
    timeline: Annotated[tuple[TimelineEntry, ...], Field(max_length=TIMELINE_LIMIT)] = ()
    labels: dict[str, str] = Field(default_factory=dict)

    def entered(self, *phases: Phase) -> datetime | None:
        """Return when the record first entered one of ``phases``, or None when it never did."""
        return next((entry.at for entry in self.timeline if entry.phase in phases), None)

    @property
    def ended_at(self) -> datetime | None:
        """When the outcome was written; None while there is none."""
        return self.entered(Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED, Phase.LOST)
