import io
import json
import logging

import pytest
import structlog

from launcher import logs
from launcher.cluster.errors import Unreachable
from launcher.errors import PodgateError


@pytest.fixture
def logged():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()

    def configure(level: str = "debug", *, terminal: bool = False) -> io.StringIO:
        logs.configure(level, stream=stream, terminal=terminal)
        return stream

    yield configure
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_level_and_time(logged):
    stream = logged()
    structlog.get_logger().info("released", token="0" * 20, seconds=1.5)
    (line,) = lines(stream)
    assert (line["event"], line["level"], line["token"], line["seconds"]) == ("released", "info", "0" * 20, 1.5)
    assert line["timestamp"].endswith("Z")


def test_on_a_terminal_lines_are_for_a_person(logged):
    stream = logged(terminal=True)
    structlog.get_logger().info("released")
    assert "released" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_levels_below_the_chosen_one_are_silent(logged):
    stream = logged("warning")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_an_unknown_level_is_a_bad_setting():
    with pytest.raises(PodgateError, match="debug, info, warning, error"):
        logs.configure("loud")


@pytest.mark.parametrize(
    "fields",
    [
        {"authorization": "x-secret"},
        {"access_token": "x-secret"},
        {"headers": {"Authorization": "x-secret"}},
        {"url": "sent Bearer x-secret there"},
        {"protocols": ["base64url.bearer.authorization.k8s.io.x-secret"]},
        {"text": "eyJhbGciOiJSUzI1NiJ9.x-secret.x-secret"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_looks_like_a_credential_is_not_written(logged, fields):
    stream = logged()
    structlog.get_logger().warning("asked", **fields)
    assert "x-secret" not in stream.getvalue()


def test_a_foreign_exceptions_message_is_not_written_but_its_place_is(logged):
    stream = logged()
    try:
        int("x-secret")
    except ValueError:
        structlog.get_logger().exception("failed")
    assert "x-secret" not in stream.getvalue()
    (told,) = lines(stream)[0]["exception"]
    assert told["type"] == "ValueError"
    assert "test_logs.py" in told["at"][0]


def test_our_own_exceptions_message_is_written_with_its_causes(logged):
    stream = logged()
    error = Unreachable("get pods", status=503)
    error.__cause__ = RuntimeError("x-secret")
    structlog.get_logger().warning("failed", exc_info=error)
    assert [told.get("message") for told in lines(stream)[0]["exception"]] == ["get pods 503", None]


def test_other_libraries_are_heard_from_warning_on_whatever_the_level(logged):
    stream = logged("debug")
    logging.getLogger("aiohttp.client").debug("body: x-secret")
    logging.getLogger("aiohttp.client").warning("cut")
    assert [line["event"] for line in lines(stream)] == ["cut"]
