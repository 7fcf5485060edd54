import json

import pytest
from isolation_samples import IMAGE, POD, RECORD, TRUSTED, WITNESS_IPS, container, options, pod, policy, spec
from kubernetes.aio.client import V1NetworkPolicy, V1Pod, V1Secret

from isolation.inpod import source
from isolation.objects import build_pod, build_policy, build_secret
from isolation.objects.secret import CapabilityInvalid
from isolation.options import ClosedTarget, EgressProfile, EgressRule, HostAlias
from isolation.spec import SpecInvalid

WEB = EgressProfile(
    rules=(
        EgressRule(cidr="10.9.0.0/16", port=443),
        EgressRule(pod_selector={"app": "proxy"}, namespace_selector={}, port=3128),
        EgressRule(pod_selector={}, port=53, protocol="UDP"),
    ),
    host_aliases=(HostAlias(ip="10.9.0.1", hostnames=("proxy.test",)),),
)
FULL = options(
    runtime_class="gvisor", priority_class="batch", egress_profiles={"web": WEB, "dns": EgressProfile(dns=True)}
)
TOKEN = "4e65d3fbe8ad6535681b"


def resources(cpu, memory, disk):
    amounts = {"cpu": cpu, "ephemeral-storage": disk, "memory": memory}
    return {"limits": amounts, "requests": amounts}


def confined(**more):
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        **more,
    }


