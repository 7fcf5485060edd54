"""Figures for people: a table on a terminal, or one in Markdown to be pasted."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figures import Figure

WIDTH = 110
HEAD = ("", "median", "min", "max", "", "n", "goal", "")
NUMBERS = range(1, 4)
"""Columns that are right-aligned."""


def show(facts: Mapping[str, str], figures: Sequence[Figure]) -> None:
    """Print facts and table."""
    table = Table()
    for number, name in enumerate(HEAD):
        table.add_column(name, justify="right" if number in NUMBERS else "left", no_wrap=True)
    for each in figures:
        table.add_row(*cells(each))
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)  # a wrapped table of figures cannot be read
    for name, value in facts.items():
        console.print(f"{name}: {value}", markup=False)
    console.print(table)


def markdown(facts: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """Return facts and table for ``docs/performance.md``."""
    lines = [f"* {name}: {value}" for name, value in facts.items()]
    lines += ["", _row(name or " " for name in HEAD), "|" + "---|" * len(HEAD)]
    return "\n".join([*lines, *(_row(cells(each)) for each in figures)])


def cells(each: Figure) -> tuple[str, ...]:
    """Return one row."""
    said: dict[str, Any] = each.as_json()
    met = {None: "", True: "met", False: "missed"}[each.met]
    numbers = [f"{said[key]:,.2f}" for key in ("median", "min", "max")]
    return (each.name, *numbers, each.unit, str(said["n"]), said["goal"] or "", met)


def _row(parts: Any) -> str:
    return "| " + " | ".join(parts) + " |"
