from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.decide.logcursor import LogCursor

SECOND = "2026-03-01T12:00:{:02d}.{:09d}Z "


def entry(content, second=0, nano=0):
    return SECOND.format(second, nano).encode() + content


def served(log, since):
    """What a server sends of whole lines when it is asked to begin at a second."""
    if since is None:
        return b"".join(log)
    return b"".join(line for line in log if datetime.fromisoformat(line[:30].decode()) >= since)


def read(log, *cuts):
    """Read a log over as many connections as there are cuts, each of so many bytes, and one to the end."""
    cursor, out = LogCursor(), b""
    for cut in (*cuts, None):
        cursor.open()
        out += cursor.feed(served(log, cursor.since)[:cut])
    cursor.close()
    return out


def test_times_are_taken_off_and_nothing_else():
    log = [entry(b"a b\n", 0, 1), entry(b"\n", 0, 2), entry(b"\xff\x00\r\n", 1), entry(b"no newline", 2)]
    assert read(log) == b"a b\n\n\xff\x00\r\nno newline"


def test_lines_of_one_and_the_same_time_are_told_once_each():
    log = [entry(b"x\n", 0, 5)] * 3 + [entry(b"y\n", 0, 5)]
    assert read(log, 2 * len(log[0])) == b"x\nx\nx\ny\n"


def test_a_connection_that_breaks_while_it_catches_up_doubles_nothing():
    log = [entry(b"abcdef\n", 0, n) for n in range(5)]
    assert read(log, 3 * len(log[0]), len(log[0]) + 3, 5) == b"abcdef\n" * 5


def test_a_line_that_is_longer_than_any_buffer_passes_in_pieces():
    cursor = LogCursor()
    pieces = [entry(b"x"), *([b"y" * 1000] * 50), b"\n"]
    assert b"".join(map(cursor.feed, pieces)) == b"x" + b"y" * 50_000 + b"\n"


def test_lines_that_a_rotation_took_away_make_none_of_the_later_ones_skipped():
    cursor = LogCursor()
    cursor.feed(entry(b"one\n", 0, 1) + entry(b"two\n", 0, 2))
    cursor.open()
    assert cursor.feed(entry(b"three\n", 0, 3) + entry(b"four\n", 0, 4)) == b"three\nfour\n"


def test_the_server_s_apology_is_no_output():
    cursor = LogCursor()
    assert cursor.feed(b"unable to retrieve container logs for containerd://0123456789abcdef") == b""
    cursor.close()
    assert cursor.gone


def test_a_worker_that_says_the_apology_itself_is_heard():
    words = b"unable to retrieve container logs for me\n"
    cursor = LogCursor()
    assert cursor.feed(entry(words)) == words
    assert not cursor.gone


def test_a_short_line_without_a_time_is_no_output_and_the_next_line_is():
    assert LogCursor().feed(b"rpc error\n" + entry(b"hello\n")) == b"hello\n"


@pytest.mark.parametrize("size", [1, 5, 64, 70, 1000])
def test_a_line_without_a_time_is_left_out_whole_however_it_is_cut(size):
    log = entry(b"before\n") + b"without a time " + b"x" * 200 + b"\n" + entry(b"after\n", 1)
    cursor = LogCursor()
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    assert b"".join(map(cursor.feed, pieces)) == b"before\nafter\n"


def test_the_rest_of_a_line_that_began_in_an_earlier_second_is_not_told_twice():
    """A node leaves out what a line had before the second, and gives the rest of it no time."""
    cursor = LogCursor()
    cursor.feed(entry(b"long line, its rest\n", 0) + entry(b"next\n", 1, 5))
    cursor.open()
    assert cursor.feed(b"its rest\n" + entry(b"next\n", 1, 5) + entry(b"new\n", 1, 6)) == b"new\n"


def test_the_log_is_opened_again_at_a_whole_second():
    cursor = LogCursor()
    cursor.feed(entry(b"x\n", 7, 999_999_999))
    assert cursor.since == datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)


@pytest.mark.parametrize("size", [1, 2, 3, 29, 30, 31, 32, 64])
def test_the_size_of_the_pieces_does_not_matter(size):
    log = b"".join([entry(b"a\n"), entry(b"\n", 1), entry(b"a longer line with words\n", 2), entry(b"end", 3)])
    cursor = LogCursor()
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    assert b"".join(map(cursor.feed, pieces)) == b"a\n\na longer line with words\nend"


@st.composite
def logs(draw):
    times = sorted(draw(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 999_999_999])), max_size=12)))
    content = st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))
    return [entry(draw(content) + b"\n", *time) for time in times]


@given(log=logs(), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_no_byte_is_lost_or_doubled_wherever_connections_break(log, cuts):
    assert read(log, *cuts) == b"".join(line[31:] for line in log)
