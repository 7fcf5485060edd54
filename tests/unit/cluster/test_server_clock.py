"""The server's clock is known to within the uncertainty that the answers leave."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.serverclock import ServerClock

BASE = 1_800_000_000.0


class Local:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def date(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


def test_before_any_answer_this_machines_clock_counts() -> None:
    wall = datetime(2026, 1, 1, tzinfo=UTC)
    assert ServerClock(Local(), wall=lambda: wall).now() == wall


def test_one_answer_is_known_to_the_second() -> None:
    local, true = Local(), BASE + 0.7
    clock = ServerClock(local)
    clock.observe(date(true), sent=local.at, received=local.at)
    assert abs(clock.now().timestamp() - true) <= 0.5


def test_it_goes_on_with_the_monotonic_clock() -> None:
    local = Local()
    clock = ServerClock(local)
    clock.observe(date(BASE), sent=local.at, received=local.at)
    before = clock.now()
    local.at += 30
    assert (clock.now() - before).total_seconds() == 30


@given(st.lists(st.tuples(st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 5)), min_size=1, max_size=30))
def test_the_estimate_is_never_off_by_more_than_the_slowest_answer_allows(
    answers: list[tuple[float, float, float]],
) -> None:
    local, offset = Local(), BASE - 1000.0
    clock, slowest = ServerClock(local), 0.0
    for there, back, pause in answers:
        sent, slowest = local.at, max(slowest, there + back)
        local.at += there
        stamped = date(local.at + offset)
        local.at += back
        clock.observe(stamped, sent=sent, received=local.at)
        assert abs(clock.now().timestamp() - (local.at + offset)) <= 0.5 + slowest + 1e-6
        local.at += pause


def test_many_answers_know_better_than_one() -> None:
    local, offset = Local(), BASE - 1000.0 + 0.4321
    clock = ServerClock(local)
    for _ in range(200):
        clock.observe(date(local.at + offset), sent=local.at, received=local.at)
        local.at += 0.937
    assert abs(clock.now().timestamp() - (local.at + offset)) < 0.05


def test_it_never_goes_back_while_it_learns() -> None:
    local, offset = Local(), BASE - 1000.0 + 0.9
    clock = ServerClock(local)
    seen = []
    for _ in range(50):
        clock.observe(date(local.at + offset), sent=local.at, received=local.at)
        seen.append(clock.now())
        local.at += 0.013
    assert seen == sorted(seen)


def test_a_clock_that_was_set_is_followed() -> None:
    local = Local()
    clock = ServerClock(local)
    clock.observe(date(BASE), sent=local.at, received=local.at)
    clock.now()
    clock.observe(date(BASE - 3600), sent=local.at, received=local.at)
    assert abs(clock.now().timestamp() - (BASE - 3600)) <= 1


def test_a_date_that_is_none_changes_nothing() -> None:
    local = Local()
    clock = ServerClock(local)
    clock.observe(date(BASE), sent=local.at, received=local.at)
    before = clock.now()
    for said in (None, "", "yesterday"):
        clock.observe(said, sent=local.at, received=local.at)
    assert clock.now() == before