COMMON = {
    "imagePullPolicy": "IfNotPresent",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def field(name, path):
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def without_programs(manifest):
    for one in [*manifest["spec"]["initContainers"], *manifest["spec"]["containers"][1:]]:
        assert one.pop("command")[0] == "python3"
        one.pop("args")
    return manifest


def test_the_whole_pod_is_this():
    job = spec(command=["sh", "-c", "$(HOME) $x"], args=["$"], env={"B": "$(A)", "A": ""}, cpus=0.25, memoryMb=256)
    assert without_programs(pod(job)) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "annotations": {"podgate.dev/run-id": "run-1"},
            "labels": {
                "app.kubernetes.io/managed-by": "podgate",
                "app.kubernetes.io/name": "podgate-run",
                "podgate.dev/component": "run",
                "podgate.dev/run": TOKEN,
            },
            "name": f"podgate-run-{TOKEN}",
            "namespace": "podgate",
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "blockOwnerDeletion": False,
                    "controller": True,
                    "kind": "ConfigMap",
                    "name": RECORD.name,
                    "uid": RECORD.uid,
                }
            ],
        },
        "spec": {
            "activeDeadlineSeconds": 300 + 900 + 3600,
            "automountServiceAccountToken": False,
            "containers": [
                {
                    **COMMON,
                    "args": ["$$"],
                    "command": ["sh", "-c", "$$(HOME) $$x"],
                    "env": [
                        {"name": "A"},
                        {"name": "B", "value": "$$(A)"},
                        {"name": "HOME", "value": "/home/worker"},
                        {"name": "PODGATE_RUN_ID", "value": "run-1"},
                    ],
                    "image": IMAGE,
                    "livenessProbe": {
                        "failureThreshold": 3,
                        "httpGet": {"path": "/healthz", "port": 8799, "scheme": "HTTP"},
                        "periodSeconds": 2,
                        "successThreshold": 1,
                        "terminationGracePeriodSeconds": 1,
                        "timeoutSeconds": 1,
                    },
                    "name": "worker",
                    "resources": resources("250m", "256Mi", "128Mi"),
                    "securityContext": confined(),
                    "volumeMounts": [
                        {"mountPath": "/workspace", "name": "storage", "subPath": "current/workspace"},
                        {
                            "mountPath": "/run/job/input",
                            "name": "storage",
                            "readOnly": True,
                            "subPath": "current/input",
                        },
                        {"mountPath": "/run/job/output", "name": "storage", "subPath": "current/output"},
                        {"mountPath": "/tmp", "name": "tmp"},
                        {"mountPath": "/home/worker", "name": "home"},
                    ],
                    "workingDir": "/workspace",
                },
                {
                    **COMMON,
                    "image": TRUSTED,
                    "name": "keeper",
                    "resources": resources("150m", "128Mi", "2112Mi"),
                    "securityContext": confined(),
                    "volumeMounts": [{"mountPath": "/run/podgate", "name": "storage"}],
                },
            ],
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "dnsPolicy": "None",
            "enableServiceLinks": False,
            "initContainers": [
                {
                    **COMMON,
                    "env": [
                        field("PODGATE_POD_IPS", "status.podIPs"),
                        field("PODGATE_HOST_IPS", "status.hostIPs"),
                        field("PODGATE_POD_UID", "metadata.uid"),
                    ],
                    "image": TRUSTED,
                    "name": "prover",
                    "resources": resources("100m", "64Mi", "64Mi"),
                    "restartPolicy": "Always",
                    "securityContext": confined(runAsUser=64000),
                    "volumeMounts": [{"mountPath": "/run/prover", "name": "verdict"}],
                },
                {
                    **COMMON,
                    "env": [field("PODGATE_POD_UID", "metadata.uid")],
                    "image": TRUSTED,
                    "name": "gate",
                    "resources": resources("250m", "256Mi", "128Mi"),
                    "securityContext": confined(),
                    "volumeMounts": [{"mountPath": "/run/podgate", "name": "storage"}],
                },
            ],
            "preemptionPolicy": "PreemptLowerPriority",
            "priority": 0,
            "restartPolicy": "Never",
            "schedulerName": "default-scheduler",
            "securityContext": {
                "fsGroup": 64002,
                "runAsGroup": 64002,
                "runAsNonRoot": True,
                "runAsUser": 64001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "serviceAccount": "podgate-worker",
            "serviceAccountName": "podgate-worker",
            "shareProcessNamespace": False,
            "terminationGracePeriodSeconds": 10,
            "tolerations": [
                {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
            "volumes": [
                {"emptyDir": {"sizeLimit": "2Gi"}, "name": "storage"},
                {"emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}, "name": "tmp"},
                {"emptyDir": {"medium": "Memory", "sizeLimit": "32Mi"}, "name": "home"},
                {"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}, "name": "verdict"},
            ],
        },
    }


def test_the_programs_travel_as_their_committed_text():
    built = pod(chosen=options(closed_targets=(ClosedTarget(ip="198.51.100.10", port=80, name="net"),)))
    for program in ("prover", "gate", "keeper"):
        assert container(built, program)["command"][-1].replace("$$", "$") == source(program)
    config = json.loads(container(built, "prover")["args"][0])
    assert config["witness"] == WITNESS_IPS
    assert config["targets"] == [{"ip": "198.51.100.10", "name": "net", "port": 80, "protocol": "tcp"}]
    assert (config["timeoutSeconds"], config["healthPort"], config["blindAfterSeconds"]) == (900, 8799, 300)
    assert json.loads(container(built, "gate")["args"][0])["boundSeconds"] == 300


def test_there_are_two_address_families():
    with pytest.raises(ValueError, match="4 or 6"):
        build_pod(spec(), options(), witness_ips={"5": "10.0.0.1"}, record=RECORD, secret=None)


def test_the_gate_has_the_workers_limits():
    built = pod(spec(cpus=3, memoryMb=8192))
    assert container(built, "gate")["resources"] == container(built, "worker")["resources"]


def test_an_images_own_entrypoint_keeps_its_own_directory():
    worker = container(pod(spec(args=["a"])), "worker")
    assert "workingDir" not in worker
    assert "command" not in worker
    assert worker["args"] == ["a"]


def test_a_home_of_the_callers_stands():
    env = container(pod(spec(env={"HOME": "/workspace"})), "worker")["env"]
    assert {"name": "HOME", "value": "/workspace"} in env
    assert len(env) == 2


def test_a_capability_comes_from_the_secret_alone():
    env = container(pod(secret="podgate-run-x-0f0e0d0c"), "worker")["env"]
    reference = {"key": "capability", "name": "podgate-run-x-0f0e0d0c"}
    assert env[-1] == {"name": "PODGATE_CAPABILITY", "valueFrom": {"secretKeyRef": reference}}


def test_only_the_worker_gets_the_callers_words():
    built = pod(spec(env={"TOKEN_X": "v"}, labels={"mine": "label-value"}, command=["prog-x"]))
    for name in ("prover", "gate", "keeper"):
        assert "TOKEN_X" not in json.dumps(container(built, name))
        assert "prog-x" not in json.dumps(container(built, name))
    assert "label-value" not in json.dumps(built)


def test_classes_are_named_and_their_numbers_left_to_them():
    body = pod(chosen=FULL)["spec"]
    assert (body["runtimeClassName"], body["priorityClassName"]) == ("gvisor", "batch")
    assert "priority" not in body
    assert "preemptionPolicy" not in body


def test_a_profile_with_dns_resolves_by_the_cluster():
    body = pod(spec(egress="dns"), FULL)["spec"]
    assert body["dnsPolicy"] == "ClusterFirst"
    assert "dnsConfig" not in body


def test_a_profiles_aliases_are_known_without_dns():
    body = pod(spec(egress="web"), FULL)["spec"]
    assert body["hostAliases"] == [{"hostnames": ["proxy.test"], "ip": "10.9.0.1"}]
    assert body["dnsPolicy"] == "None"


def test_in_scope_shared_all_runs_of_a_profile_have_the_same_labels():
    shared = options(network_policy_scope="shared")
    one, other = pod(spec(), shared), pod(spec(runId="run-2"), shared)
    assert one["metadata"]["labels"] == other["metadata"]["labels"]
    assert "podgate.dev/run" not in one["metadata"]["labels"]
    assert policy(spec(), shared) == policy(spec(runId="run-2"), shared)
    selected = policy(spec(), shared)["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= one["metadata"]["labels"].items()


def test_a_shared_policy_is_named_by_what_it_opens():
    chosen = {
        "plain": options(network_policy_scope="shared"),
        "port": options(network_policy_scope="shared", control_port=9000),
        "web": options(network_policy_scope="shared", egress_profiles={"web": WEB}),
        "other": options(network_policy_scope="shared", egress_profiles={"web": EgressProfile(dns=True)}),
    }
    built = {name: policy(spec(egress="web" if name in {"web", "other"} else "none"), o) for name, o in chosen.items()}
    assert len({one["metadata"]["name"] for one in built.values()}) == 4
    assert all("ownerReferences" not in one["metadata"] for one in built.values())


def test_the_whole_policy_is_this():
    assert policy() == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "annotations": {"podgate.dev/run-id": "run-1"},
            "labels": {"app.kubernetes.io/managed-by": "podgate", "podgate.dev/component": "run"},
            "name": f"podgate-run-{TOKEN}",
            "namespace": "podgate",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": POD.name, "uid": POD.uid}],
        },
        "spec": {
            "egress": [
                {
                    "ports": [{"port": 8787, "protocol": "TCP"}],
                    "to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "podgate-witness"}}}],
                }
            ],
            "podSelector": {"matchLabels": {"podgate.dev/run": TOKEN}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def test_a_profile_opens_its_rules_and_nothing_else():
    egress = policy(spec(egress="web"), FULL)["spec"]["egress"]
    assert egress[1:] == [
        {"ports": [{"port": 443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}]},
        {
            "ports": [{"port": 3128, "protocol": "TCP"}],
            "to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "proxy"}}}],
        },
        {"ports": [{"port": 53, "protocol": "UDP"}], "to": [{"podSelector": {}}]},
    ]


def test_a_profile_with_dns_opens_the_clusters_dns_alone():
    egress = policy(spec(egress="dns"), FULL)["spec"]["egress"]
    assert len(egress) == 2
    assert egress[1]["ports"] == [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]
    assert egress[1]["to"][0]["podSelector"] == {"matchLabels": {"k8s-app": "kube-dns"}}


def test_a_runs_own_policy_needs_its_pod():
    with pytest.raises(ValueError, match="owned by its pod"):
        build_policy(spec(), options(), pod=None)


def test_an_unknown_profile_builds_no_policy():
    with pytest.raises(SpecInvalid):
        policy(spec(egress="nope"))


def test_the_whole_secret_is_this():
    built = build_secret(spec(), options(), value="0123456789abcdef", pod=POD, record_uid=RECORD.uid)
    assert built["data"] == {"capability": "MDEyMzQ1Njc4OWFiY2RlZg=="}
    assert built["metadata"]["name"] == f"podgate-run-{TOKEN}-0f0e0d0c"
    assert built["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": POD.name, "uid": POD.uid}
    ]
    assert (built["immutable"], built["type"]) == (True, "Opaque")
    V1Secret.model_validate(built)


@pytest.mark.parametrize("value", ["", "a" * 15, "a" * 513, "a" * 15 + "\n", "ä" * 16])
def test_what_cannot_be_a_capability_is_refused_without_being_shown(value):
    with pytest.raises(CapabilityInvalid) as caught:
        build_secret(spec(), options(), value=value, pod=POD, record_uid=RECORD.uid)
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize(
    ("job", "chosen"),
    [
        (spec(), options()),
        (spec(egress="web", command=["a"], env={"A": ""}), FULL),
        (spec(egress="dns"), FULL),
        (spec(), options(network_policy_scope="shared")),
        (spec(), options(platform="gke-autopilot", runtime_class="gvisor")),
    ],
)
def test_the_clients_strict_models_know_every_field(job, chosen):
    V1Pod.model_validate(pod(job, chosen, secret="podgate-run-x-0f0e0d0c"))
    V1NetworkPolicy.model_validate(policy(job, chosen))


def test_manifests_are_plain_json_without_empty_values():
    for built in (pod(), pod(spec(egress="web"), FULL), policy(spec(egress="dns"), FULL)):
        assert json.loads(json.dumps(built)) == built
        assert not list(empties(built))


def empties(value):
    """What the server would drop or rewrite: null, empty lists and empty text; also zero but for the priority."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if item in (None, [], "") or (type(item) is int and item == 0 and key != "priority"):
            yield key
        elif isinstance(item, (dict, list)):
            yield from empties(item)
