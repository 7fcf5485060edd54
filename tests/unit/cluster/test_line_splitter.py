"""Lines come out whole, wherever the pieces end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.lines import LineSplitter, LineTooLong


@given(st.text(alphabet="aä€😀\n", max_size=60), st.lists(st.integers(0, 200), max_size=10))
def test_the_lines_do_not_depend_on_the_pieces(text: str, cuts: list[int]) -> None:
    body = text.encode()
    places = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    splitter, lines = LineSplitter(1000), []
    for start, end in pairwise(places):
        lines += splitter.feed(body[start:end])
    assert [*lines, splitter.rest] == body.split(b"\n")


def test_a_line_without_an_end_is_bounded() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"x" * 10) == []
    with pytest.raises(LineTooLong):
        splitter.feed(b"x")
