"""launch(spec): decide whose run this is, hold it under a lease, provision it, and say by its code why it failed."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import structlog

from isolation import names
from isolation.digest import spec_hash
from isolation.objects.secret import CapabilityInvalid, check_capability
from isolation.spec import JobSpec, SpecInvalid
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import Kind
from launcher.cluster.views import PodView
from launcher.context import Context
from launcher.decide.recovery import Abandon, PodFact, SpecConflict, TakeOver, abandoned_result, lease_expired, recover
from launcher.errors import PodgateError
from launcher.lease import Lease, superseded
from launcher.observing import Observes
from launcher.ownpod import OwnPod, belongs
from launcher.plan import Plan
from launcher.preflight import Preflight
from launcher.progress import Progress, ProgressEvent, Stage
from launcher.provision import Attempt, provision
from launcher.seed import PreparedSeed, prepare
from launcher.transfer.threads import in_thread
from launcher.translate import from_cluster, from_record, translated
from launcher.witness import read_witness
from records.birth import opened
from records.codec import Stored
from records.errors import IllegalTransition, RecordError, RecordExists
from records.model import Evidence, Phase, Record, Result
from records.transitions import Ended, LeaseTaken

_log = structlog.get_logger()

T = TypeVar("T")

FAILED_EXIT = 125
"""Podgate's own failure: the worker never ran."""

ANYWHERE = MappingProxyType({"4": "192.0.2.1"})
"""A documentation address in the witness's place, for manifests that are built only to see that they can be."""

CLEAN_UP_SECONDS = 20.0
"""How long recording a failure and asking for the pod's deletion may take; observers and the reaper do the rest."""


class CapabilityResolver(Protocol):
    """The operator's own: turns the name of a capability into its value, at launch. We never store the value."""

    async def resolve(self, name: str, run_id: str) -> str:
        """Return 16 to 512 printable ASCII characters. Raises LookupError for a name that it does not know."""


@dataclass(frozen=True)
class Held:
    """A record that we hold, and whether only the release is left to be done."""

    plan: Plan
    lease: Lease
    only_release: bool = False


