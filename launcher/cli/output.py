"""What a command prints: one JSON object, or words and tables for a person; and the worker's output, byte for byte."""

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.table import Table

from launcher.contract import JobResult, JobStatus, Materialized

_PIPE_WIDTH = 160
"""Columns of a table that is not shown on a terminal: wide enough that nothing a program greps for is broken."""


def as_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line of stdout."""
    click.echo(json.dumps(value, ensure_ascii=False))


def document(value: Mapping[str, Any] | None) -> None:
    """Print a worker's result for a person; nothing when it left none."""
    if value is not None:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Tell the person at the terminal something that is not the answer: stderr, and flushed."""
    click.echo(f"podgate: {text}", err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, wrap: Sequence[str] = ()) -> None:
    """Print rows on stdout; columns named in ``wrap`` give way when the terminal is narrow."""
    console = Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, overflow="fold", no_wrap=column not in wrap)
    for row in rows:
        shown.add_row(*(_plain(cell) for cell in row))
    console.print(shown, soft_wrap=False)


def _plain(cell: str) -> str:
    """Keep rich from reading markup in text that came from elsewhere."""
    return cell.replace("[", r"\[")


def status_json(status: JobStatus) -> dict[str, Any]:
    """The documented keys of ``status``."""
    return {
        "handle": status.handle.id,
        "phase": status.phase,
        "state": status.state,
        "reason": status.reason,
        "message": status.message,
    }


def result_json(result: JobResult, workspace: Materialized | None) -> dict[str, Any]:
    """The documented keys of ``collect``; ``run`` adds its timings."""
    return {
        "handle": result.handle.id,
        "state": result.state,
        "exitCode": result.exit_code,
        "reason": result.reason,
        "diagnostic": result.diagnostic,
        "result": None if result.result is None else dict(result.result),
        "workspace": None if workspace is None else workspace_json(workspace),
    }


def workspace_json(workspace: Materialized) -> dict[str, Any]:
    """Where the workspace was put and what of it was left out."""
    return {
        "path": str(workspace.path),
        "entries": workspace.entries,
        "bytes": workspace.bytes,
        "sha256": workspace.sha256,
        "excluded": list(workspace.excluded),
    }


def status_line(status: JobStatus) -> str:
    """One line for a person: state, reason, message."""
    reason = None if status.reason == status.state else status.reason
    why = ": ".join(part for part in (reason, status.message) if part)
    phase = "" if status.phase in (status.state, "active") else f" ({status.phase})"
    return f"{status.state}{phase}" + (f"  {why}" if why else "")


def result_lines(result: JobResult, workspace: Materialized | None) -> list[str]:
    """A run's end for a person."""
    lines = [f"{result.state}, exit code {result.exit_code} ({result.reason})"]
    if result.message:
        lines.append(f"  {result.message}")
    if result.diagnostic:
        lines.append(f"  diagnostic: {result.diagnostic}")
    if result.artifacts in {"expired", "invalid"}:
        lines.append(f"  artifacts: {result.artifacts}")
    if workspace is not None:
        lines += workspace_lines(workspace)
    return lines


def workspace_lines(workspace: Materialized) -> list[str]:
    """Where the workspace went, and every directory that the exclusions dropped."""
    lines = [f"  workspace: {workspace.path} ({workspace.entries} entries, {size(workspace.bytes)})"]
    return lines + [f"  not brought back: {path}" for path in workspace.excluded]


def size(count: int) -> str:
    """Bytes for a person."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:  # noqa: PLR2004 -- the step between units
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


@dataclass
class Sink:
    """Takes the worker's output. When nobody reads it any more it takes it still: the run is not theirs to end."""

    stream: BinaryIO
    broken: bool = False

    async def write(self, chunk: bytes) -> None:
        """Write and flush, in a thread: a slow reader must not keep Ctrl-C from being heard."""
        if not self.broken:
            await asyncio.to_thread(self._write, chunk)

    def _write(self, chunk: bytes) -> None:
        try:
            self.stream.write(chunk)
            self.stream.flush()
        except BrokenPipeError:
            self.broken = True


def worker_sink(*, as_json: bool) -> Sink:
    """Where the worker's output goes: stdout, or stderr when stdout carries our own JSON."""
    return Sink((sys.stderr if as_json else sys.stdout).buffer)
