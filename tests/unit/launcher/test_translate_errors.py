import pytest
from stage_cluster import NAMESPACE, TOKEN, StageCluster, fresh, run_in, store_of

from launcher.cluster.errors import Conflict, Misconfigured, NotFound, Refused, Throttled, Unreachable
from launcher.cluster.port import Kind
from launcher.errors import PodgateError
from launcher.recordport import ClusterConfigMaps
from launcher.translate import translated
from records.errors import (
    IllegalTransition,
    OutcomeUnknown,
    RecordConflict,
    RecordInvalid,
    RecordMissing,
    RecordTooNew,
    Stale,
)
from records.model import Phase
from records.transitions import StopRequested

FORBIDDEN = Refused("create pods", status=403, reason="Forbidden")
PSA = Refused("create pods", status=403, reason="Forbidden", message='violates PodSecurity "restricted"')
QUOTA = Refused("create pods", status=403, reason="Forbidden", message="exceeded quota", quota=True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecordInvalid("n", "p"), "record_invalid"),
        (RecordTooNew("n", 2), "record_too_new"),
        (RecordMissing("t"), "job_not_found"),
        (RecordConflict("t", 8), "record_conflict"),
        (OutcomeUnknown("n"), "cluster_unreachable"),
        (Stale("n"), "record_conflict"),
        (IllegalTransition("stopped", "ReleaseBegun", "w"), "launch_superseded"),
        (IllegalTransition("removed", "ResultFilled", "w"), "record_conflict"),
        (FORBIDDEN, "access_denied"),
        (PSA, "manifest_refused"),
        (Refused("create pods", status=422, reason="Invalid"), "manifest_refused"),
        (QUOTA, "quota_exhausted"),
        (NotFound("create"), "access_denied"),
        (Conflict("delete"), "record_conflict"),
        (Throttled("get"), "cluster_unreachable"),
        (Unreachable("get"), "cluster_unreachable"),
        (Misconfigured("connect"), "setting_invalid"),
    ],
)
def test_every_inner_error_has_a_stable_code_and_stays_the_cause(error, code):
    with pytest.raises(PodgateError) as caught, translated("stop"):
        raise error
    assert (caught.value.code, caught.value.stage, caught.value.__cause__) == (code, "stop", error)


def test_errors_that_already_have_a_code_pass():
    with pytest.raises(PodgateError, match="job_removed"), translated():
        raise PodgateError("job_removed", "it was removed")


@pytest.fixture
def cluster():
    return StageCluster()


@pytest.mark.anyio
@pytest.mark.parametrize("error", [Conflict("create"), Unreachable("create")])
async def test_a_create_that_met_a_quota_race_or_lost_its_answer_is_tried_again(cluster, error):
    def strike():
        raise error

    cluster.before["create", Kind.CONFIG_MAP].append(strike)
    assert (await store_of(cluster).create(fresh())).record == fresh()


@pytest.mark.anyio
async def test_a_replace_that_lost_its_answer_is_read_and_decided_again(cluster):
    def strike():
        raise Unreachable("replace")

    store = store_of(cluster)
    stored = await run_in(store, Phase.ACTIVE)
    cluster.before["replace", Kind.CONFIG_MAP].append(strike)
    stopping = await store.update(TOKEN, lambda _: StopRequested(cluster.now()), known=stored)
    assert stopping.record.stop is not None


@pytest.mark.anyio
async def test_a_refusal_reaches_the_caller_as_it_is(cluster):
    def strike():
        raise FORBIDDEN

    cluster.before["create", Kind.CONFIG_MAP].append(strike)
    with pytest.raises(Refused):
        await store_of(cluster).create(fresh())


@pytest.mark.anyio
async def test_a_config_map_is_deleted_only_under_its_uid(cluster):
    port = ClusterConfigMaps(cluster, NAMESPACE)
    stored = await run_in(store_of(cluster), Phase.REMOVED)
    name = f"podgate-run-{TOKEN}"
    with pytest.raises(Stale):
        await port.delete(name, uid="another")
    assert await port.delete(name, uid=stored.uid) is True
    assert await port.delete(name, uid=stored.uid) is False