class Launches:
    """The launches of one replica: at most ``concurrent_launches`` at once, the others wait within their own bound."""

    def __init__(
        self, context: Context, preflight: Preflight, observer: Observes, resolver: CapabilityResolver | None = None
    ) -> None:
        self._context = context
        self._preflight = preflight
        self._observer = observer
        self._resolver = resolver
        self._slots = asyncio.Semaphore(context.settings.bounds.concurrent_launches)
        self._calls = itertools.count(1)

    async def launch(
        self, spec: JobSpec, progress: Progress | None = None, *, inputs_bound_to_root: bool = True
    ) -> None:
        """Start the run, or find that nothing is to be started. Raises PodgateError.

        Bad input is refused before anything is created. A failure after that is in the record, and the pod is gone or
        going.
        """
        tell = _teller(progress, self._context.monotonic)
        with translated("launch"):
            stored = await self._context.store.read(names.token(spec.run_id))
            if stored is not None and not await self._ours_to_take(spec, stored):
                return
        async with self._slots:
            await self._start(spec, stored, tell, bound=inputs_bound_to_root)

    async def _ours_to_take(self, spec: JobSpec, stored: Stored) -> bool:
        """Look at an existing record first: a relaunch depends neither on the preflight nor on the workspace."""
        record = stored.record
        launching = record.phase in (Phase.PROVISIONING, Phase.RELEASING) and record.stop is None
        if launching and lease_expired(record, self._context.cluster.now()) and record.spec_hash == spec_hash(spec):
            return True
        decision = recover(
            record, spec_hash=spec_hash(spec), manifest_digest=None, pod=None, now=self._context.cluster.now()
        )
        if isinstance(decision, SpecConflict):
            raise _conflict(spec)
        _log.info("launch_found", token=record.token, phase=str(record.phase))
        return False

    async def _start(
        self, spec: JobSpec, stored: Stored | None, tell: Callable[[Stage, str], None], *, bound: bool
    ) -> None:
        self._check(spec)
        capability = await self._capability(spec)
        seed = await in_thread(prepare, spec, self._context.settings, bound_to_root=bound)
        with seed:
            with translated("preflight"):
                if stored is None:
                    await self._preflight.ensure()
                held = await self._held(spec, stored)
            if held is not None:
                await self._provisioned(held, seed, capability, tell)

    def _check(self, spec: JobSpec) -> None:
        """Refuse what only the settings tell about a spec (no such egress profile, say) before anything is created."""
        try:
            _ = Plan(spec, self._context.settings.isolation, ANYWHERE).manifest_digest
        except SpecInvalid as error:
            raise PodgateError("job_spec_invalid", str(error), stage="spec", violations=error.violations) from error

    async def _capability(self, spec: JobSpec) -> str | None:
        if spec.capability is None:
            return None
        if self._resolver is None:
            raise _bad_capability("no resolver is configured, so a spec may not name a capability")
        try:
            value = await self._resolver.resolve(spec.capability, spec.run_id)
            check_capability(value)
        except LookupError:
            raise _bad_capability("the operator's resolver does not know it") from None
        except CapabilityInvalid as error:
            raise _bad_capability(str(error)) from None
        return value

    async def _held(self, spec: JobSpec, stored: Stored | None) -> Held | None:
        """Open the record, or take it over; None when it turns out to be in other hands, or over."""
        options = self._context.settings.isolation
        witness_ips = await read_witness(self._context.cluster, self._context.namespace, options)
        plan = Plan(spec, options, witness_ips)
        digest = plan.manifest_digest
        if stored is None:
            try:
                return Held(plan, Lease(self._context, await self._open(plan, digest)))
            except RecordExists as error:
                stored = error.stored
        return await self._taken_over(plan, digest, stored)

    async def _open(self, plan: Plan, digest: str) -> Stored:
        now, bounds, spec = self._context.cluster.now(), self._context.settings.bounds, plan.spec
        return await self._context.store.create(
            opened(
                token=plan.token,
                run_id=spec.run_id,
                spec_hash=plan.spec_hash,
                manifest_digest=digest,
                holder=self._holder(),
                now=now,
                lease_until=now + timedelta(seconds=bounds.lease),
                provision_by=now + timedelta(seconds=bounds.provision),
                disk_mb=spec.disk_mb,
                timeout_seconds=spec.timeout_seconds,
                collect_exclude=spec.collect_exclude,
                require_result=spec.require_result,
                labels=spec.labels,
            )
        )

    def _holder(self) -> str:
        """Name this call among all launches ever, so that a write whose answer was lost is told from another's.

        A number, not the time: two calls of one replica may come at the same moment.
        """
        return f"{self._context.holder}/{next(self._calls)}"

    async def _taken_over(self, plan: Plan, digest: str, stored: Stored) -> Held | None:
        context, now = self._context, self._context.cluster.now()
        decision = recover(
            stored.record,
            spec_hash=plan.spec_hash,
            manifest_digest=digest,
            pod=await self._pod_fact(stored),
            now=now,
        )
        if isinstance(decision, SpecConflict):
            raise _conflict(plan.spec)
        if isinstance(decision, Abandon):
            await self._abandoned(stored, decision.why)
        if not isinstance(decision, TakeOver):
            return None
        taken = LeaseTaken(
            holder=self._holder(), expires_at=now + timedelta(seconds=context.settings.bounds.lease), now=now
        )
        try:
            stored = await context.store.update(stored.record.token, lambda _: taken, known=stored)
        except IllegalTransition as error:
            _log.info("take_over_lost", token=stored.record.token, why=str(error))
            return None
        if stored.record.lease is None or stored.record.lease.holder != taken.holder:
            return None
        _log.info("launch_taken_over", token=stored.record.token, epoch=stored.record.lease.epoch)
        return Held(plan, Lease(context, stored), only_release=decision.go_on == "release")

    async def _pod_fact(self, stored: Stored) -> PodFact | None:
        pod = await self._context.cluster.get(Kind.POD, self._context.namespace, names.run_name(stored.record.token))
        if pod is None or not belongs(pod, stored):
            return None
        view = PodView.of(pod)
        if view.deletion_at is not None:
            return None
        gate = view.gate.terminated if view.gate else None
        return PodFact(uid=view.uid, released=gate is not None and gate.exit_code == 0)

    async def _abandoned(self, stored: Stored, why: str) -> None:
        """Nobody can go on: say so in the record, then clean up, then say so to the caller."""
        event = Ended(Phase.FAILED, abandoned_result(why), at=self._context.cluster.now())
        stored = await self._context.store.update(
            stored.record.token, lambda record: None if record.phase.terminal else event, known=stored
        )
        await self._delete_pod(stored)
        raise PodgateError(
            "launch_abandoned", f"The launch that had begun could not be taken over: {why}.", stage="launch"
        )

    async def _provisioned(
        self, held: Held, seed: PreparedSeed, capability: str | None, tell: Callable[[Stage, str], None]
    ) -> None:
        warnings = () if self._context.settings.isolation.runtime_class else ("runtime_class_unset",)
        for warning in warnings:
            _log.warning(warning, token=held.plan.token)
        attempt = Attempt(self._context, held.plan, held.lease, seed, capability, tell, warnings)
        try:
            await provision(attempt, only_release=held.only_release)
            await self._observer.observe(held.plan.token)
        except asyncio.CancelledError:
            await self._bounded(self._failed(held.lease, _cancelled()))
            raise
        except (PodgateError, RecordError, ClusterError) as error:
            failure = _as_podgate(error)
            overtaken = await self._bounded(self._failed(held.lease, failure))
            raise overtaken or failure from error

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Clean up for a bounded time, also while we are being cancelled; what fails here never hides the cause.

        A second cancellation ends it at once: nothing is left running behind the caller.
        """
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=CLEAN_UP_SECONDS)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not done:
            _log.warning("clean_up_unfinished", why="it took too long")
            return None
        if task.exception() is not None:
            _log.warning("clean_up_unfinished", why=str(task.exception()))
            return None
        return task.result()

    async def _failed(self, lease: Lease, error: PodgateError) -> PodgateError | None:
        """Record first, then delete. A launch not ours any more deletes only what a terminal record left behind.

        Returns what the caller is to be told instead of the error: a launch that stood still while another took it
        over, or was stopped, sees all kinds of trouble that say nothing about the run.
        """
        token = lease.record.token
        event = Ended(
            Phase.FAILED,
            Result(exit_code=FAILED_EXIT, reason=error.code, message=error.message, artifacts="absent"),
            at=self._context.cluster.now(),
            evidence=Evidence(violations=tuple(f"{v.get('path')} {v.get('kind')}" for v in error.violations)),
            epoch=lease.epoch,
        )
        stored = await self._context.store.update(token, lambda record: event if _ends_by_us(record, lease) else None)
        if stored.record.phase.terminal:
            await self._delete_pod(stored)
        return _overtaken(stored.record, lease)

    async def _delete_pod(self, stored: Stored) -> None:
        grace = self._context.settings.isolation.stop_grace_seconds
        await OwnPod(self._context.cluster, self._context.namespace, stored).delete(grace_seconds=grace)


def _ends_by_us(record: Record, lease: Lease) -> bool:
    """A stop writes its own outcome; another replica's launch goes on."""
    ours = record.lease is not None and record.lease.epoch == lease.epoch
    return not record.phase.terminal and record.stop is None and ours


