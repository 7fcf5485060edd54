import copy
import json

import pytest
from isolation_samples import container, options, pod, policy, recorded, spec, stored

from isolation.attest import Violation, attest, differences
from isolation.options import Allowance

DEFAULTED = {
    "imagePullPolicy": "IfNotPresent",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}


def found(sent, read_back, **more):
    return [(violation.path, violation.kind) for violation in attest(sent, read_back, **more)]


def hints(sent, read_back):
    return [violation.hint or "" for violation in attest(sent, read_back)]


def changed(change, sent=None):
    """What is read back after somebody changed a stored pod."""
    read_back = stored(sent or pod())
    change(read_back)
    return read_back


def in_worker(name, value):
    return changed(lambda it: container(it, "worker").__setitem__(name, value))


def test_an_untouched_pod_and_policy_are_what_was_sent():
    assert attest(pod(), stored(pod())) == ()
    assert attest(policy(), stored(policy())) == ()


def test_neither_side_is_changed_by_the_comparison():
    sent, read_back = pod(), stored(pod())
    before = copy.deepcopy((sent, read_back))
    attest(sent, read_back)
    assert (sent, read_back) == before


def test_the_order_of_members_means_nothing():
    assert attest(pod(), json.loads(json.dumps(stored(pod()), sort_keys=True))) == ()


@pytest.mark.parametrize("step", ["stored", "later"])
def test_a_recorded_pod_that_says_every_default_is_what_was_sent(step):
    assert attest(recorded("pod-explicit.sent"), recorded(f"pod-explicit.{step}")) == ()


def test_a_recorded_policy_differs_by_what_was_left_unsaid_only():
    sent, read_back = recorded("networkpolicy.sent"), recorded("networkpolicy.stored")
    assert found(sent, read_back) == [
        ("$.spec.egress[0].ports[0].protocol", "unexpected"),
        ("$.spec.ingress", "missing"),
    ]


def with_defaults(sent):
    """A recorded manifest that left its defaults unsaid, with what a server adds to it."""
    full = copy.deepcopy(sent)
    body = full["spec"]
    body |= {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", "schedulerName": "default-scheduler"}
    body.setdefault("serviceAccount", body.get("serviceAccountName"))
    body["tolerations"] = [*body.get("tolerations", []), *pod()["spec"]["tolerations"]]
    for one in [*body["containers"], *body["initContainers"]]:
        one |= {name: value for name, value in DEFAULTED.items() if name not in one}
        for port in one.get("ports", []):
            port.setdefault("protocol", "TCP")
        if "livenessProbe" in one:
            one["livenessProbe"] = {"timeoutSeconds": 1, "successThreshold": 1, **one["livenessProbe"]}
            one["livenessProbe"]["httpGet"].setdefault("scheme", "HTTP")
    return full


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("sidecar", [("$.spec.containers[mesh-proxy]", "unexpected", "mesh")]),
        (
            "init-first",
            [
                ("$.spec.initContainers[mesh-init]", "unexpected", "mesh"),
                ("$.spec.initContainers", "different", "order"),
            ],
        ),
        (
            "native-sidecar",
            [
                ("$.spec.initContainers[mesh-proxy]", "unexpected", "mesh"),
                ("$.spec.initContainers", "different", "order"),
            ],
        ),
        ("image", [("$.spec.containers[worker].image", "different", "mirror")]),
        (
            "label",
            [
                ('$.metadata.annotations["mesh.example/revision"]', "unexpected", "mesh"),
                ('$.metadata.labels["mesh.example/injected"]', "unexpected", "mesh"),
            ],
        ),
        (
            "volume",
            [
                ("$.spec.containers[worker].volumeMounts[/injected]", "unexpected", "volume"),
                ("$.spec.volumes[injected]", "unexpected", "volume"),
            ],
        ),
    ],
)
def test_each_recorded_mutation_is_found_and_its_cause_named(case, expected):
    violations = attest(with_defaults(recorded(f"pod-mutated-{case}.sent")), recorded(f"pod-mutated-{case}.stored"))
    assert [(one.path, one.kind) for one in violations] == [(path, kind) for path, kind, _ in expected]
    for violation, (_, _, word) in zip(violations, expected, strict=True):
        assert word in violation.hint


def test_a_recorded_limit_range_is_named_as_such():
    sent = with_defaults(recorded("pod-limitrange-default.sent"))
    violations = attest(sent, recorded("pod-limitrange-default.stored"))
    assert '$.metadata.annotations["kubernetes.io/limit-ranger"]' in [one.path for one in violations]
    assert any("resources" in one.path for one in violations)
    assert all("LimitRange" in one.hint for one in violations)


