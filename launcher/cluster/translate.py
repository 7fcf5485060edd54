"""From what an API server answered to our errors.

Pure; what comes in is status, headers and body, and never leaves as such.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from launcher.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Gone,
    NotFound,
    Refused,
    Throttled,
    Unreachable,
)

MESSAGE_LIMIT = 500
"""Characters kept of the server's own sentence about a refusal; admission messages may echo whole objects."""

QUOTA_EXCEEDED = "exceeded quota"
QUOTA_NEEDS_LIMITS = "must specify"

_LONGEST_RETRY_AFTER = 3600.0


def error_for(operation: str, status: int, body: bytes | str, headers: Mapping[str, str] | None = None) -> ClusterError:
    """Return the error for an answer that was not a success."""
    said = status_object(body)
    return error_for_status(operation, status, said, headers or {})


def error_for_status(
    operation: str, status: int, said: Mapping[str, Any] | None, headers: Mapping[str, str]
) -> ClusterError:
    """Return the error for an HTTP status and the ``Status`` object that came with it, if one did."""
    reason = _text(said, "reason")
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Throttled(operation, retry_after=retry_after(headers))
    if said is None and status == HTTPStatus.NOT_FOUND:
        # Every API server explains a 404 with a Status object. A proxy's own page must not pass for an absent object.
        return Unreachable(operation, status=status, reason="NotAnApiServer")
    if status == HTTPStatus.NOT_FOUND:
        return NotFound(operation, status=status, reason=reason)
    if status == HTTPStatus.CONFLICT:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
        return kind(operation, status=status, reason=reason)
    if status == HTTPStatus.GONE:
        return Gone(operation, status=status, reason=reason)
    if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.REQUEST_TIMEOUT:
        return _refused(operation, status, reason, _text(said, "message") or "")
    return Unreachable(operation, status=status, reason=reason)


def _refused(operation: str, status: int, reason: str | None, message: str) -> Refused:
    quota = status == HTTPStatus.FORBIDDEN and QUOTA_EXCEEDED in message
    if status == HTTPStatus.FORBIDDEN and "failed quota" in message and QUOTA_NEEDS_LIMITS in message:
        reason = "QuotaNeedsLimits"
    return Refused(operation, status=status, reason=reason, message=message[:MESSAGE_LIMIT], quota=quota)


def status_object(body: bytes | str) -> Mapping[str, Any] | None:
    """Return the body when it is a ``Status`` object, else None."""
    try:
        said = json.loads(body)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("kind") == "Status" else None


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks us to wait (number or date), at most an hour; None when it does not say."""
    said = headers.get("Retry-After")
    if said is None:
        return None
    try:
        seconds = float(said) if said.strip().isdigit() else _seconds_until(said)
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)


def _seconds_until(date: str) -> float:
    return (parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()


def _text(said: Mapping[str, Any] | None, key: str) -> str | None:
    value = said.get(key) if said else None
    return value if isinstance(value, str) and value else None
