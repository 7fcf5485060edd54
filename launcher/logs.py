"""Logs: lines for a person on a terminal, one JSON object a line otherwise; on stderr, never with a secret in it.

The level is ``PODGATE_LOG`` (debug, info, warning, error). Other libraries' logs begin at warning whatever that says:
at debug level HTTP clients write headers and bodies.
"""

import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor

from launcher.cluster.errors import ClusterError
from launcher.errors import PodgateError

LEVELS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40}

REDACTED = "[redacted]"

_SECRET_KEYS = re.compile(
    r"token$|authorization|password|secret_value|capability_value|bearer|cookie|credential", re.IGNORECASE
)
_HARMLESS_KEYS = frozenset({"token"})
"""A run's token is derived from its id and names its objects; it opens nothing."""
_SECRET_TEXT = re.compile(
    r"(?i:bearer)\s+\S+|base64url\.bearer\.authorization\.k8s\.io\.\S+|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
)

_DEPTH = 6
"""How many causes of an exception a line tells; chains are short, and a cycle must end."""


def configure(level: str = "warning", *, stream: TextIO | None = None, terminal: bool | None = None) -> None:
    """Set logging up for this process. Raises PodgateError ``setting_invalid`` for an unknown level."""
    if level.lower() not in LEVELS:
        raise PodgateError(
            "setting_invalid", f"PODGATE_LOG={level!r} is not allowed; allowed: {', '.join(LEVELS)}", stage="settings"
        )
    number = LEVELS[level.lower()]
    stream = stream or sys.stderr
    shared = _processors()
    renderer = _renderer(terminal=stream.isatty() if terminal is None else terminal)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    _adopt_foreign(shared, renderer, stream, max(number, logging.WARNING))


def redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace what looks like a credential, by its key or by its text, at any depth."""
    return {key: _cleaned(key, value) for key, value in event.items()}


def frames_only(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Tell an exception by type and place. Messages of foreign exceptions may hold headers; our own never do."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()[1]
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, BaseException):
        event["exception"] = describe(error)
    return event


def describe(error: BaseException) -> list[dict[str, Any]]:
    """Return an exception and its causes as type, place and, for our own errors alone, message."""
    return [_one(e) for e, _ in zip(_chain(error), range(_DEPTH), strict=False)]


def _chain(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__cause__ or current.__context__


def _one(error: BaseException) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(error).__name__, "at": _places(error.__traceback__)}
    if isinstance(error, (PodgateError, ClusterError)):
        told["message"] = str(error)
    return told


def _places(trace: TracebackType | None) -> list[str]:
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)[-8:]]


def _cleaned(key: str, value: Any) -> Any:
    if _SECRET_KEYS.search(key) and key not in _HARMLESS_KEYS:
        return REDACTED
    if isinstance(value, str):
        return _SECRET_TEXT.sub(REDACTED, value)
    if isinstance(value, Mapping):
        return {k: _cleaned(str(k), v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned("", v) for v in value]
    return value


def _processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        frames_only,
        redact,
    ]


def _renderer(*, terminal: bool) -> Processor:
    return structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(default=str)


def _adopt_foreign(shared: list[Processor], renderer: Processor, stream: TextIO, level: int) -> None:
    """Let what other libraries log go the same way, at warning and above."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[_without_internals, renderer])
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _without_internals(logger: Any, method: str, event: EventDict) -> EventDict:
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(logger, method, event)
