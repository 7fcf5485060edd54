"""Every answer of a server becomes the error that says what to do about it."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

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
from launcher.cluster.translate import error_for


def status(code: int, reason: str = "", message: str = "") -> bytes:
    said = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Refused),
        (401, "Unauthorized", Refused),
        (403, "Forbidden", Refused),
        (404, "NotFound", NotFound),
        (408, "Timeout", Unreachable),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", Refused),
        (422, "Invalid", Refused),
        (429, "TooManyRequests", Throttled),
        (500, "InternalError", Unreachable),
        (503, "ServiceUnavailable", Unreachable),
        (504, "Timeout", Unreachable),
    ],
)
def test_a_status_becomes_its_error(code: int, reason: str, kind: type[ClusterError]) -> None:
    assert type(error_for("get Pod p", code, status(code, reason))) is kind


def test_a_404_that_no_api_server_wrote_is_not_taken_for_an_absent_object() -> None:
    error = error_for("get Pod p", 404, b"<html>not here</html>")
    assert isinstance(error, Unreachable)
    assert error.reason == "NotAnApiServer"


@pytest.mark.parametrize(
    ("message", "quota", "reason"),
    [
        (
            'pods "p" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1',
            True,
            "Forbidden",
        ),
        ('pods "p" is forbidden: failed quota: q: must specify limits.cpu for: gate', False, "QuotaNeedsLimits"),
        ('pods "p" is forbidden: maximum cpu usage per Container is 50m', False, "Forbidden"),
    ],
)
def test_an_exhausted_quota_is_told_from_one_that_needs_limits(message: str, *, quota: bool, reason: str) -> None:
    error = error_for("create Pod p", 403, status(403, "Forbidden", message))
    assert isinstance(error, Refused)
    assert (error.quota, error.reason, error.message) == (quota, reason, message)


def test_the_servers_sentence_is_cut_and_never_part_of_the_text() -> None:
    error = error_for("create Pod p", 422, status(422, "Invalid", "x" * 9000))
    assert isinstance(error, Refused)
    assert len(error.message) == 500
    assert str(error) == "create Pod p 422 Invalid"


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7.0), ("0", 0.0), ("999999", 3600.0), ("soon", None), (None, None), ("-3", None)],
)
def test_retry_after_in_seconds(said: str | None, seconds: float | None) -> None:
    error = error_for("get Pod p", 429, b"", {} if said is None else {"Retry-After": said})
    assert isinstance(error, Throttled)
    assert error.retry_after == seconds


def test_retry_after_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)
    error = error_for("get Pod p", 429, b"", {"Retry-After": date})
    assert isinstance(error, Throttled)
    assert error.retry_after == pytest.approx(20, abs=2)


def test_a_body_that_is_no_status_is_no_reason() -> None:
    assert error_for("get Pod p", 500, b'{"kind": "Pod", "reason": "no"}').reason is None
