"""A cluster as small as stop, remove and reap need it: uid, resourceVersion, graceful deletion, watch, list."""

import asyncio
import copy
from collections import defaultdict
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from isolation import names
from launcher.cluster.errors import AlreadyExists, Conflict, NotFound
from launcher.cluster.port import Kind, WatchEvent
from launcher.ownpod import Clock
from launcher.recordport import record_store
from records.birth import opened
from records.model import Evidence, Phase, PodRef, Result
from records.transitions import Ended, ReleaseBegun, Removed, WorkerStarted

NAMESPACE = "runs"
RUN_ID = "run-1"
TOKEN = names.token(RUN_ID)
NAME = names.run_name(TOKEN)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MANAGED = {"app.kubernetes.io/managed-by": "podgate"}


class StageCluster:
    """``lingering`` pods stay, marked for deletion, until :meth:`finish`. ``before`` runs ahead of a call."""

    def __init__(self):
        self.objects = {}
        self.time = NOW
        self.lingering = False
        self.before = defaultdict(list)
        self.deleted = []
        self._version = 0
        self._changed = asyncio.Event()

    def now(self):
        return self.time

    async def get(self, kind, namespace, name):
        await self._arrive("get", kind)
        return copy.deepcopy(self.objects.get((kind, name)))

    async def create(self, kind, namespace, body, *, dry_run=False):
        await self._arrive("create", kind)
        if (kind, body["metadata"]["name"]) in self.objects:
            raise AlreadyExists("create")
        return self.put(kind, body)

    def put(self, kind, body):
        """Store an object at once, as another client would have."""
        self._version += 1
        stored = copy.deepcopy(body)
        created = self.time.isoformat().replace("+00:00", "Z")
        fresh = {"uid": f"uid-{self._version:08d}", "creationTimestamp": created}
        stored["metadata"] = fresh | stored["metadata"] | {"resourceVersion": str(self._version)}
        self.objects[kind, stored["metadata"]["name"]] = stored
        return copy.deepcopy(stored)

    async def replace(self, kind, namespace, name, body):
        await self._arrive("replace", kind)
        there = self.objects.get((kind, name))
        if there is None:
            raise NotFound("replace")
        if there["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict("replace")
        kept = {"creationTimestamp": there["metadata"]["creationTimestamp"]}
        return self.put(kind, body | {"metadata": kept | body["metadata"]})

    async def delete(self, kind, namespace, name, *, uid=None, grace_seconds=None):
        await self._arrive("delete", kind)
        there = self.objects.get((kind, name))
        if there is None:
            return False
        if uid is not None and there["metadata"]["uid"] != uid:
            raise Conflict("delete")
        self.deleted.append((kind, name, grace_seconds))
        if kind is Kind.POD and self.lingering:
            there["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:10Z"
        else:
            self.finish(kind, name)
        return True

    def finish(self, kind=Kind.POD, name=NAME):
        """The object is gone."""
        self.objects.pop((kind, name), None)
        self._changed.set()

    @asynccontextmanager
    async def watch(self, kind, namespace, name, *, resource_version=None):
        await self._arrive("watch", kind)

        async def events():
            while (kind, name) in self.objects:
                self._changed.clear()
                await self._changed.wait()
            yield WatchEvent("DELETED", {})

        yield events()

    async def list(self, kind, namespace, *, labels=None, fields=None):
        await self._arrive("list", kind)
        every = [body for (k, _), body in self.objects.items() if k is kind]
        wanted = (labels or {}).items()
        return [copy.deepcopy(b) for b in every if wanted <= b["metadata"].get("labels", {}).items()]

    async def server_version(self):
        return (1, 34)

    async def _arrive(self, call, kind):
        await asyncio.sleep(0)
        if self.before[call, kind]:
            self.before[call, kind].pop(0)()

    # what tests put there and look at

    def pod(self, *, record_uid=None, uid=None, name=NAME, labels=MANAGED):
        owner = [{"uid": record_uid}] if record_uid else []
        body = {"metadata": {"name": name, "labels": labels, "ownerReferences": owner}}
        return self.put(Kind.POD, body if uid is None else {"metadata": body["metadata"] | {"uid": uid}})

    def policy(self, *, owner_uid="gone", name=NAME):
        metadata = {"name": name, "labels": MANAGED, "ownerReferences": [{"uid": owner_uid}]}
        return self.put(Kind.NETWORK_POLICY, {"metadata": metadata})

    def secret(self, *, name=f"{NAME}-01234567"):
        return self.put(
            Kind.SECRET, {"metadata": {"name": name, "labels": MANAGED, "ownerReferences": [{"uid": "gone"}]}}
        )

    def later(self, **of):
        self.time += timedelta(**of)

    def has(self, kind, name=NAME):
        return (kind, name) in self.objects


class TestClock:
    """Sleeping moves this clock and nothing else."""

    __test__ = False

    def __init__(self):
        self.seconds = 0.0

    async def sleep(self, seconds):
        for _ in range(20):
            await asyncio.sleep(0)
        self.seconds += seconds

    @property
    def clock(self):
        return Clock(monotonic=lambda: self.seconds, sleep=self.sleep)


class StoredOnly:
    """An observer that sees nothing new; ``sees`` may be set to an event that it writes at its next look."""

    def __init__(self, store):
        self._store = store
        self.sees = None
        self.looked = []

    async def observe(self, token):
        self.looked.append(token)
        if self.sees is None or await self._store.read(token) is None:
            return await self._store.read(token)
        return await self._store.update(token, lambda record: None if record.phase.terminal else self.sees)


async def pause(_seconds):
    await asyncio.sleep(0)


def store_of(cluster):
    return record_store(cluster, NAMESPACE, sleep=pause)


def fresh(*, now=NOW, run_id=RUN_ID, holder="replica-a/1"):
    return opened(
        token=names.token(run_id),
        run_id=run_id,
        spec_hash="spec",
        manifest_digest="manifest",
        holder=holder,
        now=now,
        lease_until=now + timedelta(seconds=30),
        provision_by=now + timedelta(seconds=300),
        disk_mb=64,
        timeout_seconds=60,
    )


async def run_in(store, phase, *, pod_uid="pod-1", now=NOW):
    """Create the run's record and lead it to ``phase`` by the normal course."""
    stored = await store.create(fresh(now=now))
    end = Result(exit_code=0, reason="completed")
    outcome = phase if phase.terminal and phase is not Phase.REMOVED else Phase.SUCCEEDED
    deadline, window = now + timedelta(seconds=60), now + timedelta(seconds=3660)
    for event in (
        ReleaseBegun(1, PodRef(uid=pod_uid, name=NAME), Evidence(start_id="s"), now),
        WorkerStarted(now, now, deadline, window, {}),
        Ended(outcome, end, now),
        Removed(now),
    ):
        if stored.record.phase is phase:
            break
        stored = await store.update(TOKEN, lambda _, event=event: event)
    return stored
