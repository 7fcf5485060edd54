"""Figures as values: samples, their median, and whether a goal is met."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Figure:
    """One line of the table. ``goal`` compares the median: ``at most`` or ``at least`` so much; None: no goal."""

    name: str
    unit: str
    samples: tuple[float, ...]
    goal: tuple[Literal["at most", "at least"], float] | None = None

    @property
    def median(self) -> float:
        """The middle sample."""
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.goal is None:
            return None
        kind, bound = self.goal
        return self.median <= bound if kind == "at most" else self.median >= bound

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            "name": self.name,
            "unit": self.unit,
            "n": len(self.samples),
            "min": min(self.samples),
            "median": self.median,
            "max": max(self.samples),
            "goal": None if self.goal is None else f"{self.goal[0]} {self.goal[1]:g}",
            "met": self.met,
        }


def figure(
    name: str, unit: str, samples: Sequence[float], goal: tuple[Literal["at most", "at least"], float] | None = None
) -> Figure:
    """Return a figure over at least one sample."""
    if not samples:
        raise ValueError(f"{name}: nothing was measured")
    return Figure(name, unit, tuple(samples), goal)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours over theirs, pair by pair: both were measured in turn, so the machine's drift cancels out."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]
