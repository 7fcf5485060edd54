"""A run on a fake cluster, driven through the port as a launcher would drive it, in as few steps as possible."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import isolation_samples as samples

from isolation.objects import Owner, build_pod, build_policy
from isolation.options import IsolationOptions
from isolation.spec import JobSpec
from launcher.cluster.port import ExecStream, Json, Kind
from launcher.seed import SeedReceipt, prepare, send_seed
from launcher.settings import Settings
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_node import FakeNode
from launcher.testing.fake_script import Script
from launcher.transfer.programs import argv


@dataclass
class Run:
    """One run's objects and what the tests do with them."""

    cluster: FakeCluster
    node: FakeNode
    options: IsolationOptions
    spec: JobSpec
    record: Json
    pod: Json

    @property
    def name(self) -> str:
        return self.pod["metadata"]["name"]

    async def until(self, holds: Callable[[Json], bool], seconds: float = 600) -> Json:
        """Wait by watching until the pod is so, and return it."""
        async with (
            asyncio.timeout(seconds),
            self.cluster.watch(Kind.POD, self.options.namespace, self.name) as events,
        ):
            async for event in events:
                if event.type in ("ADDED", "MODIFIED") and holds(event.object):
                    return event.object
        raise AssertionError("the watch ended first")

    async def seed(self) -> SeedReceipt:
        await self.until(lambda pod: "running" in state(pod, "gate"))
        with prepare(self.spec, Settings(isolation=self.options), bound_to_root=False) as prepared:
            namespace = self.options.namespace
            return await send_seed(self.cluster, namespace, self.name, prepared, epoch=1, idle_seconds=30)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[tuple[ExecStream, AsyncIterator[Json]]]:
        await self.until(lambda pod: "running" in state(pod, "gate"))
        config = {"root": "/run/podgate", "healthPort": 8799}
        command = argv("follow", config)
        async with self.cluster.exec(self.options.namespace, self.name, "gate", command) as stream:
            yield stream, _lines(stream)

    async def release(self, **changes: Any) -> None:
        """Seed, wait for the proof, and send the marker."""
        receipt = await self.seed()
        async with self.follow() as (stream, lines):
            proof = await _first(lines, lambda line: line.get("standing") is True)
            marker = {
                "podUid": self.pod["metadata"]["uid"],
                "startId": proof["startId"],
                "epoch": 1,
                "seedSha256": receipt.sha256,
            }
            await stream.send(json.dumps(marker | changes).encode() + b"\n")
            await _first(lines, lambda line: line.get("marker") == "written")


@asynccontextmanager
async def run(script: Script | None = None, workspace: Path | None = None, **fields: Any) -> AsyncIterator[Run]:
    """A record, its pod and its policy on a cluster with one node."""
    options = samples.options()
    cluster = FakeCluster(namespaces=(options.namespace,), watch_seconds=100_000)
    spec = samples.spec(command=["true"], **({"workspace": str(workspace)} if workspace else {}), **fields)
    async with FakeNode(cluster, script or Script()) as node:
        made = await cluster.create(Kind.CONFIG_MAP, options.namespace, {"metadata": {"name": "record"}, "data": {}})
        record = Owner("v1", "ConfigMap", "record", made["metadata"]["uid"])
        pod = build_pod(spec, options, witness_ips=samples.WITNESS_IPS, record=record, secret=None)
        stored = await cluster.create(Kind.POD, options.namespace, pod)
        owner = Owner("v1", "Pod", stored["metadata"]["name"], stored["metadata"]["uid"])
        await cluster.create(Kind.NETWORK_POLICY, options.namespace, build_policy(spec, options, pod=owner))
        yield Run(cluster, node, options, spec, made, stored)


def state(pod: Json, container: str) -> Json:
    """A container's present state, raw; empty before it has a status."""
    status = pod.get("status", {})
    for one in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if one["name"] == container:
            return one["state"]
    return {}


def ended(container: str) -> Callable[[Json], bool]:
    return lambda pod: "terminated" in state(pod, container)


async def _lines(stream: ExecStream) -> AsyncIterator[Json]:
    rest = b""
    while (piece := await stream.receive()) is not None:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)


async def _first(lines: AsyncIterator[Json], holds: Callable[[Json], bool]) -> Json:
    async for line in lines:
        if holds(line):
            return line
    raise AssertionError("the stream ended first")
