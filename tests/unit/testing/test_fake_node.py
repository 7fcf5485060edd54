"""A fake pod lives as a real one does."""

import asyncio
import json
from pathlib import Path

import pytest
from runs import Run, ended, run, state

from isolation.names import KEEPER
from launcher.cluster.errors import ExecFailed
from launcher.cluster.port import Kind
from launcher.cluster.views import PodView
from launcher.errors import PodgateError
from launcher.testing.fake_script import At, Fall, Script, Worker
from launcher.transfer.download import download, read_result, workspace_argv

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print()")
    return tmp_path


def exit_of(pod: dict, container: str) -> int:
    return state(pod, container)["terminated"]["exitCode"]


async def test_a_healthy_run_goes_from_seed_to_result(workspace: Path) -> None:
    async with run(workspace=workspace) as it:
        await it.release()
        pod = await it.until(ended("worker"))
        result = await read_result(it.cluster, it.options.namespace, it.name, 65_536)
    assert (exit_of(pod, "gate"), exit_of(pod, "worker"), pod["status"]["phase"]) == (0, 0, "Running")
    assert result.content == b'{"ok":true}'


async def test_the_workspace_comes_back_as_it_was_seeded(workspace: Path) -> None:
    taken = bytearray()
    async with run(workspace=workspace) as it:
        await it.release()
        await it.until(ended("worker"))
        command = workspace_argv(exclude=[], max_bytes=1 << 20, max_entries=100)
        async with it.cluster.exec(it.options.namespace, it.name, KEEPER, command) as stream:
            received = await download(stream, taken.extend, idle_seconds=30)
    assert received.bytes == len(taken)
    assert b"src/main.py" in taken


async def test_statuses_read_as_a_kubelets_do() -> None:
    async with run() as it:
        await it.release()
        view = PodView.of(await it.until(ended("worker")))
    assert view.phase == "Running"
    assert view.containers is not None
    assert [one.name for one in view.containers if one.running] == ["keeper"]


async def test_without_its_policy_no_proof_comes_to_stand() -> None:
    async with run(Script(enforced=False)) as it, it.follow() as (_, lines):
        seen = [await anext(lines) for _ in range(40)]
    assert {line["last"]["verdict"] for line in seen if line.get("last")} == {"open"}
    assert not any(line.get("standing") for line in seen)


async def test_a_policy_that_comes_late_is_open_first_and_stands_then() -> None:
    async with run(Script(enforced_after=5)) as it, it.follow() as (_, lines):
        async for line in lines:
            if line.get("standing"):
                break
    assert 4 < line["openUntil"] - line["firstRoundAt"] < 6


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"podUid": "another"}, 42), ({"epoch": 0}, 42), ({"seedSha256": "0" * 64}, 42), ({"startId": "0" * 32}, 41)],
)
async def test_a_marker_that_is_not_right_keeps_the_gate_closed(changes: dict, code: int) -> None:
    async with run() as it:
        await it.release(**changes)
        pod = await it.until(lambda pod: pod["status"]["phase"] == "Failed")
    assert exit_of(pod, "gate") == code
    assert "waiting" in state(pod, "worker")


async def test_a_proof_that_fell_before_the_marker_keeps_the_gate_closed() -> None:
    async with run(Script(fall=Fall(At("standing", 3)))) as it:
        receipt, start = await it.seed(), None
        async with it.follow() as (stream, lines):
            async for line in lines:
                start = line.get("startId", start)
                if line.get("everStood") and line.get("standing") is False:
                    break
            marker = {"podUid": it.pod["metadata"]["uid"], "startId": start, "epoch": 1, "seedSha256": receipt.sha256}
            await stream.send(json.dumps(marker).encode() + b"\n")
            pod = await it.until(ended("gate"))
    assert exit_of(pod, "gate") == 40
    message = json.loads(state(pod, "gate")["terminated"]["message"])
    assert message["code"] == "policy_not_enforced_before_release"


async def test_a_gate_without_a_marker_ends_at_its_bound() -> None:
    async with run() as it:
        pod = await it.until(ended("gate"), seconds=1000)
    assert exit_of(pod, "gate") == 44


async def test_a_policy_that_falls_during_the_run_kills_the_worker() -> None:
    script = Script(fall=Fall(At("worker_started", 20)), worker=Worker(seconds=None))
    async with run(script) as it:
        await it.release()
        pod = await it.until(ended("worker"))
        log = [line async for line in _log(it, "prover")]
    assert exit_of(pod, "worker") == 137
    assert any(json.loads(line).get("verdict") == "open" and "round" not in json.loads(line) for line in log)


async def test_a_cut_seed_arrives_at_the_next_try(workspace: Path) -> None:
    (workspace / "large").write_bytes(bytes(300_000))
    async with run(Script(seed_cut_after=100_000), workspace=workspace) as it:
        receipt = await it.seed()
    assert receipt.entries == 5
    assert it.node.life_of(it.name).storage.cuts == 1


async def test_a_seed_that_is_always_cut_fails_by_name(workspace: Path) -> None:
    (workspace / "large").write_bytes(bytes(300_000))
    async with run(Script(seed_cut_after=100_000, seed_cuts=99), workspace=workspace) as it:
        with pytest.raises(PodgateError, match="seed_failed"):
            await it.seed()


