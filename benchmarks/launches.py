"""A bare pod's way to its process beside a proven launch's, in turn. Each process tells its own start by its own clock.

On the test bed the node and this program share one clock; elsewhere the difference of both is in both figures alike.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from isolation.objects.container import confinement
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.kubernetes import KubernetesJobLauncher
from launcher.progress import ProgressEvent

CLOCK = ("python3", "-I", "-S", "-c", "import time; print(time.time(), flush=True); time.sleep(1)")
"""What both processes run: the same interpreter, the same image."""

START_SECONDS = 120.0
"""A process that has not come up by then never will."""

POLL = 0.25


@dataclass
class Launched:
    """One proven launch: seconds from the call to the worker's process, to each stage, and of the proof itself."""

    up: float
    stages: dict[str, float] = field(default_factory=dict)
    proof_after_first_good: float | None = None


async def bare(cluster: AdminPort, namespace: str, image: str) -> float:
    """Create a pod of one container; return the seconds from the request to its process."""
    name = f"bench-{secrets.token_hex(4)}"
    begun = time.time()
    pod = await cluster.create(Kind.POD, namespace, _pod(name, namespace, image))
    try:
        return await _first_number(cluster, namespace, name, "bare") - begun
    finally:
        await _gone(cluster, namespace, pod)


async def proven(launcher: KubernetesJobLauncher, image: str) -> Launched:
    """Launch a run of the same command; its preflight is expected to be still valid."""
    launched = Launched(0.0)
    begun = time.time()

    def note(event: ProgressEvent) -> None:
        launched.stages[event.stage] = event.at_seconds

    spec = {
        "runId": f"bench-{secrets.token_hex(6)}",
        "image": image,
        "command": list(CLOCK),
        "cpus": 0.5,
        "memoryMb": 128,
        "diskMb": 64,
    }
    handle = await launcher.launch(spec, note)
    try:
        last = [status async for status in launcher.watch(handle)][-1]
        if last.state != "succeeded":
            raise RuntimeError(f"the benchmark's run {last.state}: {last.reason} {last.message}")
        said = b"".join([piece async for piece in launcher.logs(handle)])
        launched.up = float(said.split()[0]) - begun
        rounds = (await launcher.record(handle)).evidence.rounds
        if rounds is not None and rounds.standing_since is not None and rounds.first_good_at is not None:
            launched.proof_after_first_good = rounds.standing_since - rounds.first_good_at
    finally:
        await launcher.stop(handle)
        await launcher.remove(handle)
    return launched


async def _first_number(cluster: AdminPort, namespace: str, name: str, container: str) -> float:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                async with cluster.log(namespace, name, container) as pieces:
                    said = b"".join([piece async for piece in pieces])
            except ClusterError:
                said = b""
            if said.strip():
                return float(said.split()[0])
            await asyncio.sleep(POLL)


async def _gone(cluster: AdminPort, namespace: str, pod: Json) -> None:
    """Two runs in turn must not share the machine, so the next begins when this one has left it."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    await cluster.delete(Kind.POD, namespace, name, uid=uid, grace_seconds=1)
    async with asyncio.timeout(START_SECONDS):
        while await cluster.get(Kind.POD, namespace, name) is not None:
            await asyncio.sleep(POLL)


def _pod(name: str, namespace: str, image: str) -> Json:
    amounts = {"cpu": "500m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 64001,
                "runAsGroup": 64002,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "bare",
                    "image": image,
                    "command": list(CLOCK),
                    "resources": {"limits": amounts, "requests": amounts},
                    "securityContext": confinement(None),
                }
            ],
        },
    }


async def in_turn(
    cluster: AdminPort, launcher: KubernetesJobLauncher, namespace: str, image: str, count: int
) -> AsyncIterator[tuple[float, Launched]]:
    """Yield ``count`` pairs, bare and proven, one after the other."""
    for _ in range(count):
        yield await bare(cluster, namespace, image), await proven(launcher, image)
