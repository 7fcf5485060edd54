import copy
from dataclasses import replace

import pytest

from isolation.objects.install import installation
from isolation.options import Allowance, IsolationOptions
from launcher import doctor
from launcher.cluster.errors import Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.doctor import Facts, Right, Unknown
from launcher.doctor_checks import decide, healthy
from launcher.settings import Settings

IMAGE = "registry.example/python@sha256:" + "a" * 64
SETTINGS = Settings(isolation=IsolationOptions(trusted_image=IMAGE, runtime_class="gvisor"))
INSTALLED = {(o["kind"], o["metadata"]["name"]): o for o in installation(SETTINGS.isolation)}


class Cluster:
    """A cluster in which everything of the installation stands, and nothing changes what is sent."""

    def __init__(self):
        self.objects = copy.deepcopy(INSTALLED)
        self.objects["Service", "podgate-witness"]["spec"]["clusterIPs"] = ["192.0.2.10", "2001:db8::10"]
        self.objects["Deployment", "podgate-witness"]["status"] = {"readyReplicas": 2}
        self.version = (1, 34)
        self.denied = set()
        self.refusals = {}
        self.questions = []
        self.created = []
        self.mutate = lambda body: body

    async def get(self, kind, namespace, name):
        if kind in self.refusals:
            raise self.refusals[kind]
        return self.objects.get((kind.value.kind, name))

    async def create(self, kind, namespace, body, *, dry_run=False):
        if kind is Kind.ACCESS_REVIEW:
            self.questions.append(body["spec"]["resourceAttributes"])
            asked = body["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"], asked.get("subresource")) not in self.denied
            return {"status": {"allowed": allowed}}
        if kind in self.refusals:
            raise self.refusals[kind]
        self.created.append((kind, dry_run))
        return self.mutate(copy.deepcopy(body))

    async def server_version(self):
        return self.version


@pytest.fixture
def cluster():
    return Cluster()


async def examined(cluster, settings=SETTINGS):
    return decide(await doctor.gather(cluster, settings), settings)


def outcomes(findings, check):
    return [f.outcome for f in findings if f.check == check]


@pytest.mark.anyio
async def test_an_installation_as_it_should_be_has_no_finding(cluster):
    findings = await examined(cluster)
    assert {f.outcome for f in findings} == {"ok"}
    assert healthy(findings)


@pytest.mark.anyio
async def test_nothing_is_created_but_by_dry_run(cluster):
    await examined(cluster)
    assert cluster.created == [(Kind.POD, True), (Kind.NETWORK_POLICY, True)]


@pytest.mark.anyio
async def test_every_right_of_the_launchers_role_is_asked_for(cluster):
    await examined(cluster)
    asked = {(q["verb"], q["resource"], q.get("subresource", "")) for q in cluster.questions}
    assert {
        ("create", "pods", ""),
        ("create", "pods", "exec"),
        ("get", "pods", "log"),
        ("create", "secrets", ""),
    } <= asked
    assert all(q["namespace"] == "podgate" for q in cluster.questions)


@pytest.mark.anyio
async def test_a_missing_right_is_named(cluster):
    cluster.denied.add(("create", "pods", "exec"))
    (finding,) = [f for f in await examined(cluster) if f.check == "rights"]
    assert (finding.outcome, finding.detail) == ("failed", "may not create pods/exec")


@pytest.mark.anyio
async def test_an_old_server_is_a_failure(cluster):
    cluster.version = (1, 28)
    assert outcomes(await examined(cluster), "version") == ["failed"]


@pytest.mark.anyio
async def test_what_the_account_may_not_look_at_is_a_note(cluster):
    cluster.refusals[Kind.NAMESPACE] = Refused("get namespaces", status=403, reason="Forbidden")
    findings = await examined(cluster)
    assert outcomes(findings, "namespace") == ["note"]
    assert healthy(findings)


@pytest.mark.anyio
async def test_a_server_that_does_not_answer_is_a_failure(cluster):
    cluster.refusals[Kind.NAMESPACE] = Unreachable("get namespaces")
    assert not healthy(await examined(cluster))


@pytest.mark.anyio
async def test_a_namespace_without_pod_security_is_a_warning_with_its_command(cluster):
    cluster.objects["Namespace", "podgate"]["metadata"]["labels"] = {}
    (finding,) = [f for f in await examined(cluster) if f.check == "namespace"]
    assert finding.outcome == "warning"
    assert "kubectl label namespace podgate" in finding.remedy


