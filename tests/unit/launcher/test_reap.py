from datetime import timedelta

import pytest
from stage_cluster import MANAGED, NAME, NAMESPACE, NOW, TOKEN, StageCluster, StoredOnly, run_in, store_of

from launcher.cluster.errors import Refused, Unreachable
from launcher.cluster.port import Kind
from launcher.decide.recovery import abandoned_result
from launcher.decide.retention import Retention
from launcher.reap import Reaper
from launcher.recordport import NAMING
from launcher.stop import Stopper
from records.codec import to_object
from records.model import Phase
from records.transitions import Ended, StopRequested

pytestmark = pytest.mark.anyio

RETENTION = Retention(
    tombstone_kept=timedelta(days=7),
    orphan_age=timedelta(seconds=900),
    collect_window=timedelta(seconds=3600),
    abandoned_after=timedelta(seconds=60),
)


@pytest.fixture
def cluster():
    return StageCluster()


@pytest.fixture
def store(cluster):
    return store_of(cluster)


@pytest.fixture
def observer(store):
    return StoredOnly(store)


@pytest.fixture
def reaper(cluster, store, observer):
    stopper = Stopper(cluster, store, observer, namespace=NAMESPACE)
    return Reaper(cluster, store, observer, stopper, namespace=NAMESPACE, retention=RETENTION)


def whys(lines):
    return {(line.kind, line.why) for line in lines}


@pytest.mark.parametrize("phase", [Phase.PROVISIONING, Phase.RELEASING, Phase.ACTIVE])
async def test_a_live_run_is_never_touched(cluster, store, reaper, phase):
    stored = await run_in(store, phase)
    cluster.pod(uid="pod-1", record_uid=stored.uid)
    cluster.policy(owner_uid="pod-1")
    cluster.secret()
    report = await reaper.reap()
    assert (report.deleted, report.settled, len(report.kept)) == ([], [], 4)


async def test_a_live_run_whose_list_is_incomplete_keeps_what_it_has_however_old(cluster, store, reaper):
    await run_in(store, Phase.ACTIVE, now=NOW + timedelta(days=1))
    cluster.policy()
    cluster.later(days=1)
    assert (await reaper.reap()).deleted == []


@pytest.mark.parametrize(("days", "gone"), [(6, False), (7, True)])
async def test_a_tombstone_is_deleted_after_its_retention(cluster, store, reaper, days, gone):
    await run_in(store, Phase.REMOVED)
    cluster.later(days=days)
    await reaper.reap()
    assert cluster.has(Kind.CONFIG_MAP) is not gone


async def test_a_run_that_nobody_removed_does_not_stay_for_ever(cluster, store, reaper):
    await run_in(store, Phase.SUCCEEDED)
    cluster.later(days=7)
    await reaper.reap()
    assert not cluster.has(Kind.CONFIG_MAP)


@pytest.mark.parametrize(("seconds", "gone"), [(3659, False), (3660, True)])
async def test_the_pod_of_a_terminal_run_goes_after_the_collect_window(cluster, store, reaper, seconds, gone):
    stored = await run_in(store, Phase.SUCCEEDED)
    cluster.pod(uid="pod-1", record_uid=stored.uid)
    cluster.later(seconds=seconds)
    await reaper.reap()
    assert cluster.has(Kind.POD) is not gone


async def test_a_pod_made_after_the_removal_goes_at_once(cluster, store, reaper):
    stored = await run_in(store, Phase.REMOVED)
    cluster.pod(record_uid=stored.uid)
    assert whys((await reaper.reap()).deleted) == {("Pod", "its run was removed")}


async def test_a_pod_of_an_earlier_record_of_the_name_has_the_grace_age(cluster, store, reaper):
    await run_in(store, Phase.REMOVED)
    cluster.pod(record_uid="an-earlier-record")
    assert whys((await reaper.reap()).deleted) == set()
    cluster.later(seconds=900)
    assert whys((await reaper.reap()).deleted) == {("Pod", "its record is missing")}


