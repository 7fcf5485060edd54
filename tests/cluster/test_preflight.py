"""The preflight on a real cluster with the launcher's rights, where policies are enforced, are not, or by half."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bed import Bed

from isolation.options import IsolationOptions
from launcher.cluster.connect import connect
from launcher.cluster.port import AdminPort, Kind
from launcher.cluster.retrying import RetryingCluster
from launcher.context import Context
from launcher.preflight import Preflight, PreflightReport
from launcher.recordport import record_store
from launcher.settings import Bounds, Settings
from launcher.testing.interceptor import Interceptor

pytestmark = [pytest.mark.cluster, pytest.mark.policy, pytest.mark.anyio]

BOUNDS = Bounds(first_proof=8, preflight=60)


class Replica:
    """One launcher's preflight; ``port`` remembers its calls."""

    def __init__(self, cluster: AdminPort, settings: Settings, holder: str) -> None:
        self.port = Interceptor(RetryingCluster(cluster, sleep=asyncio.sleep, monotonic=time.monotonic))
        store = record_store(self.port, settings.isolation.namespace, sleep=asyncio.sleep)
        self.preflight = Preflight(Context(self.port, store, settings, holder, time.monotonic, asyncio.sleep))

    async def reads(self) -> None:
        """Wait until it reads a canary's log."""

        async def reading() -> bool:
            return bool(self.port.made("log"))

        await until(reading)

    async def made_anew(self) -> PreflightReport:
        return await self.preflight.run_report(force=True)


@pytest.fixture
def replica(installed: IsolationOptions, launcher_kubeconfig: Path) -> Callable[..., Any]:
    """Open a replica that has the launcher's Role and no other right; keywords change its settings."""

    @asynccontextmanager
    async def opened(
        holder: str = "a", options: IsolationOptions = installed, **settings: Any
    ) -> AsyncIterator[Replica]:
        async with connect(kubeconfig=launcher_kubeconfig) as cluster:
            yield Replica(cluster, Settings(isolation=options, bounds=BOUNDS, **settings), holder)

    return opened


@pytest.fixture
def mode(bed: Bed) -> Iterator[Callable[[str], str]]:
    """Sets how the bed enforces policies, and sets it back."""
    yield lambda name: bed.command("policy", name)
    bed.command("policy", "enforce")


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    """Wait for what no event of ours tells."""
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - a cluster sets no event of ours
            await asyncio.sleep(0.1)


@pytest.fixture(autouse=True)
async def nothing_left(admin: AdminPort, installed: IsolationOptions) -> AsyncIterator[None]:
    """Whatever a preflight found, its pods and their policies go."""
    yield

    async def gone() -> bool:
        return not await canaries(admin, installed.namespace)

    await until(gone)


async def canaries(admin: AdminPort, namespace: str) -> list[str]:
    kinds = (Kind.POD, Kind.NETWORK_POLICY)
    found = [body for kind in kinds for body in await admin.list(kind, namespace)]
    return [name for body in found if (name := body["metadata"]["name"]).startswith("podgate-canary-")]


@pytest.mark.parametrize(
    ("name", "by", "node_is_open"), [("enforce", "drop", True), ("reject", "refusal", True), ("strict", "drop", False)]
)
async def test_enforcement_of_any_kind_is_found(replica, mode, name: str, by: str, *, node_is_open: bool) -> None:
    mode(name)
    async with replica() as a:
        report = await a.made_anew()

    assert report.ok, report.message
    assert [finding.ok for finding in report.findings] == [True] * 4
    assert all(f"by {by}" in finding.detail for finding in report.findings if finding.name.startswith("policed"))
    assert bool(report.node_exposure) is node_is_open
    assert report.policy_latency_seconds is not None
    assert 0 <= report.policy_latency_seconds < BOUNDS.first_proof


@pytest.mark.parametrize(("name", "families"), [("off", ("IPv4", "IPv6")), ("v4-only", ("IPv6",))])
async def test_missing_enforcement_is_found_and_its_family_named(
    replica, mode, name: str, families: tuple[str, ...]
) -> None:
    mode(name)
    async with replica() as a:
        report = await a.made_anew()

    assert (report.ok, report.code) == (False, "policy_not_enforced")
    assert any(f"in {family} " in str(report.message) for family in families)
    fallen = [finding.name for finding in report.findings if not finding.ok]
    assert fallen == [f"policed, {family}" for family in families]


async def test_a_cluster_that_is_mended_is_found_so_again(replica, mode) -> None:
    mode("off")
    async with replica() as a:
        assert not (await a.made_anew()).ok
        mode("enforce")
        assert (await a.made_anew()).ok


