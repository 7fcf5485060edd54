"""What admission changes is found on the stored pod by path and hint; only a reviewed allowance lets it through."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from podgate_cli import Place, Podgate, until
from worlds_policy import nothing_began

pytestmark = pytest.mark.cluster

ADDED_LABEL = """[JSONPatch{op: "add", path: "/metadata/labels/mesh.example~1injected", value: "on"}]"""
SIDECAR = """[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "istio-proxy",
 image: "IMAGE", command: ["sleep", "600"], resources: Object.spec.containers.resources{
 limits: {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"}}, securityContext:
 Object.spec.containers.securityContext{allowPrivilegeEscalation: false, runAsNonRoot: true,
 capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}]"""
IMAGE = """[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "IMAGE"}]"""
NATIVE_SIDECAR = """[JSONPatch{op: "add", path: "/spec/initContainers/0", value: Object.spec.initContainers{
 name: "linkerd-proxy", image: "IMAGE", command: ["sleep", "600"], restartPolicy: "Always", resources:
 Object.spec.initContainers.resources{limits: {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"}},
 securityContext: Object.spec.initContainers.securityContext{allowPrivilegeEscalation: false, runAsNonRoot: true,
 capabilities: Object.spec.initContainers.securityContext.capabilities{drop: ["ALL"]}}}}]"""
VOLUME = """[JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: "injected",
 emptyDir: Object.spec.volumes.emptyDir{}}}, JSONPatch{op: "add", path: "/spec/containers/0/volumeMounts/-",
 value: Object.spec.containers.volumeMounts{name: "injected", mountPath: "/injected"}}]"""


@contextmanager
def mutated(place: Place, podgate: Podgate, expression: str) -> Iterator[str]:
    """A MutatingAdmissionPolicy for one run's pod; yields the run id."""
    run_id = podgate.run_id()
    pod = f"podgate-run-{podgate.handle(run_id).partition('/')[2]}"
    name = f"test-{pod[-12:]}"
    mine = f'object.metadata.name == "{pod}"'
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1beta1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConditions": [{"name": "mine", "expression": mine}],
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "mutations": [
                {
                    "patchType": "JSONPatch",
                    "jsonPatch": {"expression": expression.replace("IMAGE", podgate.image("busybox"))},
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1beta1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    }
    place.bed.apply(policy, binding)
    try:
        until("the admission policy is in force", lambda: _in_force(place, pod, podgate.image("python")), seconds=30)
        yield run_id
    finally:
        place.kubectl("delete", "mutatingadmissionpolicy,mutatingadmissionpolicybinding", name)


def _in_force(place: Place, name: str, image: str) -> bool:
    """Whether a pod of that name would be changed: asked by a dry run, since the API server learns of policies late."""
    container = {
        "name": "c",
        "image": image,
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": place.namespace, "labels": {"a": "b"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "initContainers": [container],
            "containers": [container | {"name": "d"}],
        },
    }
    asked = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    stored = json.loads(place.kubectl(*asked, stdin=json.dumps(probe)))
    return _gist(stored) != _gist(probe)


def _gist(pod: dict) -> list[object]:
    """What of a pod the policies here change."""
    spec = pod["spec"]
    images = [each["image"] for each in (*spec["initContainers"], *spec["containers"])]
    return [images, len(spec["volumes"]), pod["metadata"]["labels"]]


def violations(podgate: Podgate, run_id: str) -> dict[str, str]:
    """Launch; return path → hint of what attestation found."""
    done = podgate("launch", "--json", *podgate.shell(run_id, "true"))
    assert (done.code, done.error["code"]) == (125, "attestation_failed"), done.err
    return {each["path"]: each.get("hint", "") for each in done.error["violations"]}


@pytest.mark.parametrize(
    ("expression", "path", "hint"),
    [
        (ADDED_LABEL, "mesh.example/injected", "mesh"),
        (SIDECAR, "istio-proxy", "mesh"),
        (NATIVE_SIDECAR, "linkerd-proxy", "mesh"),
        (IMAGE, "image", "replaced"),
        (VOLUME, "injected", "admission"),
    ],
    ids=["label", "sidecar", "sidecar before the gate", "image", "volume"],
)
def test_what_admission_changes_is_refused_by_path_and_hint(
    podgate: Podgate, place: Place, expression: str, path: str, hint: str
) -> None:
    with mutated(place, podgate, expression) as run_id:
        found = violations(podgate, run_id)

    told = {where: why for where, why in found.items() if path in where}
    assert told, found
    assert any(hint in why for why in told.values()), found
    nothing_began(place, run_id)


def test_a_reviewed_allowance_lets_exactly_that_difference_through(podgate: Podgate, place: Place) -> None:
    with mutated(place, podgate, ADDED_LABEL) as run_id:
        (path,) = violations(podgate, run_id)
    allowance = json.dumps([{"path": path, "value": "on", "reason": "our mesh labels every pod"}])
    allowing = podgate.set(allowances=allowance)
    assert allowing("preflight", "--json").code == 0

    with mutated(place, allowing, ADDED_LABEL) as allowed:
        done = allowing("run", "--json", *allowing.shell(allowed, "true"))
    with mutated(place, allowing, ADDED_LABEL.replace('"on"', '"off"')) as other:
        found = violations(allowing, other)

    assert done.code == 0, done.err
    assert list(found) == [path]


@contextmanager
def limit_range(place: Place, **limits: dict[str, str]) -> Iterator[None]:
    """A LimitRange for containers, in force."""
    metadata = {"name": "test", "namespace": place.namespace}
    spec = {"limits": [{"type": "Container", **limits}]}
    place.bed.apply({"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        place.kubectl("delete", "limitrange", "test")


def test_a_limit_range_that_writes_limits_is_named_as_such(podgate: Podgate, place: Place) -> None:
    """It changes what a pod leaves unsaid. Ours say all that is theirs; another resource of the cluster is not."""
    nothing = {"example.com/device": "0"}
    with limit_range(place, default=nothing, defaultRequest=nothing):
        run_id = podgate.run_id()
        found = violations(podgate, run_id)

    assert any("containers[worker].resources.limits" in path for path in found), found
    assert all("LimitRange" in hint for path, hint in found.items()), found
    nothing_began(place, run_id)


def test_a_limit_range_that_refuses_the_pod_is_told_at_once(podgate: Podgate, place: Place) -> None:
    with limit_range(place, max={"memory": "130Mi"}):
        run_id = podgate.run_id()
        done = podgate("launch", "--json", *podgate.shell(run_id, "true", "--memory-mb", "512"))

    assert (done.code, done.error["code"]) == (125, "manifest_refused")
    assert "memory" in done.error["message"]
    nothing_began(place, run_id)