def test_a_recorded_priority_class_is_the_servers_own():
    sent = with_defaults(recorded("pod-priorityclass.sent"))
    for name in ("priority", "preemptionPolicy"):
        sent["spec"].pop(name)
    assert attest(sent, recorded("pod-priorityclass.stored")) == ()


def test_a_recorded_runtime_class_differs_by_where_it_sends_the_pod_only():
    sent = with_defaults(recorded("pod-runtimeclass.sent"))
    assert found(sent, recorded("pod-runtimeclass.stored")) == [
        ("$.spec.tolerations[2]", "unexpected"),
        ("$.spec.nodeSelector", "unexpected"),
    ]


def test_what_a_named_class_adds_is_the_servers_own():
    sent = pod(chosen=options(runtime_class="gvisor", priority_class="batch"))
    read_back = stored(sent)
    read_back["spec"] |= {"priority": 1000, "preemptionPolicy": "Never", "overhead": {"cpu": "50m", "memory": "32Mi"}}
    assert attest(sent, read_back) == ()


@pytest.mark.parametrize(
    ("name", "value"), [("priority", 1000), ("preemptionPolicy", "Never"), ("overhead", {"cpu": "50m"})]
)
def test_without_a_named_class_nothing_of_it_passes(name, value):
    kind = "unexpected" if name == "overhead" else "different"
    assert found(pod(), changed(lambda it: it["spec"].__setitem__(name, value))) == [(f"$.spec.{name}", kind)]


def test_where_a_runtime_class_sends_the_pod_is_a_difference():
    sent = pod(chosen=options(runtime_class="gvisor"))
    read_back = changed(lambda it: it["spec"].__setitem__("nodeSelector", {"a": "b"}), sent)
    assert found(sent, read_back) == [("$.spec.nodeSelector", "unexpected")]
    assert "runtime class" in hints(sent, read_back)[0]


def test_quantities_are_compared_by_value():
    read_back = stored(pod(spec(cpus=1, memoryMb=1024, diskMb=2048)))
    worker = container(read_back, "worker")["resources"]
    worker["limits"] |= {"cpu": "1000m", "memory": "1024Mi"}
    read_back["spec"]["volumes"][0]["emptyDir"]["sizeLimit"] = "2147483648"
    assert attest(pod(spec(cpus=1, memoryMb=1024, diskMb=2048)), read_back) == ()
    worker["limits"]["memory"] = "1024.0000001Mi"
    assert found(pod(spec()), read_back) == [("$.spec.containers[worker].resources.limits.memory", "different")]


def test_spelling_matters_everywhere_else():
    read_back = changed(lambda it: container(it, "worker")["env"].append({"name": "A", "value": "1000m"}))
    sent = pod()
    container(sent, "worker")["env"].append({"name": "A", "value": "1"})
    assert found(sent, read_back) == [("$.spec.containers[worker].env[A].value", "different")]


@pytest.mark.parametrize(("sent_value", "stored_value"), [(False, 0), (True, 1), (1, 1.0), (1, "1"), (1, True)])
def test_values_of_another_type_are_another_value(sent_value, stored_value):
    sent = pod()
    sent["spec"]["x"] = sent_value
    assert found(sent, changed(lambda it: it["spec"].__setitem__("x", stored_value))) == [("$.spec.x", "different")]