async def test_a_policy_stays_while_its_pod_is_being_deleted(cluster, store, reaper):
    stored = await run_in(store, Phase.REMOVED)
    cluster.pod(record_uid=stored.uid)
    cluster.policy()
    cluster.secret()
    cluster.later(days=8)
    cluster.lingering = True
    await reaper.reap()
    await reaper.reap()
    assert all(cluster.has(kind) for kind in (Kind.POD, Kind.NETWORK_POLICY, Kind.CONFIG_MAP))


async def test_what_a_pod_left_goes_in_the_pass_after_it(cluster, store, reaper):
    stored = await run_in(store, Phase.REMOVED)
    cluster.pod(record_uid=stored.uid)
    cluster.policy()
    cluster.secret()
    cluster.later(days=8)
    await reaper.reap()
    assert {kind for kind, _, _ in cluster.deleted} == {Kind.POD}
    await reaper.reap()
    assert cluster.objects == {}


@pytest.mark.parametrize(("seconds", "left"), [(899, 3), (900, 2)])
async def test_objects_without_a_record_go_after_the_grace_age(cluster, reaper, seconds, left):
    cluster.pod(record_uid="gone")
    cluster.policy()
    cluster.secret()
    cluster.later(seconds=seconds)
    await reaper.reap()
    assert len(cluster.objects) == left


async def test_a_record_that_appears_after_the_list_protects_its_pod(cluster, reaper):
    pod = cluster.pod(record_uid="uid-of-record")
    cluster.later(seconds=900)
    body = {"metadata": {"name": NAME, "uid": "uid-of-record"}}

    def arrive():
        cluster.before["get", Kind.CONFIG_MAP].clear()
        record = to_object(_fresh(cluster), NAMING)
        cluster.put(Kind.CONFIG_MAP, record | {"metadata": record["metadata"] | body["metadata"]})

    cluster.before["get", Kind.POD].append(arrive)
    assert (await reaper.reap()).deleted == []
    assert cluster.objects[Kind.POD, NAME]["metadata"]["uid"] == pod["metadata"]["uid"]


def _fresh(cluster):
    from stage_cluster import fresh  # noqa: PLC0415 - beside its only use

    return fresh(now=cluster.time)


async def test_an_unreadable_record_protects_all_of_its_run(cluster, store, reaper):
    await run_in(store, Phase.REMOVED)
    cluster.objects[Kind.CONFIG_MAP, NAME]["data"] = {"record.json": "{}"}
    cluster.policy()
    cluster.later(days=30)
    report = await reaper.reap()
    assert report.deleted == []
    assert all("record_invalid" in line.why for line in report.kept)


async def test_a_launch_without_a_holder_is_looked_at(cluster, store, observer, reaper):
    await run_in(store, Phase.PROVISIONING)
    cluster.later(seconds=90)
    observer.sees = Ended(Phase.FAILED, abandoned_result("nobody came"), cluster.time)
    report = await reaper.reap()
    assert whys(report.settled) == {("Run", "its launch has no holder; it is failed now")}
    assert (await store.read(TOKEN)).record.result.reason == "launch_abandoned"


async def test_a_launch_with_a_holder_is_not_looked_at(cluster, store, observer, reaper):
    await run_in(store, Phase.PROVISIONING)
    cluster.later(seconds=89)
    await reaper.reap()
    assert observer.looked == []


async def test_a_run_beyond_its_deadline_that_nobody_observes_is_looked_at(cluster, store, observer, reaper):
    await run_in(store, Phase.ACTIVE)
    cluster.later(seconds=120)
    await reaper.reap()
    assert observer.looked == [TOKEN]


async def test_a_stop_that_crashed_half_way_is_finished(cluster, store, reaper):
    stored = await run_in(store, Phase.ACTIVE)
    cluster.pod(uid="pod-1", record_uid=stored.uid)
    await store.update(TOKEN, lambda _: StopRequested(NOW))
    cluster.later(seconds=60)
    await reaper.reap()
    assert ((await store.read(TOKEN)).record.phase, cluster.has(Kind.POD)) == (Phase.STOPPED, False)


