"""What a fake node lets happen to a pod: a value per run, with a healthy course as its default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Moment = Literal["start", "standing", "seed_begun", "seeded", "released", "worker_started", "worker_ended"]
"""Points in a pod's life that something can be tied to. ``start`` is the prover's."""

Unproven = Literal["open", "intercepted", "leak", "unserved", "unavailable", "unusable"]


@dataclass(frozen=True)
class At:
    """So many seconds after a moment."""

    moment: Moment
    after: float = 0.0


@dataclass(frozen=True)
class Fall:
    """From then on rounds are not proven any more, for ever or for so many seconds."""

    at: At
    verdict: Unproven = "open"
    seconds: float | None = None


@dataclass(frozen=True)
class Worker:
    """How the worker behaves once it runs."""

    seconds: float | None = 1.0
    """Until it ends by itself; None: never."""
    exit_code: int = 0
    reason: str | None = None
    """By default ``Completed`` for 0, ``Error`` otherwise; or ``OOMKilled``, ``StartError`` …"""
    output: tuple[bytes, ...] = (b"hello",)
    result: bytes | None = b'{"ok":true}'
    """Content of output/result.json; None: it leaves none."""
    files: Mapping[str, bytes] | None = None
    """What the workspace holds afterwards, by relative path; None: what was seeded."""
    excluded: tuple[str, ...] = ()
    """Directories that the sender says it dropped."""
    on_term: int | None = 143
    """Its exit code when told to end, half a second later; None: it ignores that and is killed (137)."""


@dataclass(frozen=True)
class Script:
    """One pod's course. Times in seconds."""

    schedules_after: float = 0.02
    unschedulable: bool = False
    starts_after: float = 0.5
    gate_image_error: str | None = None
    """Message of an ErrImagePull of the trusted image."""
    enforced: bool = True
    """Whether the policy is enforced at all; else every round ends in ``unproven``."""
    unproven: Unproven = "open"
    enforced_after: float = 0.5
    """How late the policy comes into force, from the prover's start or the policy's creation, whichever is later."""
    by: Literal["drop", "refusal"] = "drop"
    node_exposure: tuple[str, ...] = ()
    fall: Fall | None = None
    prover_restarts: At | None = None
    seed_cut_after: int | None = None
    """Bytes of the archive after which the stream breaks."""
    seed_cuts: int = 1
    """How many transfers are cut so."""
    gate_hangs: bool = False
    """It does not act on a marker, and ends at its bound."""
    worker_starts_after: float = 1.0
    worker_image_error: str | None = None
    worker: Worker = field(default_factory=Worker)
    keeper_dies: At | None = None
    evicted: At | None = None
    vanishes: At | None = None
    """The node is lost and the pod object goes, without a kubelet seeing anything end."""
    drains_slowly: float = 0.0
    """Additional seconds until a deleted pod is gone."""
    image_ids: Mapping[str, str] = field(default_factory=dict)
    """imageID by container, where it is to differ from the image that was asked for."""