WORKER = "$.spec.containers[worker]"


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("image", "registry.test/other@sha256:" + "c" * 64, f"{WORKER}.image"),
        ("command", ["false"], f"{WORKER}.command[0]"),
        ("lifecycle", {"postStart": {"exec": {"command": ["a"]}}}, f"{WORKER}.lifecycle"),
        ("startupProbe", {}, f"{WORKER}.startupProbe"),
        ("tty", True, f"{WORKER}.tty"),
        ("securityContext", {}, None),
        ("envFrom", [{"secretRef": {"name": "x"}}], f"{WORKER}.envFrom"),
        ("volumeDevices", [{"name": "a", "devicePath": "/dev/x"}], f"{WORKER}.volumeDevices"),
        ("resizePolicy", [], f"{WORKER}.resizePolicy"),
        ("fieldOfTheFuture", {"hostEscape": True}, f"{WORKER}.fieldOfTheFuture"),
    ],
)
def test_a_change_of_the_worker_is_found(name, value, path):
    paths = [path for path, _ in found(pod(), in_worker(name, value))]
    assert paths == [path] if path else len(paths) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hostNetwork", True),
        ("hostPID", True),
        ("hostUsers", True),
        ("ephemeralContainers", [{"name": "debug"}]),
        ("imagePullSecrets", [{"name": "x"}]),
        ("affinity", {}),
        ("nodeName", None),
        ("readinessGates", []),
        ("resourceClaims", [{"name": "gpu"}]),
        ("schedulingGates", [{"name": "x"}]),
        ("priorityClassName", "mine"),
        ("hostAliases", [{"ip": "10.0.0.1", "hostnames": ["a"]}]),
        ("setHostnameAsFQDN", True),
    ],
)
def test_an_addition_to_the_pods_spec_is_found(name, value):
    assert found(pod(), changed(lambda it: it["spec"].__setitem__(name, value))) == [(f"$.spec.{name}", "unexpected")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m["labels"].update(a="b"), ("$.metadata.labels.a", "unexpected")),
        (lambda m: m["labels"].pop("podgate.dev/run"), ('$.metadata.labels["podgate.dev/run"]', "missing")),
        (lambda m: m["annotations"].update(a="b"), ("$.metadata.annotations.a", "unexpected")),
        (lambda m: m.update(finalizers=["a/b"]), ("$.metadata.finalizers", "unexpected")),
        (lambda m: m.pop("ownerReferences"), ("$.metadata.ownerReferences", "missing")),
        (lambda m: m["ownerReferences"][0].update(uid="x"), ("$.metadata.ownerReferences[0].uid", "different")),
        (lambda m: m["ownerReferences"].append({}), ("$.metadata.ownerReferences[1]", "unexpected")),
        (lambda m: m.update(name="x"), ("$.metadata.name", "different")),
        (lambda m: m.update(generation=2), ("$.metadata.generation", "different")),
        (lambda m: m.update(deletionTimestamp="t"), ("$.metadata.deletionTimestamp", "unexpected")),
    ],
)
def test_a_change_of_the_metadata_is_found(change, expected):
    assert found(pod(), changed(lambda it: change(it["metadata"]))) == [expected]


def test_another_generation_can_be_looked_away_from():
    read_back = changed(lambda it: it["metadata"].update(generation=2))
    assert attest(pod(), read_back, generation=None) == ()
    assert attest(pod(), read_back, generation=2) == ()


def test_a_server_that_keeps_no_generation_is_not_blamed():
    assert attest(pod(), changed(lambda it: it["metadata"].pop("generation"))) == ()


def test_another_object_of_the_same_name_is_found_by_its_uid():
    uid = stored(pod())["metadata"]["uid"]
    assert attest(pod(), stored(pod()), uid=uid) == ()
    assert found(pod(), stored(pod()), uid="other") == [("$.metadata.uid", "different")]
    assert found(pod(), changed(lambda it: it["metadata"].pop("uid")), uid=uid) == [("$.metadata.uid", "different")]


def test_a_name_that_occurs_twice_names_nothing():
    read_back = changed(lambda it: container(it, "worker")["env"].append({"name": "HOME", "value": "/evil"}))
    assert found(pod(), read_back) == [("$.spec.containers[worker].env[2]", "unexpected")]


def test_another_order_of_containers_is_a_difference():
    read_back = changed(lambda it: it["spec"]["initContainers"].reverse())
    assert found(pod(), read_back) == [("$.spec.initContainers", "different")]


def test_a_toleration_is_found_wherever_it_was_put():
    extra = {"operator": "Exists"}
    for position in (0, 1, 2):
        read_back = changed(lambda it, at=position: it["spec"]["tolerations"].insert(at, extra))
        assert found(pod(), read_back) == [(f"$.spec.tolerations[{position}]", "unexpected")]
    assert found(pod(), changed(lambda it: it["spec"]["tolerations"].reverse())) == [
        ("$.spec.tolerations", "different")
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s["egress"].append({}), ("$.spec.egress[1]", "unexpected")),
        (lambda s: s.update(ingress=[{}]), ("$.spec.ingress", "unexpected")),
        (lambda s: s.pop("egress"), ("$.spec.egress", "missing")),
        (lambda s: s["policyTypes"].pop(), ("$.spec.policyTypes[1]", "missing")),
        (lambda s: s["podSelector"]["matchLabels"].update(a="b"), ("$.spec.podSelector.matchLabels.a", "unexpected")),
        (lambda s: s["egress"][0].pop("to"), ("$.spec.egress[0].to", "missing")),
        (lambda s: s["egress"][0]["ports"][0].update(endPort=9), ("$.spec.egress[0].ports[0].endPort", "unexpected")),
    ],
)
def test_a_change_of_the_policy_is_found(change, expected):
    read_back = stored(policy())
    change(read_back["spec"])
    assert found(policy(), read_back) == [expected]


