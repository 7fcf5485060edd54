"""Whole courses on a fake node, watched by an observer that looks every two seconds, as a poller would."""

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta

import isolation_samples as samples
import pytest

from isolation import names
from isolation.objects import Owner, build_pod, build_policy
from launcher.cluster.port import Kind
from launcher.observe import Observer
from launcher.recordport import record_store
from launcher.settings import Settings
from launcher.stop import Stopper
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_node import FakeNode
from launcher.testing.fake_script import At, Fall, Script, Worker
from launcher.testing.virtual_time import VirtualLoop
from records.birth import opened
from records.model import Evidence, Phase, PodRef
from records.transitions import PodNamed, ReleaseBegun, StopRequested

pytestmark = pytest.mark.anyio

TOKEN = names.token("run-1")
NAME = names.run_name(TOKEN)
LOOK_EVERY = 2.0
FOR_EVER = Worker(seconds=None)


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


class Course:
    """One run on a fake node, released by hand; what follows is the node's script and the observer's business."""

    def __init__(self, node, **options):
        self.node, self.cluster = node, node.cluster
        self.options = samples.options(**options)
        self.spec = samples.spec(command=["true"], timeoutSeconds=60)
        self.store = record_store(self.cluster, self.options.namespace, sleep=asyncio.sleep)
        self.observer = Observer(
            self.cluster,
            self.store,
            Settings(isolation=self.options),
            namespace=self.options.namespace,
            sleep=asyncio.sleep,
        )

    async def begun(self):
        """Record, pod and policy; the record names the pod."""
        now = self.cluster.now()
        stored = await self.store.create(
            opened(
                token=TOKEN,
                run_id="run-1",
                spec_hash="spec",
                manifest_digest=None,
                holder="replica/1",
                now=now,
                lease_until=now + timedelta(seconds=30),
                provision_by=now + timedelta(seconds=300),
                disk_mb=64,
                timeout_seconds=60,
            )
        )
        owner = Owner("v1", "ConfigMap", NAME, stored.uid)
        sent = build_pod(self.spec, self.options, witness_ips=samples.WITNESS_IPS, record=owner, secret=None)
        pod = await self.cluster.create(Kind.POD, self.options.namespace, sent)
        self.pod = PodRef(uid=pod["metadata"]["uid"], name=NAME)
        policy = build_policy(self.spec, self.options, pod=Owner("v1", "Pod", NAME, self.pod.uid))
        await self.cluster.create(Kind.NETWORK_POLICY, self.options.namespace, policy)
        await self.store.update(TOKEN, lambda _: PodNamed(1, self.pod))

    async def released(self):
        """Go on until the marker is there, as a launcher does once the proof stands."""
        await self.begun()
        await asyncio.sleep(5)
        life = self.node.life_of(NAME)
        event = ReleaseBegun(1, self.pod, Evidence(start_id=life.prover.start_id), self.cluster.now())
        await self.store.update(TOKEN, lambda _: event)
        life.storage.seed = {"sha256": "seed"}
        life.take_marker({"podUid": self.pod.uid, "startId": life.prover.start_id, "epoch": 1, "seedSha256": "seed"})

    async def outcome(self, seconds=1000):
        """Look every two seconds until the run has ended, and return its record."""
        async with asyncio.timeout(seconds):
            while True:
                record = (await self.observer.observe(TOKEN)).record
                if record.phase.terminal:
                    return record
                await asyncio.sleep(LOOK_EVERY)

    def has_pod(self):
        return self.cluster.store.get((Kind.POD, self.options.namespace, NAME)) is not None


@asynccontextmanager
async def course(script=None, **options):
    cluster = FakeCluster(namespaces=(samples.options().namespace,))
    async with FakeNode(cluster, script or Script()) as node:
        it = Course(node, **options)
        await it.released()
        yield it


