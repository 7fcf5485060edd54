"""The in-pod JSON reads and writes what the real one does, and survives whatever comes in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inpod_lab import ScriptedProver, free_port

from isolation.inpod.wire import ask, dump, parse, parse_object

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_it_writes_is_json_of_the_same_value(value):
    assert json.loads(dump(value)) == value


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_it_reads_what_json_writes(value, ascii_only, indent):
    assert parse(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


@given(st.text() | st.text(alphabet='{}[]",:\\ue0123456789-+.tfn ') | VALUES.map(lambda v: json.dumps(v)[:-1]))
def test_whatever_is_no_json_raises_value_error_alone(text):
    try:
        found = parse(text)
    except ValueError:
        return
    assert json.loads(text, strict=False) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "{,}",
        '{"a" 1}',
        "[1 2]",
        "NaN",
        "Infinity",
        "01",
        "1.",
        "nul",
        '"',
        '"\\x"',
        '"\\ud800"',
        "[" * 99,
        "1" * 99,
        "{}{}",
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_an_object_is_asked_for_by_name():
    with pytest.raises(ValueError, match="not a JSON object"):
        parse_object("[]")


def test_seconds_are_written_to_the_millisecond():
    assert dump({"at": 1.23456}) == '{"at":1.235}'


@pytest.mark.parametrize("answer", [(200, "no json"), (200, "[]"), None])
def test_an_answer_that_is_not_ours_raises(answer):
    prover = ScriptedProver({"GET /state": answer})
    with pytest.raises((OSError, ValueError)):
        ask(prover.port, "GET /state")
    prover.close()


def test_nobody_at_the_port_raises_os_error():
    with pytest.raises(OSError, match="refused"):
        ask(free_port(), "GET /state")