@pytest.mark.parametrize(
    "spec",
    [
        {"podSelector": {}, "policyTypes": ["Ingress"]},
        {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": [{}]},
        {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress", "Egress"]},
    ],
    ids=["ingress only", "egress open", "some pods"],
)
@pytest.mark.anyio
async def test_a_default_deny_that_does_not_deny_all_is_a_failure(cluster, spec):
    cluster.objects["NetworkPolicy", "podgate-default-deny"]["spec"] = spec
    assert outcomes(await examined(cluster), "default deny") == ["failed"]


@pytest.mark.parametrize(
    ("key", "check"),
    [
        (("NetworkPolicy", "podgate-default-deny"), "default deny"),
        (("Namespace", "podgate"), "namespace"),
        (("Service", "podgate-witness"), "witness"),
    ],
)
@pytest.mark.anyio
async def test_what_is_not_there_is_a_failure(cluster, key, check):
    del cluster.objects[key]
    assert outcomes(await examined(cluster), check) == ["failed"]


@pytest.mark.anyio
async def test_without_a_witness_the_dry_run_says_why_it_was_not_tried(cluster):
    del cluster.objects["Service", "podgate-witness"]
    findings = await examined(cluster)
    assert outcomes(findings, "dry-run pod") == ["failed"]
    assert cluster.created == []


@pytest.mark.anyio
async def test_a_witness_of_one_family_is_a_note(cluster):
    cluster.objects["Service", "podgate-witness"]["spec"]["clusterIPs"] = ["192.0.2.10"]
    assert outcomes(await examined(cluster), "witness") == ["note"]


@pytest.mark.anyio
async def test_a_witness_without_its_udp_port_is_a_failure(cluster):
    ports = cluster.objects["Service", "podgate-witness"]["spec"]["ports"]
    ports[:] = [port for port in ports if port["protocol"] != "UDP"]
    (finding,) = [f for f in await examined(cluster) if f.check == "witness"]
    assert (finding.outcome, "8788/UDP" in finding.detail) == ("failed", True)


@pytest.mark.parametrize(("ready", "outcome"), [(0, "failed"), (1, "warning"), (2, "ok")])
@pytest.mark.anyio
async def test_witness_pods_are_counted(cluster, ready, outcome):
    cluster.objects["Deployment", "podgate-witness"]["status"] = {"readyReplicas": ready}
    assert outcomes(await examined(cluster), "witness pods") == [outcome]


def labelled(body):
    body["metadata"]["labels"]["team"] = "x"
    return body


@pytest.mark.anyio
async def test_what_the_cluster_would_change_is_told_with_the_allowance_it_needs(cluster):
    cluster.mutate = labelled
    found = [f for f in await examined(cluster) if f.check == "dry-run pod"]
    assert [f.outcome for f in found] == ["failed"]
    assert '{"path": "$.metadata.labels.team", "value": "x", "reason": "…"}' in found[0].remedy


@pytest.mark.anyio
async def test_a_reviewed_allowance_lets_it_through(cluster):
    cluster.mutate = labelled
    allowance = Allowance(path="$.metadata.labels.team", value="x", reason="reviewed")
    options = SETTINGS.isolation.model_copy(update={"allowances": (allowance,)})
    findings = await examined(cluster, SETTINGS.model_copy(update={"isolation": options}))
    assert outcomes(findings, "dry-run pod") == ["ok"]


@pytest.mark.anyio
async def test_what_the_cluster_would_take_away_has_no_allowance(cluster):
    def without_limits(body):
        if body["kind"] == "Pod":
            del body["spec"]["containers"][0]["resources"]["limits"]
        return body

    cluster.mutate = without_limits
    found = [f for f in await examined(cluster) if f.check == "dry-run pod"]
    assert found
    assert all("no allowance" in f.remedy for f in found)


@pytest.mark.anyio
async def test_a_pod_that_would_be_refused_is_told_in_the_servers_words(cluster):
    cluster.refusals[Kind.POD] = Refused("create pods", status=403, message="violates PodSecurity")
    (finding,) = [f for f in await examined(cluster) if f.check == "dry-run pod"]
    assert finding.outcome == "failed"
    assert "violates PodSecurity" in finding.detail


@pytest.mark.anyio
async def test_no_runtime_class_is_a_warning_and_no_failure(cluster):
    options = SETTINGS.isolation.model_copy(update={"runtime_class": None})
    findings = await examined(cluster, SETTINGS.model_copy(update={"isolation": options}))
    assert outcomes(findings, "runtime class") == ["warning"]
    assert healthy(findings)


@pytest.mark.anyio
async def test_facts_are_decided_without_a_cluster(cluster):
    facts: Facts = await doctor.gather(cluster, SETTINGS)
    blind = replace(facts, rights=Unknown("no answer"), version=Unknown("no answer"))
    assert {f.check for f in decide(blind, SETTINGS) if f.outcome == "failed"} == {"rights", "version"}


def test_a_right_reads_as_kubectl_says_it():
    assert str(Right("create", "networking.k8s.io", "networkpolicies")) == "create networkpolicies.networking.k8s.io"
