import hashlib

import pytest
from isolation_samples import POD, RECORD, options, pod, policy, spec

from isolation import names
from isolation.digest import canonical_json, manifest_digest, object_digest
from isolation.objects import Owner, build_pod, build_policy


def test_the_token_is_the_first_20_hex_digits_of_the_run_ids_sha256():
    assert names.token("run-1") == hashlib.sha256(b"run-1").hexdigest()[:20]


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("0" * 20, True),
        ("a" * 19, False),
        ("a" * 21, False),
        ("A" * 20, False),
        ("g" * 20, False),
        ("a" * 20 + "\n", False),
        ("", False),
    ],
)
def test_only_20_lower_case_hex_digits_are_a_token(text, valid):
    assert names.is_token(text) is valid


def test_names_are_the_documented_ones():
    token = "0123456789abcdef0123"
    assert names.run_name(token) == f"podgate-run-{token}"
    assert names.policy_name(token) == f"podgate-run-{token}"
    assert names.egress_policy_name("ff00") == "podgate-egress-ff00"
    assert names.secret_name(token, "0f0e0d0c-1111") == f"podgate-run-{token}-0f0e0d0c"
    assert names.preflight_name("ff00") == "podgate-preflight-ff00"
    assert names.canary_name("00ff00ff", "policed") == "podgate-canary-00ff00ff-policed"


@pytest.mark.parametrize("bad", ["../x", "A", "a" * 60, "a/b", "a.b", "a-"])
def test_what_would_be_no_dns_label_is_refused(bad):
    with pytest.raises(ValueError, match="DNS label"):
        names.run_name(bad)


def test_canonical_json_has_one_spelling():
    assert canonical_json({"b": [1, True, None], "a": "ä\n"}) == '{"a":"ä\\n","b":[1,true,null]}'.encode()


@pytest.mark.parametrize(
    ("bad", "error"),
    [(float("nan"), ValueError), ({1: "a"}, TypeError), ([{"a": {2: 3}}], TypeError), (object(), TypeError)],
)
def test_canonical_json_refuses_what_has_no_one_spelling(bad, error):
    with pytest.raises(error):
        canonical_json(bad)


def test_the_manifest_digest_does_not_see_uids():
    job, chosen = spec(capability="c"), options()
    ips = {"4": "10.96.0.9"}
    first = build_pod(job, chosen, witness_ips=ips, record=RECORD, secret="podgate-run-x-11111111")
    other = build_pod(
        job, chosen, witness_ips=ips, record=Owner("v1", "ConfigMap", RECORD.name, "z"), secret="podgate-run-x-2"
    )
    policies = [build_policy(job, chosen, pod=Owner("v1", "Pod", POD.name, uid)) for uid in ("u1", "u2")]
    assert manifest_digest(first, policies[0]) == manifest_digest(other, policies[1])
    assert object_digest(first) != object_digest(other)


def test_the_manifest_digest_sees_everything_else():
    before = manifest_digest(pod(), policy())
    changed = options(blind_after_seconds=301)
    assert manifest_digest(pod(chosen=changed), policy()) != before
    assert manifest_digest(pod(), policy(chosen=options(control_port=9000))) != before
    assert manifest_digest(pod(spec(command=["false"])), policy()) != before
