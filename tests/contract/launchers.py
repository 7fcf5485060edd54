"""The worlds that the launcher's contract runs in: one launcher over a fake cluster, and over a real one."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bed import Bed

from isolation import names
from isolation.options import IsolationOptions
from launcher.app import build_launcher, open_launcher
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.cluster.retrying import RetryingCluster
from launcher.contract import JobHandle, JobStatus
from launcher.kubernetes import KubernetesJobLauncher
from launcher.settings import Bounds, Settings
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_node import FakeNode
from launcher.testing.fake_script import Script
from launcher.testing.fake_script import Worker as Scripted

Behaviour = Literal["works", "fails", "runs"]

SEED = {"a.txt": b"seeded\n", "old.txt": b"old\n"}
LEFT = {"a.txt": b"changed\n", "old.txt": b"old\n", "new/b.txt": b"b\n"}
"""What ``works`` makes of the workspace."""

RESULT = {"answer": 42}
OUTPUT = b"hello\nworld\n"

SHELL: dict[Behaviour, str] = {
    "works": """set -e; echo hello; sleep 0.5; echo world; cd /workspace; echo changed > a.txt; mkdir new
echo b > new/b.txt; echo '{"answer": 42}' > /run/job/output/result.json; sleep 1""",
    "fails": """echo '{"error": "worker_tests_failed"}'; exit 3""",
    "runs": "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done",
}
SCRIPTED: dict[Behaviour, Scripted] = {
    "works": Scripted(seconds=2, output=(b"hello", b"world"), result=b'{"answer": 42}', files=LEFT),
    "fails": Scripted(exit_code=3, output=(b'{"error": "worker_tests_failed"}',), result=None),
    "runs": Scripted(seconds=None, output=(b"begun",), on_term=0),
}

PROVEN_WITHIN = 20.0
"""Seconds for the first standing proof on a machine that other tests keep busy."""

TRUSTED = "registry.test/python@sha256:" + "a" * 64
JOB = "registry.test/job@sha256:" + "b" * 64


@dataclass
class World:
    """``launcher`` and ``other`` are two replicas; ``admin`` arranges and looks, and is never the launcher's."""

    launcher: KubernetesJobLauncher
    other: KubernetesJobLauncher
    admin: AdminPort
    namespace: str
    root: Path
    image: str
    prepare: Callable[[str, Behaviour], None] = lambda _run_id, _behaviour: None

    def spec(self, behaviour: Behaviour, **fields: object) -> Json:
        """A small job with a run id of its own, seeded with SEED; on the fake, its node knows how it will behave."""
        run_id = f"contract-{secrets.token_hex(4)}"
        self.prepare(run_id, behaviour)
        return {
            "runId": run_id,
            "image": self.image,
            "command": ["sh", "-c", SHELL[behaviour]],
            "cpus": 0.1,
            "memoryMb": 128,
            "diskMb": 64,
            "timeoutSeconds": 120,
            "workspace": str(self._seeded(run_id)),
            **fields,
        }

    def _seeded(self, run_id: str) -> Path:
        place = self.root / run_id / "workspace"
        place.mkdir(parents=True)
        for name, content in SEED.items():
            (place / name).write_bytes(content)
        return place

    async def ended(self, handle: JobHandle) -> list[JobStatus]:
        """Watch a run to its end, and return every status that was seen."""
        return [status async for status in self.other.watch(handle)]

    async def pods_of(self, handle: JobHandle) -> list[Json]:
        name = names.run_name(handle.id.partition("/")[2])
        pod = await self.admin.get(Kind.POD, self.namespace, name)
        return [] if pod is None else [pod]

    async def vanish(self, handle: JobHandle) -> None:
        """Take the pod away behind the launcher's back, as a node that is lost for good does."""
        (pod,) = await self.pods_of(handle)
        await self.admin.delete(Kind.POD, self.namespace, pod["metadata"]["name"], grace_seconds=0)


@asynccontextmanager
async def fake_world(root: Path) -> AsyncIterator[World]:
    options = IsolationOptions(namespace="contract", trusted_image=TRUSTED)
    cluster = FakeCluster(namespaces=(options.namespace,))
    settings = Settings(isolation=options, workspace_root=root)
    scripts: dict[str, Script] = {}

    def prepare(run_id: str, behaviour: Behaviour) -> None:
        scripts[names.run_name(names.token(run_id))] = Script(worker=SCRIPTED[behaviour])

    def replica() -> KubernetesJobLauncher:
        clock = cluster.clock
        port = RetryingCluster(cluster, sleep=clock.sleep, monotonic=clock.monotonic)
        return build_launcher(settings, port, monotonic=clock.monotonic, sleep=clock.sleep)

    async with FakeNode(cluster, scripts=scripts):
        await cluster.create(Kind.SERVICE, options.namespace, _witness(options))
        yield World(replica(), replica(), cluster, options.namespace, root, JOB, prepare)


def _witness(options: IsolationOptions) -> Json:
    ports = [(options.control_port, "TCP"), (options.deny_port, "TCP"), (options.deny_port, "UDP")]
    spec = {"clusterIPs": ["10.96.0.9", "fd00::9"], "ports": [{"port": port, "protocol": of} for port, of in ports]}
    return {"metadata": {"name": options.witness}, "spec": spec}


@asynccontextmanager
async def real_world(bed: Bed, options: IsolationOptions, kubeconfig: Path, root: Path) -> AsyncIterator[World]:
    """``kubeconfig`` holds the launcher's Role and no other right."""
    from launcher.cluster.connect import connect  # noqa: PLC0415 - the client takes 0.6 s to import

    settings = Settings(
        isolation=options, bounds=Bounds(first_proof=PROVEN_WITHIN), workspace_root=root, kubeconfig=kubeconfig
    )
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(connect(kubeconfig=bed.kubeconfig))
        replicas = [await stack.enter_async_context(open_launcher(settings)) for _ in range(2)]
        yield World(*replicas, admin, options.namespace, root, bed.images["busybox"])
