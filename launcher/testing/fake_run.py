"""A run's pod on a fake node: prover and gate, then worker and keeper, by the script."""

import asyncio
import json
from collections.abc import Callable

from isolation import names
from launcher.cluster.port import Json, Kind
from launcher.testing.fake_cluster import FakeCluster
from launcher.testing.fake_exec import Handler, Process
from launcher.testing.fake_life import KILLED, Life, config_of
from launcher.testing.fake_programs import Storage, handler_for
from launcher.testing.fake_prover import FakeProver
from launcher.testing.fake_script import At, Script

PROBE_SECONDS = 5.0
"""From the prover's verdict to the worker's death: three failures of a probe every 2 s."""

GATE_LOOKS = 0.05


class RunLife(Life):
    """A run's pod. Plays ``Inside`` for the exec programs."""

    def __init__(self, cluster: FakeCluster, pod: Json, script: Script) -> None:
        super().__init__(cluster, pod, script)
        self.storage = Storage()
        self.prover: FakeProver | None = None
        self._marker: Json | None = None
        self._marked = asyncio.Event()
        self._lost = asyncio.Event()
        self._policy_since: float | None = None

    @property
    def gate_runs(self) -> bool:
        """Whether the gate has not ended yet."""
        return self.status[names.GATE].runs

    def take_marker(self, marker: Json) -> None:
        """The first marker decides."""
        if self._marker is None:
            self._marker = marker
            self._marked.set()

    def handler(self, process: Process) -> Handler | None:
        """Return what plays an exec in one of the containers."""
        return handler_for(process, self)

    async def course(self) -> None:
        """From scheduling to the keeper's quiet."""
        await asyncio.sleep(self.script.schedules_after)
        if self.script.unschedulable:
            self._stay_unscheduled()
            return
        self.bind()
        self.also(self._deadline())
        if self.script.gate_image_error is not None:
            await self.image_error(names.PROVER, self.script.gate_image_error)
        await asyncio.sleep(self.script.starts_after)
        self._start_prover()
        for when, what in self._incidents():
            if when is not None:
                self.also(self._incident(when, what))
        self.start(names.GATE)
        if await self._gate():
            await self._worker()

    def _stay_unscheduled(self) -> None:
        message = "0/1 nodes are available: 1 Insufficient cpu."
        self.event("FailedScheduling", message, warning=True)
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.cluster.store.edit(self.key, lambda pod: pod["status"].__setitem__("conditions", [condition]))

    async def _deadline(self) -> None:
        await asyncio.sleep(self.spec["activeDeadlineSeconds"])
        message = "Pod was active on the node longer than the specified deadline"
        await self.fail("DeadlineExceeded", message, grace=self.spec["terminationGracePeriodSeconds"])

    def _start_prover(self) -> None:
        self.start(names.PROVER)
        config = config_of(self.spec, names.PROVER)
        self.prover = FakeProver(
            self.cluster.clock, config, self.uid, self.script, self._judge, lambda line: self.say(names.PROVER, line)
        )
        self.reach("start")
        self.prover.begin()
        self.also(self._rounds(self.prover))

    async def _rounds(self, prover: FakeProver) -> None:
        while self.status[names.PROVER].runs:
            prover.round()
            if prover.standing:
                self.reach("standing")
            if prover.verdict is not None:
                self._lost.set()
            await asyncio.sleep(prover.pause())

    def _judge(self) -> str:
        """What a round at this moment comes to."""
        now = self.cluster.clock.monotonic()
        if self._policy_since is None and self._policed():
            self._policy_since = now
        fall = self.script.fall
        fallen = self.since(fall.at) if fall is not None else None
        if fall is not None and fallen is not None and (fall.seconds is None or fallen < fall.seconds):
            return fall.verdict
        if not self.script.enforced:
            return self.script.unproven
        if (
            self._policy_since is None
            or now - max(self._policy_since, self.times["start"]) < self.script.enforced_after
        ):
            return "open"
        return "proven"

    def _policed(self) -> bool:
        for policy in self.cluster.store.items(Kind.NETWORK_POLICY, self.namespace):
            selector = policy["spec"]["podSelector"].get("matchLabels")
            # A namespace's default deny selects every pod by an empty selector; it is not what is waited for here.
            if selector and all(self.labels.get(key) == value for key, value in selector.items()):
                return True
        return False

    def _incidents(self) -> tuple[tuple[At | None, Callable[[], None]], ...]:
        script = self.script
        return (
            (script.prover_restarts, self._restart_prover),
            (script.keeper_dies, lambda: self.end(names.KEEPER, 1)),
            (script.evicted, self._evict),
            (script.vanishes, self._vanish),
        )

    async def _incident(self, when: At, what: Callable[[], None]) -> None:
        await self.at(when)
        what()

    def _restart_prover(self) -> None:
        self.status[names.PROVER].restart(self.cluster.now(), KILLED)
        if self.prover is not None:
            self.prover.restart()
        self.write()

    def _evict(self) -> None:
        message = "Pod ephemeral local storage usage exceeds the total limit of containers 32Mi. "
        self.event("Evicted", message, warning=True)
        self.also(self.fail("Evicted", message, grace=0))

    def _vanish(self) -> None:
        self.ending = True
        self.forget()

    async def _gate(self) -> bool:
        """Wait for the marker and decide; False when the gate stays closed."""
        bound = float(config_of(self.spec, names.GATE)["boundSeconds"])
        try:
            async with asyncio.timeout(bound):
                await self._marked.wait()
                await asyncio.sleep(GATE_LOOKS if not self.script.gate_hangs else 2 * bound)
        except TimeoutError:
            verdict: tuple[int, str] | None = (44, "pod_start_timeout")
        else:
            verdict = self._closed()
        code, why = verdict or (0, "opened")
        state = self.prover.state() if self.prover is not None else None
        self.end(names.GATE, code, message=json.dumps({"code": why, "message": f"scripted {why}", "state": state}))
        if verdict is None:
            self.reach("released")
            return True
        self.end(names.PROVER, 0)
        self.status.outcome = {"phase": "Failed"}
        self.write()
        return False

    def _closed(self) -> tuple[int, str] | None:
        """Return why the gate stays closed: exit code and code."""
        marker, seed = self._marker or {}, self.storage.seed
        if marker.get("podUid") != self.uid or marker.get("epoch", 0) < max(1, self.storage.epoch):
            return 42, "marker_refused"
        if seed is None:
            return 45, "seed_failed"
        if marker.get("seedSha256") != seed["sha256"]:
            return 42, "marker_refused"
        return self.prover.release(marker) if self.prover is not None else (41, "gate_restarted")

    async def _worker(self) -> None:
        await asyncio.sleep(self.script.worker_starts_after / 2)
        self.start(names.KEEPER)
        if self.script.worker_image_error is not None:
            await self.image_error(names.WORKER, self.script.worker_image_error)
        await asyncio.sleep(self.script.worker_starts_after / 2)
        self.start(names.WORKER)
        self.reach("worker_started")
        for line in self.script.worker.output:
            self.say(names.WORKER, line)
        code, reason = await self._worker_end()
        self.end(names.WORKER, code, reason)
        self.reach("worker_ended")

    async def _worker_end(self) -> tuple[int, str | None]:
        """Wait until it ends by itself, or is killed because the prover says so."""
        worker = self.script.worker
        try:
            async with asyncio.timeout(worker.seconds):
                await self._lost.wait()
        except TimeoutError:
            return worker.exit_code, worker.reason
        await asyncio.sleep(PROBE_SECONDS)
        self.event("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503", "worker", warning=True)
        # The probe's own grace of one second: a worker that heeds SIGTERM with 0 looks like a success.
        return (0 if worker.on_term == 0 else KILLED), None