async def test_a_deleted_pod_goes_after_its_worker_has_ended() -> None:
    async with run(Script(worker=Worker(seconds=None, on_term=None))) as it:
        await it.release()
        await it.until(lambda pod: "running" in state(pod, "worker"))
        before = it.cluster.clock.monotonic()
        await it.cluster.delete(Kind.POD, it.options.namespace, it.name)
        await _until_gone(it)
    assert it.cluster.clock.monotonic() - before == pytest.approx(10, abs=0.1)


async def test_deleting_the_record_takes_pod_and_then_policy() -> None:
    async with run() as it:
        await it.until(lambda pod: "running" in state(pod, "gate"))
        await it.cluster.delete(Kind.CONFIG_MAP, it.options.namespace, "record")
        await _until_gone(it)
        assert await it.cluster.list(Kind.NETWORK_POLICY, it.options.namespace)
        await asyncio.sleep(1)
        assert await it.cluster.list(Kind.NETWORK_POLICY, it.options.namespace) == []


async def test_out_of_memory_and_other_ends_are_as_scripted() -> None:
    async with run(Script(worker=Worker(exit_code=137, reason="OOMKilled"))) as it:
        await it.release()
        pod = await it.until(ended("worker"))
    assert state(pod, "worker")["terminated"]["reason"] == "OOMKilled"


async def test_a_command_that_cannot_start_has_no_start_time() -> None:
    async with run(Script(worker=Worker(seconds=0, exit_code=128, reason="StartError"))) as it:
        await it.release()
        pod = await it.until(ended("worker"))
    assert state(pod, "worker")["terminated"]["startedAt"].startswith("1970")


async def test_an_image_that_cannot_be_pulled_waits_with_its_message() -> None:
    async with run(Script(worker_image_error="not found")) as it:
        await it.release()
        pod = await it.until(lambda pod: state(pod, "worker").get("waiting", {}).get("reason") == "ErrImagePull")
    assert state(pod, "worker")["waiting"]["message"] == "not found"


async def test_an_unschedulable_pod_says_so_and_is_deleted_at_once() -> None:
    async with run(Script(unschedulable=True)) as it:
        await it.until(lambda pod: bool(pod["status"].get("conditions")))
        await it.cluster.delete(Kind.POD, it.options.namespace, it.name)
        assert await it.cluster.get(Kind.POD, it.options.namespace, it.name) is None


async def test_a_prover_that_restarts_has_another_start_id() -> None:
    ids = set()
    async with run(Script(prover_restarts=At("standing", 1))) as it, it.follow() as (_, lines):
        async for line in lines:
            ids.add(line.get("startId"))
            if len(ids - {None}) == 2:
                break
        pod = await it.cluster.get(Kind.POD, it.options.namespace, it.name)
    assert pod is not None
    assert pod["status"]["initContainerStatuses"][0]["restartCount"] == 1


async def test_an_eviction_leaves_a_failed_pod_that_says_so() -> None:
    async with run(Script(evicted=At("worker_started", 2), worker=Worker(seconds=None))) as it:
        await it.release()
        pod = await it.until(lambda pod: pod["status"]["phase"] == "Failed")
    assert pod["status"]["reason"] == "Evicted"
    assert exit_of(pod, "worker") == 137


async def test_a_lost_node_takes_the_pod_with_it() -> None:
    async with run(Script(vanishes=At("worker_started", 2), worker=Worker(seconds=None))) as it:
        await it.release()
        await _until_gone(it)


async def test_the_pods_own_deadline_ends_it() -> None:
    async with run(Script(worker=Worker(seconds=None))) as it:
        await it.release()
        deadline = it.pod["spec"]["activeDeadlineSeconds"]
        pod = await it.until(lambda pod: pod["status"]["phase"] == "Failed", seconds=2 * deadline)
    assert pod["status"]["reason"] == "DeadlineExceeded"


async def test_an_exec_into_an_ended_gate_never_starts() -> None:
    async with run() as it:
        await it.release()
        await it.until(ended("gate"))
        with pytest.raises(ExecFailed) as failed:
            async with it.cluster.exec(it.options.namespace, it.name, "gate", ["true"]) as stream:
                await stream.receive()
    assert not failed.value.started


async def test_the_workers_output_can_be_followed_to_its_end() -> None:
    async with run(Script(worker=Worker(output=(b"one", b"two")))) as it:
        await it.release()
        await it.until(lambda pod: "running" in state(pod, "worker"))
        assert [line async for line in _log(it, "worker", follow=True)] == [b"one\n", b"two\n"]


async def _log(it: Run, container: str, *, follow: bool = False):
    async with it.cluster.log(it.options.namespace, it.name, container, follow=follow) as pieces:
        async for piece in pieces:
            yield piece


async def _until_gone(it: Run) -> None:
    where = (Kind.POD, it.options.namespace, it.name)
    async with asyncio.timeout(600), it.cluster.watch(*where) as events:
        if await it.cluster.get(*where) is not None:
            assert "DELETED" in [event.type async for event in _to_the_deletion(events)]


async def _to_the_deletion(events):
    async for event in events:
        yield event
        if event.type == "DELETED":
            return
