import copy
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from isolation_samples import RECORD, options, pod, policy, spec, stored

from isolation.attest import attest
from isolation.normalize import SERVER_METADATA
from isolation.objects import build_policy
from isolation.options import Allowance, EgressProfile, EgressRule
from isolation.quantity import equal

WEB = options(
    network_policy_scope="shared",
    runtime_class="gvisor",
    egress_profiles={"web": EgressProfile(rules=(EgressRule(cidr="10.9.0.0/16", port=443),), dns=True)},
)
JOB = spec(command=["sh", "-c", "true"], args=["a", "b"], env={"A": "1", "B": ""})
SENT = [
    pod(JOB),
    pod(spec(egress="web"), WEB, secret="podgate-run-x-0f0e0d0c"),
    policy(JOB),
    build_policy(spec(egress="web"), WEB, pod=RECORD),
]

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Every place of a document that attestation answers for: all but the status and the server's own metadata."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if not servers_own((*path, key)):
            yield from places(item, (*path, key))


def servers_own(path):
    return path in {("status",), ("spec", "nodeName")} or (
        path[0] == "metadata" and len(path) > 1 and path[1] in SERVER_METADATA
    )


def at(value, path):
    for key in path:
        value = value[key]
    return value


def spelling(value):
    return json.dumps(value, sort_keys=True)


@st.composite
def one_change(draw):
    """A manifest of ours, and what is read back after one change at any place: removed, replaced, or added to."""
    sent = draw(st.sampled_from(SENT))
    read_back = stored(sent)
    path = draw(st.sampled_from(list(places(read_back))))
    kind = draw(st.sampled_from(["remove", "replace", "add", "move"]))
    return sent, changed(draw, read_back, path, kind), path


def changed(draw, read_back, path, kind):
    here = at(read_back, path)
    if kind == "add" and isinstance(here, dict):
        name = draw(st.text(max_size=8))
        assume(name not in here and not servers_own((*path, name)))
        here[name] = draw(VALUES)
    elif kind == "add" and isinstance(here, list):
        here.insert(draw(st.integers(0, len(here))), draw(VALUES))
    elif kind == "move" and isinstance(here, list):
        here.append(here.pop(draw(st.integers(0, len(here) - 1))))
    elif kind == "remove":
        assume(path)
        del at(read_back, path[:-1])[path[-1]]
    else:
        assume(path)
        at(read_back, path[:-1])[path[-1]] = draw(VALUES)
    return read_back


@settings(max_examples=600, deadline=None)
@given(one_change())
def test_any_single_change_is_found(case):
    sent, read_back, path = case
    before = stored(sent)
    assume(spelling(read_back) != spelling(before))
    if "resources" in path or "sizeLimit" in path:
        assume(not equal(peek(before, path), peek(read_back, path)))
    assert attest(sent, read_back)


def peek(value, path):
    try:
        return at(value, path)
    except (KeyError, IndexError, TypeError):
        return None


@settings(max_examples=300, deadline=None)
@given(one_change())
def test_a_change_is_reported_without_its_values(case):
    sent, read_back, _ = case
    for violation in attest(sent, read_back):
        assert set(violation.as_json()) <= {"path", "kind", "hint"}
        json.dumps(violation.as_json()).encode()


@settings(max_examples=200, deadline=None)
@given(VALUES, st.sampled_from(SENT))
def test_whatever_is_read_back_is_compared_without_an_error(value, sent):
    for read_back in ({}, {"metadata": value, "spec": value}, {**stored(sent), "spec": value}):
        assert attest(sent, read_back)


@settings(max_examples=200, deadline=None)
@given(one_change(), one_change())
def test_an_allowance_never_hides_another_change(first, second):
    sent, read_back, _ = first
    allowances = [
        Allowance(path=violation.path, value=value, reason="reviewed")
        for violation in attest(second[0], second[1])
        if violation.path != "$" and (value := draw_value(second[1], violation.path)) is not None
    ]
    left = {violation.path for violation in attest(sent, read_back, allowances=allowances)}
    unreviewed = {v.path for v in attest(sent, read_back)} - {allowance.path for allowance in allowances}
    assert unreviewed <= left


def draw_value(document, path):
    """The stored value of a top-level member of the spec, where an allowance for it can be written without more ado."""
    name = path.removeprefix("$.spec.")
    spec_now = document.get("spec")
    return spec_now.get(name) if isinstance(spec_now, dict) else None


@pytest.mark.parametrize("sent", SENT)
def test_without_a_change_nothing_is_found(sent):
    read_back = stored(sent)
    assert attest(sent, read_back) == ()
    assert attest(sent, copy.deepcopy(read_back), allowances=[Allowance(path="$.spec.x", value=1, reason="r")]) == ()
