"""A bare pod's way to its process beside a proven launch's, in turn. Each process tells its own start by its own clock.

On a cluster of one machine the node and this program share one clock; elsewhere the difference of the two is in both
figures alike, and the difference between the figures is free of it.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from benchmarks.pods import POLL, WAIT_SECONDS, container, new_name, pod
from isolation.options import IsolationOptions
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import AdminPort
from launcher.contract import JobHandle
from launcher.kubernetes import KubernetesJobLauncher
from launcher.progress import ProgressEvent

CLOCK = ("python3", "-I", "-S", "-c", "import time; print(time.time(), flush=True); time.sleep(1)")
"""What both processes run: the same interpreter, the same image."""

RUN_SECONDS = 60
"""Bounds the worker, which sleeps for one second."""

LAUNCH_SECONDS = 400.0
"""Bounds a launch with its run: the launcher itself gives up after 300 s unless the settings say otherwise."""


@dataclass(frozen=True)
class Launched:
    """One proven launch: seconds from the call to the worker's process, to each stage, and of the proof itself."""

    up: float
    stages: dict[str, float]
    proof_after_first_good: float


async def bare(cluster: AdminPort, options: IsolationOptions, image: str) -> float:
    """Create a pod of one container; return the seconds from the request to its process."""
    name = new_name()
    amounts = {"cpu": "500m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
    begun = time.time()
    async with pod(cluster, options, name, containers=[container("bare", image, CLOCK, amounts)]):
        return await _first_number(cluster, options.namespace, name) - begun


async def proven(launcher: KubernetesJobLauncher, image: str) -> Launched:
    """Launch a run of the same command, with the preflight's result at hand; remove it again."""
    await _preflighted(launcher)
    run_id = f"bench-{secrets.token_hex(6)}"
    handle = launcher.handle_of(run_id)
    stages: dict[str, float] = {}

    def note(event: ProgressEvent) -> None:
        stages[event.stage] = event.at_seconds

    try:
        async with asyncio.timeout(LAUNCH_SECONDS):
            begun = time.time()
            await launcher.launch(_spec(run_id, image), note)
            up = await _worker_said(launcher, handle) - begun
            return Launched(up, stages, await _proof(launcher, handle))
    finally:
        await launcher.stop(handle)
        await launcher.remove(handle)


def _spec(run_id: str, image: str) -> dict[str, object]:
    return {
        "runId": run_id,
        "image": image,
        "command": list(CLOCK),
        "cpus": 0.5,
        "memoryMb": 128,
        "diskMb": 64,
        "timeoutSeconds": RUN_SECONDS,
    }


async def _preflighted(launcher: KubernetesJobLauncher) -> None:
    """Renew the shared result when it is over, so that no launch pays for it."""
    report = await launcher.preflight()
    if not report.ok:
        raise RuntimeError(f"the preflight failed: {report.code} {report.message}")


async def _worker_said(launcher: KubernetesJobLauncher, handle: JobHandle) -> float:
    last = [status async for status in launcher.watch(handle)][-1]
    if last.state != "succeeded":
        raise RuntimeError(f"the benchmark's run {last.state}: {last.reason} {last.message}")
    said = b"".join([piece async for piece in launcher.logs(handle)])
    return float(said.split()[0])


async def _proof(launcher: KubernetesJobLauncher, handle: JobHandle) -> float:
    rounds = (await launcher.record(handle)).evidence.rounds
    if rounds is None or rounds.standing_since is None or rounds.first_good_at is None:
        raise RuntimeError("a run was released, and its record does not say since when its proof stood")
    return rounds.standing_since - rounds.first_good_at


async def _first_number(cluster: AdminPort, namespace: str, name: str) -> float:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                async with cluster.log(namespace, name, "bare") as pieces:
                    said = b"".join([piece async for piece in pieces])
            except ClusterError:  # its container is not there yet
                said = b""
            if said.endswith(b"\n"):
                return float(said.split()[0])
            await asyncio.sleep(POLL)


async def in_turn(
    cluster: AdminPort, launcher: KubernetesJobLauncher, options: IsolationOptions, image: str, count: int
) -> AsyncIterator[tuple[float, Launched]]:
    """Yield ``count`` pairs, bare and proven, one after the other. One bare pod before them pulls the image."""
    await _preflighted(launcher)
    await bare(cluster, options, image)
    for _ in range(count):
        yield await bare(cluster, options, image), await proven(launcher, image)
