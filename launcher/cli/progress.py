"""What a launch tells, kept for ``timings`` and, on a terminal, shown while it happens."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from launcher.progress import STAGES, ProgressEvent, Stage

_WORDS: dict[Stage, str] = {
    "created": "record created",
    "gate": "gate is up",
    "proven": "isolation proven",
    "seeded": "workspace seeded",
    "released": "released",
    "started": "worker started",
    "ended": "worker ended",
}
_SHOWN: tuple[Stage, ...] = ("created", "gate", "proven", "seeded", "released", "started")
"""Stages with a line of their own while a launch is under way; the worker's output follows them."""


class Timings:
    """Seconds since the launch at which each stage was reached; the first report of a stage counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._at: dict[Stage, float] = {}
        self._details: dict[Stage, str] = {}

    def note(self, event: ProgressEvent) -> None:
        """Keep what the launcher reports."""
        self._at.setdefault(event.stage, event.at_seconds)
        self._details.setdefault(event.stage, event.detail)

    def reached(self, stage: Stage) -> None:
        """Note a stage that the command itself saw."""
        self.note(ProgressEvent(stage, self.elapsed()))

    def elapsed(self) -> float:
        """Seconds since the launch."""
        return self._clock() - self._began

    def at(self, stage: Stage) -> float | None:
        """Seconds at which a stage was reached."""
        return self._at.get(stage)

    def detail(self, stage: Stage) -> str:
        """What the launcher said about a stage."""
        return self._details.get(stage, "")

    def as_json(self) -> dict[str, float | None]:
        """Every stage, null when it was not reached; seconds with milliseconds."""
        return {stage: None if stage not in self._at else round(self._at[stage], 3) for stage in STAGES}


class Display(AbstractContextManager["Display"]):
    """Shows the stages on stderr until :meth:`close`; does nothing when that is not a terminal."""

    def __init__(self, timings: Timings, *, console: Console | None = None) -> None:
        self._timings = timings
        self._console = console or Console(file=sys.stderr, highlight=False)
        self._spinner = Spinner("dots")
        self._live: Live | None = None
        self.waiting = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._picture, console=self._console, refresh_per_second=8, redirect_stdout=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the reached stages on the screen and stop drawing, before output or an error is printed."""
        if self._live is not None:
            live, self._live = self._live, None
            self._finished = True
            live.stop()

    _finished = False

    def _picture(self) -> Group:
        lines = Table.grid(padding=(0, 2, 0, 0))
        for stage in _SHOWN:
            at = self._timings.at(stage)
            if at is not None:
                lines.add_row(f"{at:6.1f} s", _WORDS[stage], self._timings.detail(stage).replace("[", r"\["))
        if self._finished:
            return Group(lines)
        self._spinner.update(text=f"{self._timings.elapsed():.1f} s  {self.waiting}".replace("[", r"\["))
        return Group(lines, self._spinner)
