"""Which pod a workspace is brought back from."""

import asyncio

import pytest
from watched_run import EPOCH, TOKEN, WatchedRun, ended

from launcher.app import build_launcher
from launcher.cluster.retrying import RetryingCluster
from launcher.contract import JobHandle
from launcher.errors import PodgateError
from launcher.testing.virtual_time import VirtualLoop
from records.model import Phase

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


@pytest.fixture
def run():
    return WatchedRun()


async def refusal(run, destination):
    clock = run.cluster.clock
    launcher = build_launcher(
        run.settings,
        RetryingCluster(run.port, sleep=asyncio.sleep, monotonic=clock.monotonic),
        sleep=asyncio.sleep,
        monotonic=clock.monotonic,
    )
    with pytest.raises(PodgateError) as refused:
        await launcher.materialize_workspace(JobHandle("kubernetes", f"{run.namespace}/{TOKEN}"), destination)
    return refused.value.code


async def test_a_workspace_whose_pod_is_gone_is_said_to_be_gone(run, tmp_path):
    await run.recorded(Phase.SUCCEEDED)
    run.without_pod()
    assert await refusal(run, tmp_path / "to") == "collect_failed"


async def test_a_pod_of_that_name_that_is_another_s_is_not_asked(run, tmp_path):
    await run.recorded(Phase.SUCCEEDED)
    run.without_pod()
    run.pod(record_uid="another")
    run.shows(ended(EPOCH, EPOCH))
    assert await refusal(run, tmp_path / "to") == "collect_failed"
    assert (run.port.made("exec"), list(tmp_path.iterdir())) == ([], [])


@pytest.mark.parametrize(("phase", "code"), [(Phase.ACTIVE, "job_not_terminal"), (Phase.FAILED, "job_not_succeeded")])
async def test_only_a_succeeded_run_has_a_workspace(run, tmp_path, phase, code):
    await run.recorded(phase)
    assert await refusal(run, tmp_path / "to") == code
