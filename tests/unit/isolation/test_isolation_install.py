import json

import pytest
from isolation_samples import POD, RECORD, TRUSTED, WITNESS_IPS, options, pod
from kubernetes.aio import client

from isolation.objects import canary
from isolation.objects.install import installation
from isolation.objects.programs import Target
from isolation.options import ClosedTarget

OPTIONS = options(namespace="runs")


def all_of(kind):
    return [one for one in installation(OPTIONS) if one["kind"] == kind]


def named(kind, name):
    return next(one for one in all_of(kind) if one["metadata"]["name"] == name)


def rights(name):
    return {
        (r["apiGroups"][0], r["resources"][0]): (set(r["verbs"]), r.get("resourceNames"))
        for r in named("Role", name)["rules"]
    }


def selects(selector, labels):
    return selector.get("matchLabels", {}).items() <= labels.items()


def test_each_object_is_one_that_the_clients_strict_models_know():
    for one in installation(OPTIONS):
        getattr(client, f"V1{one['kind']}").model_validate(one)


def test_what_is_needed_by_others_comes_first():
    kinds = [one["kind"] for one in installation(OPTIONS)]
    assert kinds[0] == "Namespace"
    assert kinds.index("ServiceAccount") < kinds.index("RoleBinding")
    assert kinds.index("NetworkPolicy") < kinds.index("Deployment")


def test_everything_lies_in_the_namespace():
    assert {one["metadata"].get("namespace") for one in installation(OPTIONS)[1:]} == {"runs"}
    assert installation(OPTIONS)[0]["metadata"]["name"] == "runs"