def _overtaken(record: Record, lease: Lease) -> PodgateError | None:
    if record.stop is not None:
        return superseded("a stop was requested")
    if record.lease is None:
        return superseded(f"the run is {record.phase} already")
    return None if record.lease.epoch == lease.epoch else superseded("another replica has taken the launch over")


def _as_podgate(error: PodgateError | RecordError | ClusterError) -> PodgateError:
    if isinstance(error, PodgateError):
        return error
    return from_record(error, "provision") if isinstance(error, RecordError) else from_cluster(error, "provision")


def _conflict(spec: JobSpec) -> PodgateError:
    return PodgateError("job_spec_conflict", f"Another spec was launched as {spec.run_id!r}; that run is as it was.")


def _cancelled() -> PodgateError:
    return PodgateError("launch_cancelled", "The launch was cancelled by its caller.", stage="provision")


def _bad_capability(why: str) -> PodgateError:
    return PodgateError("job_spec_invalid", f"capability: {why}", violations=[{"path": "capability", "message": why}])


def _teller(progress: Progress | None, monotonic: Callable[[], float]) -> Callable[[Stage, str], None]:
    begun = monotonic()

    def tell(stage: Stage, detail: str) -> None:
        if progress is not None:
            progress(ProgressEvent(stage, round(monotonic() - begun, 3), detail))

    return tell
