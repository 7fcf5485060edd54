"""Seed and collect beside ``kubectl exec -i -- tar``, in turn, on the same two containers of the same pod."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.memory import reset_peak, resident_mib
from benchmarks.pipes import piped
from benchmarks.pods import POD_SECONDS, container, new_name, pod, running
from isolation import names, resources
from isolation.objects.pod import STORAGE, STORAGE_PATH
from isolation.options import IsolationOptions
from isolation.spec import parse_spec
from launcher.cluster.port import AdminPort, Json
from launcher.seed import prepare, send_seed
from launcher.settings import Settings
from launcher.workspace import materialize

DISK_MB = 2048
SPARE = f"{STORAGE_PATH}/tar"
"""Where kubectl's tar unpacks, beside our own directories."""

WORKER_MILLICORES, WORKER_MEMORY_MIB = 1000, 1024
"""A spec's defaults. The gate has the worker's limits."""

SECONDS = 600.0
"""Bounds each transfer: a tenth of what is usual still passes."""


@dataclass
class Rates:
    """Seconds of each transfer, in the order of the turns, and how far resident memory rose in each of ours (MiB)."""

    seed: list[float] = field(default_factory=list)
    seed_tar: list[float] = field(default_factory=list)
    collect: list[float] = field(default_factory=list)
    collect_tar: list[float] = field(default_factory=list)
    seed_memory: list[float] = field(default_factory=list)
    collect_memory: list[float] = field(default_factory=list)


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
    """Moves one workspace in and out of one pod. Each turn begins with an empty volume and empty destinations."""

    def __init__(self, cluster: AdminPort, settings: Settings, pod_name: str, kubectl: Sequence[str]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pod = pod_name
        self._kubectl = tuple(kubectl)

    async def turn(self, source: Path, scratch: Path, rates: Rates) -> None:
        """Seed, kubectl's way, collect, kubectl's way. The trees that came back are compared by what they hold."""
        ours, theirs = scratch / "ours", scratch / "theirs"
        await self._emptied()
        try:
            rates.seed_memory.append(await self._timed(rates.seed, self._seed(source)))
            await self._timed(rates.seed_tar, self._tar_in(source))
            rates.collect_memory.append(await self._timed(rates.collect, self._collect(ours)))
            await self._timed(rates.collect_tar, self._tar_out(theirs))
            if not await asyncio.to_thread(_alike, source, ours) or not await asyncio.to_thread(_alike, source, theirs):
                raise RuntimeError(f"what came back is not what was sent ({source.name})")
        finally:
            for left in (ours, theirs):
                await asyncio.to_thread(shutil.rmtree, left, ignore_errors=True)

    async def _timed(self, samples: list[float], work: Coroutine[Any, Any, None]) -> float:
        """Do the work, note its seconds; return by how many MiB the peak of resident memory rose."""
        reset_peak()
        before, begun = resident_mib("VmRSS"), time.monotonic()
        async with asyncio.timeout(SECONDS):
            await work
        samples.append(time.monotonic() - begun)
        return resident_mib("VmHWM") - before

    async def _seed(self, source: Path) -> None:
        spec = parse_spec(
            {
                "runId": "bench",
                "image": self._settings.isolation.trusted_image,
                "diskMb": DISK_MB,
                "workspace": str(source),
            }
        )
        idle = self._settings.bounds.transfer_idle
        with await asyncio.to_thread(prepare, spec, self._settings, bound_to_root=False) as prepared:
            await send_seed(self._cluster, self._namespace, self._pod, prepared, epoch=1, idle_seconds=idle)

    async def _collect(self, destination: Path) -> None:
        await materialize(self._cluster, self._namespace, self._pod, destination, disk_mb=DISK_MB)

    async def _tar_in(self, source: Path) -> None:
        await piped(["tar", "-C", str(source), "-cf", "-", "."], self._exec(names.GATE, "tar", "-C", SPARE, "-xf", "-"))

    async def _tar_out(self, destination: Path) -> None:
        await asyncio.to_thread(destination.mkdir)
        inside = ("tar", "-C", f"{STORAGE_PATH}/current/workspace", "-cf", "-", ".")
        await piped(self._exec(names.KEEPER, *inside), ["tar", "-C", str(destination), "-xf", "-"])

    async def _emptied(self) -> None:
        script = f"cd {STORAGE_PATH} && rm -rf -- * .[!.]* && mkdir {SPARE}"
        async with asyncio.timeout(SECONDS):
            await piped(["true"], self._exec(names.GATE, "sh", "-c", script))

    def _exec(self, where: str, *command: str) -> list[str]:
        return [*self._kubectl, "-n", self._namespace, "exec", "-i", self._pod, "-c", where, "--", *command]

    @property
    def _namespace(self) -> str:
        return self._settings.isolation.namespace


def _alike(one: Path, other: Path) -> bool:
    """Whether both trees have the same files of the same sizes: a transfer that lost something has no rate."""
    sizes = (
        {path.relative_to(top): path.stat().st_size for path in top.rglob("*") if path.is_file()}
        for top in (one, other)
    )
    return next(sizes) == next(sizes)


@asynccontextmanager
async def transfer_pod(cluster: AdminPort, options: IsolationOptions) -> AsyncIterator[str]:
    """Yield a pod whose containers ``gate`` and ``keeper`` have a run's limits and storage, and sit still."""
    name = new_name()
    containers = [
        _still(names.GATE, options, WORKER_MILLICORES, WORKER_MEMORY_MIB),
        _still(names.KEEPER, options, resources.KEEPER_MILLICORES, resources.KEEPER_MEMORY_MIB),
    ]
    volumes = [{"emptyDir": {"sizeLimit": f"{2 * DISK_MB}Mi"}, "name": STORAGE}]
    async with pod(cluster, options, name, containers=containers, volumes=volumes):
        await running(cluster, options.namespace, name, len(containers))
        yield name


def _still(name: str, options: IsolationOptions, millicores: int, mebibytes: int) -> Json:
    amounts = {"cpu": f"{millicores}m", "memory": f"{mebibytes}Mi", "ephemeral-storage": f"{2 * DISK_MB}Mi"}
    command = ("python3", "-c", f"import time; time.sleep({POD_SECONDS})")
    mounts = [{"mountPath": STORAGE_PATH, "name": STORAGE}]
    return container(name, options.trusted_image, command, amounts, volumeMounts=mounts)
