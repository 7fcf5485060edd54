"""What a launch will send is a function of spec, options and witness, and of the uids that only the server knows."""

import isolation_samples as samples
import pytest

from isolation import names
from launcher.plan import NOT_YET, Plan


def plan(*, options=None, witness_ips=samples.WITNESS_IPS, **fields):
    return Plan(samples.spec(command=["true"], **fields), options or samples.options(), witness_ips)


def test_equal_plans_build_equal_objects():
    assert plan().pod("uid") == plan().pod("uid")
    assert plan().manifest_digest == plan().manifest_digest


def test_the_digest_is_blind_to_uids_and_to_nothing_else():
    one = plan(capability="model")
    assert one.manifest_digest == plan(capability="model").manifest_digest
    assert one.pod("record-1") != one.pod("record-2")


OTHERS = {
    "image": plan(image="registry.test/team/job@sha256:" + "e" * 64),
    "witness": plan(witness_ips={"4": "10.96.0.10", "6": "fd00::9"}),
    "family": plan(witness_ips={"4": "10.96.0.9"}),
    "runtime class": plan(options=samples.options(runtime_class="gvisor")),
    "policy scope": plan(options=samples.options(network_policy_scope="shared")),
    "grace": plan(options=samples.options(stop_grace_seconds=11)),
    "capability": plan(capability="model"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_whatever_shapes_the_objects_shows_in_the_digest(other):
    assert other.manifest_digest != plan().manifest_digest


def test_the_secrets_name_carries_the_records_uid():
    uid = "0f0e0d0c-1111-2222-3333-444455556666"
    one = plan(capability="model")
    worker = samples.container(one.pod(uid), "worker")
    refs = [each["valueFrom"]["secretKeyRef"]["name"] for each in worker["env"] if "valueFrom" in each]
    assert refs == [names.secret_name(one.token, uid)]


def test_pod_and_policy_name_their_owners():
    one = plan()
    assert [o["uid"] for o in one.pod("record-1")["metadata"]["ownerReferences"]] == ["record-1"]
    assert [o["uid"] for o in one.policy("pod-1")["metadata"]["ownerReferences"]] == ["pod-1"]


def test_what_was_stored_as_sent_has_no_differences():
    one = plan()
    sent = one.pod(NOT_YET)
    stored = samples.stored(sent)
    assert one.differences(sent, stored, uid=stored["metadata"]["uid"]) == ()
    assert one.differences(sent, stored, uid="another")


def test_allowances_hold_for_pods_and_policies_alike():
    allowance = {"path": "$.metadata.labels.team", "value": "x", "reason": "set by the platform team"}
    one = plan(options=samples.options(allowances=[allowance]))
    for sent in (one.pod(NOT_YET), one.policy(NOT_YET)):
        stored = samples.stored(sent)
        stored["metadata"]["labels"]["team"] = "x"
        assert one.differences(sent, stored) == ()
        assert plan().differences(sent, stored)