@pytest.mark.parametrize("name", ["podgate-canary-0a1b2c3d-open", "podgate-canary-0a1b2c3d-policed"])
async def test_an_old_canary_goes_first_its_pod_then_its_policy(cluster, reaper, name):
    cluster.pod(name=name)
    cluster.policy(name=name)
    cluster.later(seconds=900)
    await reaper.reap()
    assert (cluster.has(Kind.POD, name), cluster.has(Kind.NETWORK_POLICY, name)) == (False, True)
    await reaper.reap()
    assert cluster.objects == {}


async def test_a_young_canary_is_kept(cluster, reaper):
    cluster.pod(name="podgate-canary-0a1b2c3d-open")
    cluster.later(seconds=899)
    assert (await reaper.reap()).deleted == []


@pytest.mark.parametrize(("written", "gone"), [("2026-03-01T12:00:00Z", True), ("2026-03-01T12:10:00Z", False)])
async def test_a_preflights_result_counts_from_its_last_write(cluster, reaper, written, gone):
    fields = [{"time": written}]
    cluster.put(
        Kind.CONFIG_MAP, {"metadata": {"name": "podgate-preflight-ab12", "labels": MANAGED, "managedFields": fields}}
    )
    cluster.later(seconds=900)
    await reaper.reap()
    assert cluster.has(Kind.CONFIG_MAP, "podgate-preflight-ab12") is not gone


@pytest.mark.parametrize("name", ["podgate-default-deny", "podgate-egress-0123456789abcdef", "podgate-witness"])
async def test_what_is_not_a_runs_is_none_of_the_reapers_business(cluster, reaper, name):
    cluster.policy(name=name)
    cluster.later(days=365)
    report = await reaper.reap()
    assert (report.deleted, report.kept) == ([], [])


async def test_an_object_replaced_under_the_deletion_is_kept(cluster, reaper):
    cluster.pod(record_uid="gone")
    cluster.later(seconds=900)
    cluster.before["delete", Kind.POD].append(lambda: cluster.pod(uid="another"))
    report = await reaper.reap()
    assert whys(report.kept) == {("Pod", "another object has its name now")}
    assert cluster.has(Kind.POD)


async def test_a_failure_on_one_object_is_reported_and_stops_nothing(cluster, reaper):
    def refuse():
        raise Refused("delete pods", status=403, reason="Forbidden")

    cluster.pod(record_uid="gone")
    cluster.policy(name="podgate-canary-0a1b2c3d-open")
    cluster.later(seconds=900)
    cluster.before["delete", Kind.POD].append(refuse)
    report = await reaper.reap()
    assert [line.why.split(":")[0] for line in report.failed] == ["access_denied"]
    assert [line.kind for line in report.deleted] == ["NetworkPolicy"]


async def test_half_a_list_deletes_nothing(cluster, reaper):
    def cut():
        raise Unreachable("list")

    cluster.pod(record_uid="gone")
    cluster.later(seconds=900)
    cluster.before["list", Kind.CONFIG_MAP].append(cut)
    with pytest.raises(Unreachable):
        await reaper.reap()
    assert cluster.has(Kind.POD)


async def test_a_dry_run_tells_and_changes_nothing(cluster, reaper):
    cluster.pod(record_uid="gone")
    cluster.later(seconds=900)
    report = await reaper.reap(dry_run=True)
    assert [line.name for line in report.deleted] == [NAME]
    assert cluster.has(Kind.POD)


async def test_the_report_is_json(cluster, reaper):
    cluster.pod(record_uid="gone")
    line = {"kind": "Pod", "name": NAME, "why": "its record is missing, not for long enough"}
    assert (await reaper.reap()).as_json() == {"deleted": [], "settled": [], "kept": [line], "failed": []}