def test_what_a_server_adds_to_pods_is_no_business_of_a_policy():
    read_back = stored(policy())
    read_back["spec"]["nodeName"] = "node-1"
    assert found(policy(), read_back) == [("$.spec.nodeName", "unexpected")]


@pytest.mark.parametrize("read_back", [{}, {"metadata": None, "spec": []}, {"metadata": [], "kind": 5}])
def test_what_is_no_pod_at_all_is_a_difference(read_back):
    assert attest(pod(), read_back)


def test_values_are_never_repeated():
    read_back = in_worker("fieldOfTheFuture", {"password": "hunter2"})
    container(read_back, "worker")["image"] = "hunter2"
    assert "hunter2" not in json.dumps([one.as_json() for one in attest(pod(), read_back)])


def test_a_violation_is_one_json_object():
    assert Violation("$.a", "missing").as_json() == {"path": "$.a", "kind": "missing"}
    assert Violation("$.a", "missing", "b").as_json() == {"path": "$.a", "kind": "missing", "hint": "b"}


SIDECAR = {"name": "istio-proxy", "image": "mesh"}


def allow(path, **what):
    return [Allowance(path=path, reason="reviewed", **what)]


def test_an_allowance_lets_exactly_its_difference_through():
    read_back = changed(lambda it: it["spec"]["containers"].append(dict(SIDECAR)))
    path = "$.spec.containers[istio-proxy]"
    assert attest(pod(), read_back, allowances=allow(path, value=SIDECAR)) == ()
    assert found(pod(), read_back, allowances=allow(path, value={**SIDECAR, "image": "other"})) == [
        (path, "unexpected")
    ]
    assert found(pod(), read_back, allowances=allow("$.spec.containers[istio]", value=SIDECAR)) == [
        (path, "unexpected")
    ]
    read_back["spec"]["containers"].append({"name": "other"})
    assert found(pod(), read_back, allowances=allow(path, value=SIDECAR)) == [
        ("$.spec.containers[other]", "unexpected")
    ]


def test_an_allowed_init_container_may_still_not_come_first():
    read_back = changed(lambda it: it["spec"]["initContainers"].insert(0, dict(SIDECAR)))
    left = found(pod(), read_back, allowances=allow("$.spec.initContainers[istio-proxy]", value=SIDECAR))
    assert left == [("$.spec.initContainers", "different")]


def test_a_prefix_lets_a_string_through():
    read_back = changed(lambda it: it["metadata"]["labels"].update({"topology.kubernetes.io/zone": "eu-1b"}))
    path = '$.metadata.labels["topology.kubernetes.io/zone"]'
    assert attest(pod(), read_back, allowances=allow(path, prefix="eu-")) == ()
    assert found(pod(), read_back, allowances=allow(path, prefix="us-")) == [(path, "unexpected")]


@pytest.mark.parametrize(
    ("repository", "digest", "passes"), [("mirror.test/job", "b", True), ("mirror.test/job", "c", False)]
)
def test_a_mirror_may_hold_the_same_image_only(repository, digest, passes):
    read_back = in_worker("image", f"{repository}@sha256:{digest * 64}")
    left = attest(pod(), read_back, allowances=allow(f"{WORKER}.image", prefix="mirror.test/"))
    assert (left == ()) is passes


def test_what_is_missing_can_never_be_allowed():
    read_back = changed(lambda it: it["spec"]["securityContext"].pop("runAsNonRoot"))
    path = "$.spec.securityContext.runAsNonRoot"
    for what in ({"value": True}, {"value": False}, {"prefix": "t"}):
        assert found(pod(), read_back, allowances=allow(path, **what)) == [(path, "missing")]


def test_differences_carry_the_values_for_the_doctor():
    (one,) = differences(pod(), in_worker("tty", value=True))
    assert (one.path, one.kind, one.sent, one.stored) == (f"{WORKER}.tty", "unexpected", None, True)


AUTOPILOT = options(platform="gke-autopilot", runtime_class="gvisor")
GVISOR_TOLERATION = {"effect": "NoSchedule", "key": "sandbox.gke.io/runtime", "operator": "Equal", "value": "gvisor"}