async def test_replicas_that_start_together_make_one_experiment_and_a_later_one_asks_once(replica) -> None:
    async with replica("a", node_exposure="record") as a, replica("b") as b, replica("c") as c:
        one, other = await asyncio.gather(a.preflight.ensure(force=True), b.preflight.ensure())
        later = await c.preflight.ensure()

        assert one == later
        assert other.ok
        assert len(a.port.made("create", Kind.POD)) + len(b.port.made("create", Kind.POD)) == 2
        assert [call.method for call in c.port.calls] == ["get"]


async def test_an_open_node_is_refused_where_the_operator_says_so(replica) -> None:
    async with replica(node_exposure="refuse") as a:
        report = await a.made_anew()

    assert report.code == "node_reachable"
    assert any(name.startswith("kubelet ") for name in report.node_exposure)


async def test_a_target_that_must_be_closed_and_is_not_is_a_leak(replica, installed, admin) -> None:
    service = await admin.get(Kind.SERVICE, installed.namespace, installed.witness)
    target = {"name": "inside", "ip": service["spec"]["clusterIP"], "port": installed.control_port, "protocol": "tcp"}
    options = IsolationOptions.model_validate(installed.model_dump() | {"closed_targets": [target]})

    async with replica(options=options) as a:
        report = await a.made_anew()

    assert report.code == "policy_leak"
    assert "inside" in str(report.message)


async def test_an_image_that_cannot_be_pulled_is_said_long_before_the_bound(replica, installed) -> None:
    missing = installed.trusted_image.partition("@")[0] + "@sha256:" + "0" * 64
    began = time.monotonic()
    async with replica(options=installed.model_copy(update={"trusted_image": missing})) as a:
        report = await a.made_anew()

    assert report.code == "pod_start_failed"
    assert "cannot be pulled" in str(report.message)
    assert time.monotonic() - began < BOUNDS.preflight / 2


async def test_a_quota_that_is_exhausted_is_said(replica, installed, bed: Bed) -> None:
    metadata = {"name": "none", "namespace": installed.namespace}
    bed.apply(
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {"count/pods": "0"}}}
    )
    try:
        async with replica() as a:
            report = await a.made_anew()
    finally:
        bed.kubectl("-n", installed.namespace, "delete", "resourcequota", "none")

    assert report.code == "quota_exhausted"


async def test_a_cancelled_one_leaves_nothing_and_makes_nobody_wait(replica, installed, admin) -> None:
    async with replica("a") as a, replica("b") as b:
        making = asyncio.create_task(a.made_anew())
        await a.reads()
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

        began = time.monotonic()
        assert (await b.made_anew()).ok
        assert time.monotonic() - began < BOUNDS.preflight / 2


async def test_without_a_witness_it_says_so(replica, installed, bed: Bed) -> None:
    kubectl = partial(bed.kubectl, "-n", installed.namespace)
    deployment, pods = f"deployment/{installed.witness}", f"app.kubernetes.io/name={installed.witness}"
    kubectl("scale", deployment, "--replicas=0")
    kubectl("wait", "pod", "-l", pods, "--for=delete", "--timeout=50s")
    try:
        async with replica() as a:
            report = await a.made_anew()
    finally:
        kubectl("scale", deployment, "--replicas=2")
        kubectl("rollout", "status", deployment, "--timeout=50s")

    assert (report.ok, report.code) == (False, "witness_unavailable")


async def test_a_witness_whose_deny_port_nobody_serves_is_not_taken_for_enforcement(
    replica, installed, bed: Bed, mode
) -> None:
    kubectl, deployment = partial(bed.kubectl, "-n", installed.namespace), f"deployment/{installed.witness}"
    (before,) = json.loads(kubectl("get", deployment, "-o", "jsonpath={.spec.template.spec.containers[0].args}"))
    mode("off")
    configured(kubectl, deployment, json.dumps(json.loads(before) | {"denyPort": 18788}))
    try:
        async with replica() as a:
            report = await a.made_anew()
    finally:
        configured(kubectl, deployment, before)

    assert (report.ok, report.code) == (False, "witness_unserved")


def configured(kubectl: Callable[..., str], deployment: str, config: str) -> None:
    """Give the witness another configuration, and wait until it alone answers."""
    path = "/spec/template/spec/containers/0/args"
    kubectl("patch", deployment, "--type=json", "-p", json.dumps([{"op": "replace", "path": path, "value": [config]}]))
    kubectl("rollout", "status", deployment, "--timeout=50s")
