"""Replicas that launch on a fake cluster with a node, in virtual time; each sees the cluster through its own wires."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import isolation_samples as samples
from preflight_world import witness

from isolation import names
from isolation.inpod import source
from launcher.app import build_launcher
from launcher.cluster.port import Kind
from launcher.cluster.retrying import RetryingCluster
from launcher.errors import PodgateError
from launcher.kubernetes import KubernetesJobLauncher
from launcher.recordport import record_store
from launcher.settings import Bounds, Settings
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_node import FakeNode
from launcher.testing.fake_script import Script, Worker
from launcher.testing.interceptor import Interceptor, Rule

TOKEN = names.token("run-1")
NAME = names.run_name(TOKEN)
NAMESPACE = samples.options().namespace
OBJECTS = (Kind.POD, Kind.NETWORK_POLICY, Kind.SECRET)
CAPABILITY = "the-models-very-secret-key"
FOR_EVER = Worker(seconds=None)


class Resolver:
    """Knows one capability."""

    async def resolve(self, name, run_id):
        return {"model": CAPABILITY, "short": "short"}[name]


@dataclass
class Replica:
    """One launcher, and the wires on which its calls can be counted, broken and held up."""

    launcher: KubernetesJobLauncher
    port: Interceptor
    told: list = field(default_factory=list)

    async def launch(self, spec):
        return await self.launcher.launch(spec, self.told.append, inputs_bound_to_root=False)

    @property
    def stages(self):
        return [event.stage for event in self.told]


class LaunchWorld:
    """``node`` plays the kubelet by its script; ``replica()`` makes as many launchers as a test needs."""

    def __init__(self, cluster, node, settings):
        self.cluster, self.node, self.settings = cluster, node, settings
        self.store = record_store(cluster, NAMESPACE, sleep=asyncio.sleep)
        self.spec = samples.spec(command=["true"], timeoutSeconds=60)

    def replica(self, holder="replica-a", *, resolver=None, settings=None):
        port = Interceptor(self.cluster)
        clock = self.cluster.clock
        launcher = build_launcher(
            settings or self.settings,
            RetryingCluster(port, sleep=clock.sleep, monotonic=clock.monotonic),
            resolver=resolver or Resolver(),
            monotonic=clock.monotonic,
            sleep=clock.sleep,
            holder=holder,
        )
        return Replica(launcher, port)

    async def record(self):
        stored = await self.store.read(TOKEN)
        return None if stored is None else stored.record

    def items(self, kind):
        """Objects of the run."""
        return [body for body in self.cluster.store.items(kind, NAMESPACE) if body["metadata"]["name"].startswith(NAME)]

    @property
    def pod(self):
        return self.cluster.store.get((Kind.POD, NAMESPACE, NAME))

    @property
    def life(self):
        return self.node.life_of(NAME)

    @property
    def left(self):
        return [body["metadata"]["name"] for kind in OBJECTS for body in self.items(kind)]

    def pods_ever(self):
        """Uids of the run's pods, the ended ones too."""
        return [life.uid for life in self.node.lives.values() if life.name == NAME]

    def started(self, container):
        """Whether a container of the run ever ran."""
        return any(
            state(change.object, container).keys() & {"running", "terminated"} for change in self._changes(Kind.POD)
        )

    def marked(self):
        """Whether a marker ever reached the gate."""
        return any(life._marked.is_set() for life in self.node.lives.values() if life.name == NAME)

    def recorded_at(self, phase):
        """Version of the write with which the record entered a phase."""
        records = (change for change in self._changes(Kind.CONFIG_MAP))
        return next(c.version for c in records if json.loads(c.object["data"]["record.json"])["phase"] == phase)

    def recorded_epoch(self):
        """The epoch of the record's lease."""
        stored = self.cluster.store.get((Kind.CONFIG_MAP, NAMESPACE, NAME))
        return json.loads(stored["data"]["record.json"])["lease"]["epoch"]

    def deleted_at(self):
        """Version of the write that began to delete the pod."""
        going = (c for c in self._changes(Kind.POD) if c.type == "DELETED" or deleting(c.object))
        return next(change.version for change in going)

    def _changes(self, kind):
        return [change for change in self.cluster.store.history if change.key == (kind, NAMESPACE, NAME)]

    async def until(self, holds, seconds=600):
        """Wait until something holds in this cluster."""
        async with asyncio.timeout(seconds):
            changed = self.cluster.store.changed
            while not holds():
                await changed.wait()
                changed = self.cluster.store.changed

    async def drained(self):
        """Wait until nothing of the run is left but its record."""
        await self.until(lambda: not self.left, 90)


@asynccontextmanager
async def launching(script=None, *, preflight=True, bounds=None, node_exposure="record", service=None, **options):
    """A cluster with witness and node, on which a preflight has succeeded."""
    cluster = FakeCluster(namespaces=(NAMESPACE,))
    settings = Settings(
        isolation=samples.options(**options), bounds=Bounds(**(bounds or {})), node_exposure=node_exposure
    )
    async with FakeNode(cluster, Script(worker=FOR_EVER), {NAME: script} if script else {}) as node:
        await cluster.create(Kind.SERVICE, NAMESPACE, service or witness())
        world = LaunchWorld(cluster, node, settings)
        if preflight:
            assert (await world.replica("first").launcher.preflight()).ok
        yield world


async def refused(launch):
    """Await a launch that must fail, and return its error."""
    try:
        await launch
    except PodgateError as error:
        return error
    raise AssertionError("it was launched")


def state(pod, container):
    """A container's present state, raw; empty before it has a status."""
    status = pod.get("status", {})
    for one in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]:
        if one["name"] == container:
            return one["state"]
    return {}


def deleting(pod):
    return pod["metadata"].get("deletionTimestamp") is not None


def owners(body):
    return [owner["uid"] for owner in body["metadata"]["ownerReferences"]]


def writes_phase(phase):
    """Match the write of a record that enters a phase."""

    def matches(call):
        body = call.body or {}
        return call.method == "replace" and f'"phase":"{phase}"' in body.get("data", {}).get("record.json", "")

    return matches


def execs(program):
    """Match the exec of one of our in-pod programs."""
    return lambda call: call.method == "exec" and source(program) in call.body["argv"]


class Freeze:
    """A replica's process stands still: from a moment on none of its requests goes out, and its streams are cut.

    ``thaw`` lets it go on, as a machine that was suspended would; one that is never thawed was killed.
    """

    def __init__(self, world, replica, moment, *, passes=False):
        """``passes``: the moment's own request still goes out."""
        self._world, self._moment, self._passes = world, moment, passes
        self._thawed = asyncio.Event()
        self.frozen = asyncio.Event()
        replica.port.rules.append(Rule(self._holds, times=1_000_000, before=self._thawed.wait))

    def _holds(self, call):
        if self._thawed.is_set():
            return False
        if self.frozen.is_set():
            return True
        if not self._moment(call):
            return False
        self.now()
        return not self._passes

    def now(self):
        self.frozen.set()
        for stream in list(self._world.cluster.execs):
            stream.cut()

    def thaw(self):
        self._thawed.set()
