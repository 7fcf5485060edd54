"""One run on a fake cluster, its pod's status and logs set by hand: what observe, logs and collect look at."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import timedelta

import isolation_samples as samples

from isolation import names
from launcher.cluster.port import Kind
from launcher.observe import Observer
from launcher.recordport import record_store
from launcher.settings import Settings
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_store import stamp
from launcher.testing.interceptor import Interceptor
from launcher.testing.virtual_time import EPOCH
from records.birth import opened
from records.model import Evidence, Phase, PodRef, Result
from records.transitions import Ended, PodNamed, ReleaseBegun, WorkerStarted

RUN_ID = "run-1"
TOKEN = names.token(RUN_ID)
NAME = names.run_name(TOKEN)
TIMEOUT = 60
DIGEST = "sha256:" + "ab" * 32


def running(at):
    return {"running": {"startedAt": stamp(at)}}


def waiting(reason, message=None):
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


def ended(start, end, code=0, reason=None, **more):
    reason = reason or ("Completed" if code == 0 else "Error")
    return {
        "terminated": {"exitCode": code, "reason": reason, "startedAt": stamp(start), "finishedAt": stamp(end)} | more
    }


@dataclass
class WatchedRun:
    """``port`` sees every call; ``cluster`` is the inside."""

    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(namespaces=(samples.options().namespace,)))
    settings: Settings = field(default_factory=lambda: Settings(isolation=samples.options()))

    def __post_init__(self):
        self.port = Interceptor(self.cluster)
        self.namespace = self.settings.isolation.namespace
        self.store = record_store(self.port, self.namespace, sleep=asyncio.sleep)
        self.observer = Observer(self.port, self.store, self.settings, namespace=self.namespace, sleep=asyncio.sleep)

    async def recorded(self, phase, **fields):
        """Create the record and lead it to ``phase``; the pod is named from ``releasing`` on."""
        now = self.cluster.now()
        record = opened(
            token=TOKEN,
            run_id=RUN_ID,
            spec_hash="spec",
            manifest_digest="manifest",
            holder="replica-a/1",
            now=now,
            lease_until=now + timedelta(seconds=30),
            provision_by=now + timedelta(seconds=300),
            disk_mb=64,
            timeout_seconds=TIMEOUT,
        ).evolve(**fields)
        stored = await self.store.create(record)
        pod = PodRef(uid=self.pod(record_uid=stored.uid), name=NAME)
        deadline = now + timedelta(seconds=TIMEOUT)
        for event in (
            PodNamed(1, pod),
            ReleaseBegun(1, pod, Evidence(start_id="s"), now),
            WorkerStarted(now, now, deadline, deadline + timedelta(hours=1), {}),
            Ended(phase, Result(exit_code=0 if phase is Phase.SUCCEEDED else 3, reason="completed"), now),
        ):
            if stored.record.phase is phase:
                break
            stored = await self.store.update(TOKEN, lambda _, event=event: event)
        self.port.calls.clear()
        return stored

    def pod(self, *, record_uid):
        """Make the pod, and return its uid."""
        everyone = [{"name": name, "image": f"registry.test/{name}@{DIGEST}"} for name in ("keeper", "worker")]
        body = {
            "metadata": {"name": NAME, "ownerReferences": [{"uid": record_uid}]},
            "spec": {
                "initContainers": [{"name": "prover"}, {"name": "gate"}],
                "containers": everyone,
                "terminationGracePeriodSeconds": 10,
            },
            "status": {"phase": "Pending"},
        }
        return self.cluster.store.create((Kind.POD, self.namespace, NAME), body)["metadata"]["uid"]

    def shows(self, worker, *, keeper=None, phase="Running", **status):
        """Publish a status in which the gate has opened."""
        start = EPOCH
        init = [("prover", running(start)), ("gate", ended(start, start))]
        containers = [("keeper", keeper or running(start)), ("worker", worker)]

        def change(pod):
            pod["status"] = {
                "phase": phase,
                "initContainerStatuses": [{"name": name, "state": state} for name, state in init],
                "containerStatuses": [{"name": name, "state": state} for name, state in containers],
            } | status

        self.cluster.store.edit((Kind.POD, self.namespace, NAME), change)

    def is_being_deleted(self, *, grace_seconds):
        """Somebody else deletes the pod, and its node has not ended it yet."""
        until = stamp(self.cluster.now() + timedelta(seconds=grace_seconds))

        def change(pod):
            pod["spec"]["nodeName"] = "node"
            pod["metadata"] |= {"deletionTimestamp": until, "deletionGracePeriodSeconds": grace_seconds}

        self.cluster.store.edit((Kind.POD, self.namespace, NAME), change)

    def without_pod(self):
        self.cluster.store.remove((Kind.POD, self.namespace, NAME))

    def has_pod(self):
        return self.cluster.store.get((Kind.POD, self.namespace, NAME)) is not None

    def event(self, reason, message, container="worker"):
        about = {"uid": self.pod_uid, "fieldPath": f"spec.containers{{{container}}}"}
        at = stamp(self.cluster.now())
        body = {"metadata": {}, "involvedObject": about, "reason": reason, "message": message, "type": "Normal"}
        key = (Kind.EVENT, self.namespace, f"event-{self.cluster.store.version}")
        self.cluster.store.create(key, body | {"firstTimestamp": at, "lastTimestamp": at})

    @property
    def pod_uid(self):
        return self.cluster.store.get((Kind.POD, self.namespace, NAME))["metadata"]["uid"]

    def says(self, container, *lines):
        for line in lines:
            text = line if isinstance(line, bytes) else json.dumps(line).encode()
            self.cluster.write_log(self.namespace, NAME, container, text)

    def ends_log(self, container):
        self.cluster.end_log(self.namespace, NAME, container)

    def proves(self, verdict="proven", *, standing=True, number=1, at=None):
        """Let the prover say how a round ended."""
        at = (at or self.cluster.now()).timestamp()
        line = {"round": number, "at": at, "family": "4", "verdict": verdict, "took": 0.2, "standing": standing}
        self.says("prover", line)

    def latches(self, verdict, at=None):
        at = (at or self.cluster.now()).timestamp()
        self.says("prover", {"verdict": verdict, "at": at, "detail": f"scripted {verdict}"})
