"""A fake cluster with a witness Service and a node, and replicas that make preflights on it."""

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import isolation_samples as samples

from launcher.cluster.port import Kind
from launcher.context import Context
from launcher.preflight import Preflight
from launcher.preflight_shared import KEY
from launcher.recordport import record_store
from launcher.settings import Bounds, Settings
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_node import FakeNode, healthy_canary
from launcher.testing.interceptor import Interceptor

NAMESPACE = samples.options().namespace


def witness(**changes):
    options = samples.options()
    ports = [
        {"name": "control", "port": options.control_port, "protocol": "TCP"},
        {"name": "deny", "port": options.deny_port, "protocol": "TCP"},
        {"name": "deny-udp", "port": options.deny_port, "protocol": "UDP"},
    ]
    spec = {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9", "fd00::9"], "ports": ports}
    return {"metadata": {"name": options.witness, "namespace": NAMESPACE}, "spec": spec | changes}


def without_enforcement(kind, config):
    """Answer as canaries do when no policy is enforced."""
    answer = healthy_canary(kind, config)
    if kind == "policed":
        fallen = {"standing": False, "verdict": "open", "deny": "tcp banner,udp banner"}
        families = {family: seen | fallen for family, seen in answer["families"].items()}
        answer |= {"ok": False, "code": "policy_not_enforced", "families": families}
    return answer


def says_nothing(kind, config):
    """Never come to an answer."""
    return {"canary": "started"}


class World:
    """``answers`` is what the node's canaries say; it may be changed meanwhile."""

    def __init__(self, **settings):
        self.cluster = FakeCluster(namespaces=(NAMESPACE,))
        bounds = Bounds(**settings.pop("bounds", {}))
        options = samples.options(**settings.pop("options", {}))
        self.settings = Settings(isolation=options, bounds=bounds, **settings)
        self.answers = healthy_canary
        self.asked = []

    def answer(self, kind, config):
        self.asked.append(kind)
        return self.answers(kind, config)

    def replica(self, holder="replica-a", settings=None):
        """Return a preflight of its own, and the port that sees its calls."""
        port = Interceptor(self.cluster)
        store = record_store(port, NAMESPACE, sleep=asyncio.sleep)
        clock = self.cluster.clock
        context = Context(port, store, settings or self.settings, holder, clock.monotonic, clock.sleep)
        return Preflight(context), port

    async def install(self, **changes):
        await self.cluster.create(Kind.SERVICE, NAMESPACE, witness(**changes))

    @property
    def shared(self):
        """The ConfigMap in which replicas share."""
        maps = self.cluster.store.items(Kind.CONFIG_MAP, NAMESPACE)
        assert len(maps) == 1
        return maps[0]

    @property
    def state(self):
        return json.loads(self.shared["data"][KEY])

    def put_state(self, state):
        """Put another content there, as another replica or an administrator would; text as it is, else as JSON."""
        text = state if isinstance(state, str) else json.dumps(state)
        key = (Kind.CONFIG_MAP, NAMESPACE, self.shared["metadata"]["name"])
        self.cluster.store.edit(key, lambda body: body["data"].update({KEY: text}))

    def lease_for(self, seconds):
        """Put another replica's lease there."""
        until = (self.cluster.now() + timedelta(seconds=seconds)).isoformat()
        self.put_state({"attempt": "x", "expiresAt": until, "holder": "another"})

    def left(self):
        """Names of canaries and policies that are there."""
        kinds = (Kind.POD, Kind.NETWORK_POLICY)
        return [body["metadata"]["name"] for kind in kinds for body in self.cluster.store.items(kind, NAMESPACE)]

    async def drained(self):
        """Wait for what is being deleted."""
        async with asyncio.timeout(60):
            changed = self.cluster.store.changed
            while self.left():
                await changed.wait()
                changed = self.cluster.store.changed


@asynccontextmanager
async def world(*, installed=True, node=True, **settings):
    """Yield a world; with ``node=False`` pods stay as they were created."""
    made = World(**settings)
    if installed:
        await made.install()
    if not node:
        yield made
        return
    async with FakeNode(made.cluster, canary=made.answer):
        yield made