def on_autopilot(read_back):
    read_back["metadata"]["annotations"] |= {"autopilot.gke.io/resource-adjustment": "{}", "dev.gvisor.internal": "x"}
    read_back["metadata"]["labels"]["topology.kubernetes.io/zone"] = "eu-1b"
    read_back["spec"]["nodeSelector"] = {"sandbox.gke.io/runtime": "gvisor"}
    read_back["spec"]["tolerations"].insert(0, dict(GVISOR_TOLERATION))


def test_what_autopilot_adds_passes_there_and_nowhere_else():
    sent = pod(chosen=AUTOPILOT)
    read_back = changed(on_autopilot, sent)
    assert attest(sent, read_back, platform="gke-autopilot") == ()
    assert len(attest(sent, read_back)) == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["metadata"]["annotations"].update({"autopilot.gke.io.evil/x": "y"}),
        lambda it: it["metadata"]["annotations"].update({"evil/autopilot.gke.io/": "y"}),
        lambda it: it["metadata"]["annotations"].update({"podgate.dev/run-id": "other"}),
        lambda it: it["metadata"]["labels"].pop("podgate.dev/run"),
        lambda it: it["spec"]["nodeSelector"].update({"kubernetes.io/hostname": "mine"}),
        lambda it: it["spec"]["tolerations"][0].update(effect="NoExecute"),
        lambda it: it["spec"]["tolerations"].append({"operator": "Exists"}),
        lambda it: it["spec"].update(hostNetwork=True),
        lambda it: container(it, "worker")["resources"]["limits"].update(cpu="2"),
    ],
)
def test_what_is_done_beside_autopilots_additions_is_found(change):
    sent = pod(chosen=AUTOPILOT)
    read_back = changed(on_autopilot, sent)
    change(read_back)
    assert len(attest(sent, read_back, platform="gke-autopilot")) == 1


TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
AWS_PATH = "/var/run/secrets/eks.amazonaws.com/serviceaccount"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda it: it["spec"]["containers"].append({"name": "istio-proxy"}), "mesh"),
        (lambda it: it["spec"]["containers"].append({"name": "linkerd-proxy"}), "mesh"),
        (lambda it: it["spec"]["volumes"].append({"name": "istio-envoy"}), "mesh"),
        (lambda it: it["metadata"]["labels"].update({"security.istio.io/tlsMode": "istio"}), "mesh"),
        (lambda it: it["metadata"]["annotations"].update({"linkerd.io/inject": "x"}), "mesh"),
        (lambda it: it["metadata"]["annotations"].update({"kubernetes.io/limit-ranger": "x"}), "LimitRange"),
        (lambda it: container(it, "worker")["resources"]["limits"].update(cpu="2"), "LimitRange"),
        (lambda it: container(it, "worker")["env"].append({"name": "AWS_ROLE_ARN"}), "pod-identity"),
        (lambda it: it["spec"]["volumes"].append({"name": "aws-iam-token"}), "pod-identity"),
        (lambda it: container(it, "worker")["volumeMounts"].append({"mountPath": AWS_PATH}), "pod-identity"),
        (lambda it: it["spec"]["volumes"].append({"name": "kube-api-access-abcde"}), "service account token"),
        (lambda it: container(it, "worker")["volumeMounts"].append({"mountPath": TOKEN_PATH}), "service account token"),
        (lambda it: it["metadata"]["annotations"].update({"openshift.io/scc": "x"}), "SecurityContextConstraint"),
        (lambda it: it["spec"]["securityContext"].update(seLinuxOptions={}), "SecurityContextConstraint"),
        (lambda it: it["spec"]["securityContext"].update(fsGroup=5), "SecurityContextConstraint"),
        (lambda it: it["metadata"]["labels"].update({"topology.kubernetes.io/zone": "a"}), "topology"),
        (lambda it: container(it, "worker").update(image="m.test/x@sha256:" + "b" * 64), "mirror"),
        (lambda it: container(it, "worker").update(image="m.test/x@sha256:" + "c" * 64), "replaced"),
        (lambda it: it["spec"].update(imagePullSecrets=[]), "pull secret"),
        (lambda it: it["spec"].update(ephemeralContainers=[]), "debug container"),
        (lambda it: it["spec"]["containers"].append({"name": "agent"}), "injects a container"),
        (lambda it: it["metadata"]["labels"].update({"a": "b"}), "labels or annotations"),
        (lambda it: it["metadata"].update(deletionTimestamp="t"), "being deleted"),
        (lambda it: it["metadata"].update(generation=3), "changed after"),
        (lambda it: it["spec"].update(hostNetwork=True), ""),
    ],
)
def test_well_known_causes_are_named(change, words):
    (hint,) = hints(pod(), changed(change))
    assert words in hint
    assert bool(words) == bool(hint)
