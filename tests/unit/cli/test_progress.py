import io

import pytest
from rich.console import Console

from launcher.cli.progress import Display, Timings
from launcher.progress import ProgressEvent


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timings(clock):
    return Timings(clock)


def shown(timings, *, terminal: bool, waiting: str = "") -> str:
    stream = io.StringIO()
    with Display(timings, console=Console(file=stream, force_terminal=terminal, width=80)) as display:
        display.waiting = waiting
    return stream.getvalue()


def test_the_first_report_of_a_stage_counts(timings):
    timings.note(ProgressEvent("gate", 2.0))
    timings.note(ProgressEvent("gate", 3.0))
    assert timings.as_json()["gate"] == 2.0


def test_what_the_command_saw_itself_counts_from_the_launch(timings, clock):
    clock.now += 1.23456
    timings.reached("started")
    assert timings.as_json()["started"] == 1.235


def test_stages_that_were_not_reached_are_null(timings):
    assert set(timings.as_json().values()) == {None}


def test_on_a_terminal_stages_are_shown_with_their_seconds_and_details(timings):
    timings.note(ProgressEvent("proven", 2.25, "by drop [IPv4, IPv6]"))
    text = shown(timings, terminal=True)
    assert "2.2 s  isolation proven  by drop [IPv4, IPv6]" in text


def test_elsewhere_nothing_is_shown(timings):
    timings.note(ProgressEvent("proven", 2.25))
    assert shown(timings, terminal=False) == ""


def test_closing_twice_is_harmless(timings):
    display = Display(timings, console=Console(file=io.StringIO(), force_terminal=True))
    with display:
        display.close()
    display.close()
