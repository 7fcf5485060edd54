"""What a launch tells while it is under way: which step was reached, and after how many seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

Stage = Literal["created", "gate", "proven", "seeded", "released", "started", "ended"]

STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the usual order; ``proven`` and ``seeded`` overlap and may come either way round."""


@dataclass(frozen=True)
class ProgressEvent:
    """One step of a run was reached. ``at_seconds`` counts from the call of ``launch``, on a monotonic clock."""

    stage: Stage
    at_seconds: float
    detail: str = ""


Progress = Callable[[ProgressEvent], None]
"""Called from the launcher's own task: it must return at once and must not raise."""