async def test_a_healthy_run_succeeds_isolated_to_its_end():
    async with course() as it:
        record = await it.outcome()
        assert it.has_pod()
    assert (record.phase, record.result.exit_code, record.evidence.end) == (Phase.SUCCEEDED, 0, "standing")
    assert [entry.phase for entry in record.timeline] == ["provisioning", "releasing", "active", "succeeded"]
    assert set(record.evidence.image_ids) == {"prover", "gate", "keeper", "worker"}
    assert record.evidence.gate_exit == 0


@pytest.mark.parametrize(
    ("worker", "reason", "code"),
    [
        (Worker(exit_code=3), "worker_failed", 3),
        (Worker(exit_code=0, reason="OOMKilled"), "oom_killed", 137),
        (Worker(seconds=0, exit_code=128, reason="StartError"), "worker_start_failed", 128),
    ],
)
async def test_a_worker_that_fails_has_failed(worker, reason, code):
    async with course(Script(worker=worker)) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason, record.result.exit_code) == (Phase.FAILED, reason, code)


@pytest.mark.parametrize("verdict", ["open", "intercepted", "leak"])
@pytest.mark.parametrize("on_term", [0, 143, None])
async def test_isolation_that_falls_in_mid_run_is_lost_whatever_the_worker_exits_with(verdict, on_term):
    script = Script(fall=Fall(At("worker_started", 20), verdict), worker=Worker(seconds=None, on_term=on_term))
    async with course(script) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason, record.evidence.end) == (Phase.FAILED, "isolation_lost", verdict)
    assert record.result.exit_code != 0


async def test_isolation_that_falls_after_the_workers_end_changes_nothing():
    script = Script(fall=Fall(At("worker_ended", 3)), worker=Worker(seconds=20))
    async with course(script) as it:
        await asyncio.sleep(60)
        record = await it.outcome()
    assert (record.phase, record.evidence.end) == (Phase.SUCCEEDED, "standing")


async def test_a_prover_that_is_blind_for_too_long_leaves_the_run_unproven():
    script = Script(fall=Fall(At("worker_started", 5), "unavailable"), worker=FOR_EVER)
    async with course(script, blind_after_seconds=20) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason, record.evidence.end) == (Phase.FAILED, "isolation_unproven", "blind")


async def test_a_witness_that_is_away_ends_no_run_and_is_in_evidence():
    script = Script(fall=Fall(At("worker_started", 5), "unavailable"), worker=Worker(seconds=30))
    async with course(script) as it:
        record = await it.outcome()
    assert (record.phase, record.evidence.end) == (Phase.SUCCEEDED, "blind")
    assert record.evidence.blind_since is not None


async def test_a_worker_that_does_not_end_is_timed_out_at_its_deadline():
    async with course(Script(worker=FOR_EVER)) as it:
        record = await it.outcome()
        await asyncio.sleep(15)
        assert not it.has_pod()
    assert (record.phase, record.result.reason, record.result.exit_code) == (Phase.FAILED, "timed_out", 124)
    assert timedelta() <= record.ended_at - record.deadline_at <= timedelta(seconds=LOOK_EVERY)


async def test_without_an_observer_the_kubelet_ends_a_worker_and_a_later_look_says_timed_out():
    async with course(Script(worker=FOR_EVER)) as it:
        await asyncio.sleep(300)
        record = await it.outcome()
    assert (record.phase, record.result.reason) == (Phase.FAILED, "timed_out")


async def test_an_evicted_run_is_lost():
    async with course(Script(evicted=At("worker_started", 10), worker=FOR_EVER)) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason, record.result.retriable) == (Phase.LOST, "evicted", True)
    assert record.evidence.end == "standing"


async def test_an_eviction_after_the_workers_end_takes_nothing_from_its_success():
    async with course(Script(evicted=At("worker_ended", 30))) as it:
        await asyncio.sleep(60)
        record = await it.outcome()
    assert record.phase is Phase.SUCCEEDED