def test_the_namespace_enforces_the_restricted_standard():
    assert all_of("Namespace")[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_launcher_may_do_what_it_must_and_nothing_more():
    core = ""
    assert rights("podgate-launcher") == {
        (core, "pods"): ({"create", "get", "delete", "watch"}, None),
        (core, "pods/exec"): ({"create", "get"}, None),
        (core, "pods/log"): ({"get"}, None),
        (core, "events"): ({"list"}, None),
        (core, "configmaps"): ({"create", "get", "update"}, None),
        (core, "secrets"): ({"create"}, None),
        ("networking.k8s.io", "networkpolicies"): ({"create", "get"}, None),
        (core, "services"): ({"get"}, ["podgate-witness"]),
    }


def test_the_reaper_creates_nothing_and_runs_nothing():
    assert all(not {"create", "patch", "watch"} & verbs for verbs, _ in rights("podgate-reaper").values())
    assert ("", "pods/exec") not in rights("podgate-reaper")


def test_rights_end_at_the_namespace():
    assert not [one for one in installation(OPTIONS) if one["kind"].startswith("Cluster")]


@pytest.mark.parametrize("account", ["podgate-worker", "podgate-witness"])
def test_pods_that_only_listen_or_run_have_no_rights_and_no_token(account):
    assert named("ServiceAccount", account)["automountServiceAccountToken"] is False
    subjects = [subject["name"] for one in all_of("RoleBinding") for subject in one["subjects"]]
    assert account not in subjects


def test_every_pod_is_closed_by_default():
    body = named("NetworkPolicy", "podgate-default-deny")["spec"]
    assert body == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize(
    "built", [pod(), canary.build_canary(OPTIONS, suffix="00ff00ff", kind="open", witness_ips=WITNESS_IPS)]
)
def test_the_witness_admits_runs_and_canaries_on_both_ports(built):
    (rule,) = named("NetworkPolicy", "podgate-witness")["spec"]["ingress"]
    assert any(selects(peer["podSelector"], built["metadata"]["labels"]) for peer in rule["from"])
    assert {(port["port"], port["protocol"]) for port in rule["ports"]} == {(8787, "TCP"), (8788, "TCP"), (8788, "UDP")}


def test_the_witness_reaches_nobody():
    body = named("NetworkPolicy", "podgate-witness")["spec"]
    assert body["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in body


def test_the_witness_is_two_pods_that_service_budget_and_policy_select():
    deployment = all_of("Deployment")[0]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["replicas"] == 2
    assert selects(deployment["selector"], labels)
    assert selects({"matchLabels": all_of("Service")[0]["spec"]["selector"]}, labels)
    assert selects(all_of("PodDisruptionBudget")[0]["spec"]["selector"], labels)
    assert selects(named("NetworkPolicy", "podgate-witness")["spec"]["podSelector"], labels)


def test_the_witness_serves_both_families_where_there_are_two():
    service = all_of("Service")[0]["spec"]
    assert service["ipFamilyPolicy"] == "PreferDualStack"
    assert [(port["port"], port["protocol"]) for port in service["ports"]] == [
        (8787, "TCP"),
        (8788, "TCP"),
        (8788, "UDP"),
    ]


def test_nothing_that_we_install_counts_as_a_run():
    components = {one["metadata"]["labels"]["podgate.dev/component"] for one in installation(OPTIONS)}
    assert components == {"install", "witness"}


def canary_config(**chosen):
    built = canary.build_canary(OPTIONS, suffix="00ff00ff", witness_ips=WITNESS_IPS, **chosen)
    client.V1Pod.model_validate(built)
    return json.loads(built["spec"]["containers"][0]["args"][0])


def test_a_canary_is_confined_like_a_run():
    body = canary.build_canary(OPTIONS, suffix="00ff00ff", kind="policed", witness_ips=WITNESS_IPS, owner=RECORD)[
        "spec"
    ]
    run = pod()["spec"]
    assert body["containers"][0]["image"] == TRUSTED
    assert body["containers"][0]["securityContext"] == run["initContainers"][0]["securityContext"]
    for name in set(run) - {"activeDeadlineSeconds", "containers", "initContainers", "volumes"}:
        assert body[name] == run[name]


def test_the_policed_canary_is_told_where_the_open_one_listens():
    config = canary_config(
        kind="policed", latency_targets=["10.0.0.7"], targets=[Target(ip="198.51.100.10", port=80, name="net")]
    )
    assert config["latencyTargets"] == [{"ip": "10.0.0.7", "port": config["listenPort"]}]
    assert config["targets"][0]["name"] == "net"
    assert config["mode"] == "policed"


def test_a_canary_tries_the_operators_closed_targets_by_default():
    chosen = options(closed_targets=(ClosedTarget(ip="198.51.100.10", port=80, name="net"),))
    built = canary.build_canary(chosen, suffix="00ff00ff", kind="open", witness_ips=WITNESS_IPS)
    assert json.loads(built["spec"]["containers"][0]["args"][0])["targets"][0]["ip"] == "198.51.100.10"


def test_the_policed_canary_has_a_runs_policy_and_the_open_one_is_open():
    policed = canary.build_canary_policy(OPTIONS, suffix="00ff00ff", kind="policed", pod=POD)
    opened = canary.build_canary_policy(OPTIONS, suffix="00ff00ff", kind="open", pod=POD)
    assert policed["spec"]["policyTypes"] == opened["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policed["spec"]
    assert [rule["ports"][0]["port"] for rule in policed["spec"]["egress"]] == [8787]
    assert (opened["spec"]["ingress"], opened["spec"]["egress"]) == ([{}], [{}])


def test_each_canarys_policy_selects_that_canary_alone():
    for kind, other in (("open", "policed"), ("policed", "open")):
        built = canary.build_canary_policy(OPTIONS, suffix="00ff00ff", kind=kind, pod=POD)
        selector = built["spec"]["podSelector"]
        labels = {
            k: canary.build_canary(OPTIONS, suffix="00ff00ff", kind=k, witness_ips=WITNESS_IPS) for k in (kind, other)
        }
        assert selects(selector, labels[kind]["metadata"]["labels"])
        assert not selects(selector, labels[other]["metadata"]["labels"])
        assert built["metadata"]["ownerReferences"] == [POD.reference()]
