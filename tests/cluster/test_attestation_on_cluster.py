"""What admission changes is found on the stored pod by path and hint; only a reviewed allowance lets it through."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from podgate_cli import Place, Podgate, until

pytestmark = pytest.mark.cluster

ADDED_LABEL = """[JSONPatch{op: "add", path: "/metadata/labels/mesh.example~1injected", value: "on"}]"""
SIDECAR = """[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "istio-proxy",
 image: "IMAGE", command: ["sleep", "600"], resources: Object.spec.containers.resources{
 limits: {"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "16Mi"}}, securityContext:
 Object.spec.containers.securityContext{allowPrivilegeEscalation: false, runAsNonRoot: true,
 capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}]"""
IMAGE = """[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "IMAGE"}]"""
VOLUME = """[JSONPatch{op: "add", path: "/spec/volumes/-", value: Object.spec.volumes{name: "injected",
 emptyDir: Object.spec.volumes.emptyDir{}}}, JSONPatch{op: "add", path: "/spec/containers/0/volumeMounts/-",
 value: Object.spec.containers.volumeMounts{name: "injected", mountPath: "/injected"}}]"""


@contextmanager
def mutated(place: Place, podgate: Podgate, expression: str) -> Iterator[str]:
    """A MutatingAdmissionPolicy for one run's pod; yields the run id."""
    run_id = podgate.run_id()
    pod = f"podgate-run-{podgate.handle(run_id).partition('/')[2]}"
    name = f"test-{pod[-12:]}"
    mine = f'request.namespace == "{place.namespace}" && object.metadata.name == "{pod}"'
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1beta1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConditions": [{"name": "mine", "expression": mine}],
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
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
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": place.namespace, "labels": {"a": "b"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {
                    "name": "c",
                    "image": image,
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
    asked = ("create", "--dry-run=server", "-o", "json", "-f", "-")
    stored = json.loads(place.kubectl(*asked, stdin=json.dumps(probe)))
    spec, labels = stored["spec"], stored["metadata"]["labels"]
    plain = [len(spec["containers"]), spec["containers"][0]["image"], len(spec["volumes"]), labels]
    return plain != [1, image, 1, {"a": "b"}]


def violations(podgate: Podgate, run_id: str) -> dict[str, str]:
    """Launch; return path → hint of what attestation found."""
    done = podgate("launch", "--json", *podgate.shell(run_id, "true"))
    assert (done.code, done.error["code"]) == (125, "attestation_failed"), done.err
    return {each["path"]: each.get("hint", "") for each in done.error["violations"]}


@pytest.mark.parametrize(
    ("expression", "path", "hint"),
    [
        (ADDED_LABEL, "mesh.example/injected", ""),
        (SIDECAR, "istio-proxy", "mesh"),
        (IMAGE, "image", "replaced"),
        (VOLUME, "injected", ""),
    ],
    ids=["label", "sidecar", "image", "volume"],
)
def test_what_admission_changes_is_refused_by_path_and_hint(
    podgate: Podgate, place: Place, expression: str, path: str, hint: str
) -> None:
    with mutated(place, podgate, expression) as run_id:
        found = violations(podgate, run_id)

    told = {where: why for where, why in found.items() if path in where}
    assert told, found
    assert any(hint in why for why in told.values()), found
    assert not place.worker_was_begun(run_id)
    until("pod, policy and Secret are gone", lambda: not place.of_run(run_id))


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


def test_a_limit_range_that_fills_in_is_named_as_such(podgate: Podgate, place: Place) -> None:
    """A LimitRange changes what a pod leaves unsaid; ours say everything, so a maximum below refuses them by name."""
    limit = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "small", "namespace": place.namespace},
        "spec": {"limits": [{"type": "Container", "max": {"memory": "130Mi"}}]},
    }
    place.bed.apply(limit)
    run_id = podgate.run_id()
    try:
        done = podgate("launch", "--json", *podgate.shell(run_id, "true", "--memory-mb", "512"))
    finally:
        place.kubectl("delete", "limitrange", "small")

    assert (done.code, done.error["code"]) == (125, "manifest_refused")
    assert "memory" in done.error["message"]