async def test_a_node_that_is_gone_loses_the_run_and_its_isolation_is_not_known():
    async with course(Script(vanishes=At("worker_started", 10), worker=FOR_EVER)) as it:
        record = await it.outcome()
    assert (record.phase, record.result.artifacts, record.evidence.end) == (Phase.LOST, "expired", "unknown")


async def test_a_keeper_that_dies_ends_the_run():
    async with course(Script(keeper_dies=At("worker_started", 10), worker=FOR_EVER)) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason) == (Phase.FAILED, "keeper_lost")


@pytest.mark.parametrize("on_term", [0, 143, None])
async def test_a_pod_that_somebody_deletes_is_lost_however_the_worker_takes_it(on_term):
    async with course(Script(worker=Worker(seconds=None, on_term=on_term))) as it:
        await asyncio.sleep(10)
        await it.observer.observe(TOKEN)
        await it.cluster.delete(Kind.POD, it.options.namespace, NAME)
        record = await it.outcome()
    assert (record.phase, record.result.reason) == (Phase.LOST, "pod_deleted")


async def test_a_stop_whose_replica_died_is_finished_by_the_next_look():
    async with course(Script(worker=FOR_EVER)) as it:
        await asyncio.sleep(10)
        await it.observer.observe(TOKEN)
        await it.store.update(TOKEN, lambda _: StopRequested(it.cluster.now(), "enough"))
        record = await it.outcome()
        await asyncio.sleep(15)
        assert not it.has_pod()
    assert (record.phase, record.result.exit_code, record.result.message) == (Phase.STOPPED, 143, "enough")


async def test_a_stop_keeps_what_the_prover_said_up_to_it():
    async with course(Script(worker=FOR_EVER)) as it:
        await asyncio.sleep(10)
        stopper = Stopper(it.cluster, it.store, it.observer, namespace=it.options.namespace)
        record = (await stopper.stop(TOKEN, "enough")).record
        await asyncio.sleep(15)
        assert not it.has_pod()
    assert (record.phase, record.result.message, record.evidence.end) == (Phase.STOPPED, "enough", "standing")


async def test_a_stop_of_a_run_whose_isolation_was_lost_says_so():
    script = Script(fall=Fall(At("worker_started", 5)), worker=Worker(seconds=None, on_term=None))
    async with course(script) as it:
        await it.node.life_of(NAME)._lost.wait()
        stopper = Stopper(it.cluster, it.store, it.observer, namespace=it.options.namespace)
        record = (await stopper.stop(TOKEN)).record
    assert (record.phase, record.result.reason) == (Phase.FAILED, "isolation_lost")


async def test_another_image_than_the_pinned_one_ends_the_run():
    other = "registry.test/other@sha256:" + "c" * 64
    async with course(Script(image_ids={"worker": other}, worker=FOR_EVER)) as it:
        record = await it.outcome()
        await asyncio.sleep(15)
        assert not it.has_pod()
    assert (record.phase, record.result.reason) == (Phase.FAILED, "image_mismatch")


async def test_a_workers_image_that_never_comes_is_given_up_at_the_provision_bound():
    async with course(Script(worker_image_error="manifest unknown")) as it:
        await asyncio.sleep(20)
        _, message = await it.observer.look(TOKEN)
        record = await it.outcome()
    assert "manifest unknown" in message
    assert (record.phase, record.result.reason) == (Phase.FAILED, "pod_start_failed")
    assert "manifest unknown" in record.result.message
    assert record.ended_at >= record.provision_by


async def test_a_gate_that_hangs_ends_at_its_own_bound_without_a_launcher():
    async with course(Script(gate_hangs=True)) as it:
        record = await it.outcome()
    assert (record.phase, record.result.reason) == (Phase.FAILED, "launch_abandoned")


async def test_two_observers_agree_and_write_one_outcome():
    async with course(Script(worker=Worker(exit_code=3))) as it:
        first, second = await asyncio.gather(it.outcome(), it.outcome())
    assert first == second
    assert first.result.reason == "worker_failed"
