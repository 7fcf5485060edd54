import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation import names

RUN_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}", fullmatch=True)
UIDS = st.uuids().map(str)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def all_names(run_id, uid):
    token = names.token(run_id)
    return [
        names.run_name(token),
        names.secret_name(token, uid),
        names.egress_policy_name(token[: names.EGRESS_HASH_LENGTH]),
        names.preflight_name(token),
        names.canary_name(token[:8], "open"),
        names.canary_name(token[:8], "policed"),
    ]


@given(RUN_IDS, UIDS)
def test_every_name_is_a_dns_label(run_id, uid):
    assert all(DNS_LABEL.fullmatch(name) for name in all_names(run_id, uid))


@given(RUN_IDS, RUN_IDS, UIDS)
def test_names_of_two_runs_never_meet(one, other, uid):
    if one != other:
        assert not set(all_names(one, uid)) & set(all_names(other, uid))


@given(RUN_IDS, UIDS)
def test_names_of_two_kinds_never_meet(run_id, uid):
    assert len(set(all_names(run_id, uid))) == 6


@given(RUN_IDS)
def test_a_token_is_a_token(run_id):
    assert names.is_token(names.token(run_id))
    assert not names.is_token(run_id) or re.fullmatch(r"[0-9a-f]{20}", run_id)


@given(st.text())
def test_a_name_is_a_dns_label_or_is_refused(text):
    if DNS_LABEL.fullmatch(f"podgate-run-{text}"):
        assert names.run_name(text) == f"podgate-run-{text}"
    else:
        with pytest.raises(ValueError, match="DNS label"):
            names.run_name(text)
