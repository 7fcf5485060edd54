"""Seed and collect beside ``kubectl exec -i -- tar``, in turn, on the same two containers of the same pod."""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isolation import names, resources
from isolation.objects.container import confinement
from isolation.options import IsolationOptions
from isolation.spec import parse_spec
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.seed import prepare, send_seed
from launcher.settings import Settings
from launcher.workspace import materialize

DISK_MB = 2048
SPARE = "/run/podgate/tar"
"""Where kubectl's tar unpacks, beside our own directories."""

RUN_SECONDS = 120.0
"""The pod has to run by then."""


@dataclass
class Rates:
    """Seconds of each transfer, in the order of the turns."""

    seed: list[float] = field(default_factory=list)
    seed_tar: list[float] = field(default_factory=list)
    collect: list[float] = field(default_factory=list)
    collect_tar: list[float] = field(default_factory=list)


def large_file(folder: Path, mebibytes: int) -> Path:
    """Make a folder with one file that cannot be compressed."""
    folder.mkdir()
    with (folder / "large").open("wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(1 << 20))
    return folder


def small_files(folder: Path, count: int) -> Path:
    """Make a folder of ``count`` files of 1 KiB, a hundred in each directory."""
    for number in range(count):
        place = folder / f"{number // 100:04d}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06d}").write_bytes(os.urandom(1024))
    return folder


class Bench:
    """Moves one workspace in and out of one pod."""

    def __init__(self, cluster: AdminPort, settings: Settings, pod: str, kubectl: Sequence[str]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pod = pod
        self._kubectl = tuple(kubectl)
        self._epoch = 0

    async def rounds(self, source: Path, scratch: Path, count: int) -> Rates:
        """Seed, kubectl's way, collect, kubectl's way; ``count`` times."""
        rates = Rates()
        for _ in range(count):
            rates.seed.append(await self._timed(self._seed(source)))
            rates.seed_tar.append(await self._timed(self._tar_in(source)))
            rates.collect.append(await self._timed(self._collect(scratch / "ours")))
            rates.collect_tar.append(await self._timed(self._tar_out(scratch / "theirs")))
            for left in ("ours", "theirs"):
                shutil.rmtree(scratch / left)
        return rates

    async def _timed(self, work: Coroutine[Any, Any, None]) -> float:
        begun = time.monotonic()
        await work
        return time.monotonic() - begun

    async def _seed(self, source: Path) -> None:
        self._epoch += 1
        spec = parse_spec(
            {
                "runId": "bench",
                "image": self._settings.isolation.trusted_image,
                "diskMb": DISK_MB,
                "workspace": str(source),
            }
        )
        with prepare(spec, self._settings, bound_to_root=False) as prepared:
            await send_seed(self._cluster, self._namespace, self._pod, prepared, epoch=self._epoch, idle_seconds=60)

    async def _collect(self, destination: Path) -> None:
        await materialize(self._cluster, self._namespace, self._pod, destination, disk_mb=DISK_MB)

    async def _tar_in(self, source: Path) -> None:
        inside = f"rm -rf {SPARE} && mkdir {SPARE} && tar -C {SPARE} -xf -"
        await _piped(["tar", "-C", str(source), "-cf", "-", "."], self._exec(names.GATE, inside))

    async def _tar_out(self, destination: Path) -> None:
        await asyncio.to_thread(destination.mkdir)
        inside = "tar -C /run/podgate/current/workspace -cf - ."
        await _piped(self._exec(names.KEEPER, inside), ["tar", "-C", str(destination), "-xf", "-"])

    def _exec(self, container: str, script: str) -> list[str]:
        place = ["-n", self._namespace, "exec", "-i", self._pod, "-c", container]
        return [*self._kubectl, *place, "--", "sh", "-c", script]

    @property
    def _namespace(self) -> str:
        return self._settings.isolation.namespace


async def _piped(source: Sequence[str], sink: Sequence[str]) -> None:
    """Run ``source | sink``; either failing is an error."""
    read, write = os.pipe()
    try:
        first = await asyncio.create_subprocess_exec(*source, stdout=write, stdin=asyncio.subprocess.DEVNULL)
        second = await asyncio.create_subprocess_exec(*sink, stdin=read)
    finally:
        os.close(read)
        os.close(write)
    codes = await asyncio.gather(first.wait(), second.wait())
    if any(codes):
        raise RuntimeError(f"{source[0]} | {sink[0]} ended with {codes}")


@asynccontextmanager
async def transfer_pod(cluster: AdminPort, options: IsolationOptions) -> AsyncIterator[str]:
    """Yield a pod whose containers ``gate`` and ``keeper`` have a run's limits and storage, and sit still."""
    name = f"bench-{secrets.token_hex(4)}"
    pod = await cluster.create(Kind.POD, options.namespace, _pod(name, options))
    try:
        async with asyncio.timeout(RUN_SECONDS):
            while not _runs(await cluster.get(Kind.POD, options.namespace, name)):
                await asyncio.sleep(0.5)
        yield name
    finally:
        await cluster.delete(Kind.POD, options.namespace, name, uid=pod["metadata"]["uid"], grace_seconds=1)


def _runs(pod: Json | None) -> bool:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
    return len(statuses) == 2 and all("running" in each["state"] for each in statuses)  # noqa: PLR2004 - both


def _pod(name: str, options: IsolationOptions) -> Json:
    uids = options.uids
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": options.namespace},
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "fsGroup": uids.group,
                "runAsGroup": uids.group,
                "runAsNonRoot": True,
                "runAsUser": uids.worker,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                _still(names.GATE, options, 1000, 1024),
                _still(names.KEEPER, options, resources.KEEPER_MILLICORES, resources.KEEPER_MEMORY_MIB),
            ],
            "volumes": [{"emptyDir": {"sizeLimit": f"{2 * DISK_MB}Mi"}, "name": "storage"}],
        },
    }


def _still(name: str, options: IsolationOptions, millicores: int, mebibytes: int) -> Json:
    amounts = {"cpu": f"{millicores}m", "memory": f"{mebibytes}Mi", "ephemeral-storage": f"{2 * DISK_MB}Mi"}
    return {
        "name": name,
        "image": options.trusted_image,
        "command": ["python3", "-c", "import time; time.sleep(3600)"],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": confinement(None),
        "volumeMounts": [{"mountPath": "/run/podgate", "name": "storage"}],
    }
