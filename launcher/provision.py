"""From a record to a released worker: make the pod so, prove it, seed it, open the gate.

Pod → policy and Secret → gate runs → seed, while the proof comes to stand → attest again → record ``releasing`` →
marker → gate exits 0 → worker runs. Each step may be a take-over's. A failure is raised; what follows from it is the
business of ``launch.py``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import structlog

from isolation.attest import Violation
from isolation.objects.secret import build_secret
from launcher.cluster.errors import NotFound
from launcher.cluster.port import Json, Kind
from launcher.cluster.views import PodView
from launcher.context import Context
from launcher.decide.gate_verdict import gate_verdict
from launcher.decide.proof import ProverState, families_missing
from launcher.decide.release import Lives, exposure_refused, restarted
from launcher.decide.waiting import course, waiting
from launcher.errors import PodgateError
from launcher.follower import Follower
from launcher.lease import Lease
from launcher.objects import ensure, ensure_secret
from launcher.plan import Plan, digest_of
from launcher.podfeed import PodFeed
from launcher.progress import Stage
from launcher.seed import PreparedSeed, SeedReceipt, send_seed
from launcher.tasks import both, run_beside
from records.model import Evidence, PodRef, Rounds
from records.transitions import PodNamed, ReleaseBegun

_log = structlog.get_logger()

T = TypeVar("T")


@dataclass
class Attempt:
    """One launch call's work on one run, under one epoch. What it learns stays here until it is in the record."""

    context: Context
    plan: Plan
    lease: Lease
    seed: PreparedSeed
    capability: str | None
    tell: Callable[[Stage, str], None]
    warnings: tuple[str, ...] = ()
    sent_pod: Json = field(default_factory=dict)
    sent_policy: Json = field(default_factory=dict)
    pod: PodRef | None = None

    @property
    def until(self) -> datetime:
        """When provisioning has to be over, by the API server's clock; it is the record's, also for a take-over."""
        return self.lease.record.provision_by


async def provision(attempt: Attempt, *, only_release: bool) -> None:
    """Do it all. ``only_release``: a take-over in ``releasing``, which never seeds again.

    Raises PodgateError, ClusterError, RecordError; ``pod_start_timeout`` with what was waited for when the bound is
    over.
    """
    pod = await _made_so(attempt)
    feed = PodFeed(
        attempt.context.cluster,
        attempt.context.namespace,
        _ref(attempt).name,
        _ref(attempt).uid,
        sleep=attempt.context.sleep,
    )
    work = _released(attempt, feed, only_release=only_release)
    try:
        async with asyncio.timeout(_left(attempt)):
            await run_beside(work, feed.run(pod), attempt.lease.keep())
    except TimeoutError:
        raise _too_late(feed.view) from None


async def _made_so(attempt: Attempt) -> Json:
    """Create what is missing, and attest what is there. The pod comes first, so that the others can name its uid."""
    context, plan = attempt.context, attempt.plan
    attempt.sent_pod = plan.pod(attempt.lease.stored.uid)
    pod = await ensure(context, Kind.POD, attempt.sent_pod, until=attempt.until)
    attempt.pod = PodRef(uid=pod["metadata"]["uid"], name=pod["metadata"]["name"])
    attempt.tell("created", attempt.pod.name)
    attempt.sent_policy = plan.policy(attempt.pod.uid)
    policy, _ = await both(_policy(attempt), both(_secret(attempt), _named(attempt)))
    _attested(attempt, pod, policy)
    return pod


async def _policy(attempt: Attempt) -> Json:
    return await ensure(attempt.context, Kind.NETWORK_POLICY, attempt.sent_policy, until=attempt.until)


async def _secret(attempt: Attempt) -> None:
    if attempt.capability is None:
        return
    body = build_secret(
        attempt.plan.spec,
        attempt.plan.options,
        value=attempt.capability,
        pod=attempt.plan.owner(_ref(attempt).uid),
        record_uid=attempt.lease.stored.uid,
    )
    await ensure_secret(attempt.context, body, until=attempt.until)


async def _named(attempt: Attempt) -> None:
    await attempt.lease.write(lambda _: PodNamed(epoch=attempt.lease.epoch, pod=_ref(attempt)))


def _attested(attempt: Attempt, pod: Json, policy: Json) -> None:
    """Compare both with what was sent. Raises ``attestation_failed`` with every path that differs."""
    found = [
        *(("pod", v) for v in attempt.plan.differences(attempt.sent_pod, pod, uid=_ref(attempt).uid)),
        *(("policy", v) for v in attempt.plan.differences(attempt.sent_policy, policy)),
    ]
    if found:
        raise PodgateError(
            "attestation_failed",
            f"The cluster stored something else than what was sent: {_in_words(found)}. Nothing untrusted was started.",
            stage="attestation",
            violations=[{"object": what, **violation.as_json()} for what, violation in found],
        )


def _in_words(found: list[tuple[str, Violation]]) -> str:
    shown = "; ".join(f"{what} {v.path} {v.kind}" + (f" ({v.hint})" if v.hint else "") for what, v in found[:5])
    return shown if len(found) <= 5 else f"{shown}; and {len(found) - 5} more"  # noqa: PLR2004 - a sentence, not a list


async def _released(attempt: Attempt, feed: PodFeed, *, only_release: bool) -> None:
    lives = await feed.until(lambda pod: _gate_seen(attempt, pod))
    if isinstance(lives, Lives):
        attempt.tell("gate", "")
        await _through_the_gate(attempt, feed, lives, only_release=only_release)
    elif not only_release:
        await _refuse_ended(feed)
    await _gate_opened(attempt, feed)
    await feed.until(_worker_started)
    attempt.tell("started", "")


def _gate_seen(attempt: Attempt, pod: PodView | None) -> "Lives | bool | None":
    """Return its lives once the gate runs, False once it has ended (a take-over that comes late), None to wait."""
    pod = _present(pod)
    if again := restarted(pod):
        raise PodgateError("gate_restarted", f"Before the release {again}.", stage="proof")
    if pod.gate is not None and pod.gate.terminated is not None:
        return False
    if missing := families_missing(pod.ips, attempt.plan.witness_ips):
        raise PodgateError(
            "witness_family_missing",
            f"The pod has an IPv{' and IPv'.join(missing)} address, and the witness's Service has none of that family.",
            stage="proof",
        )
    if pod.gate is not None and pod.gate.running is not None and pod.ips:
        return Lives.of(pod)
    _not_stuck(pod)
    return None


def _not_stuck(pod: PodView) -> None:
    wait = waiting(pod)
    if wait is not None and wait.fatal:
        raise PodgateError(wait.code, wait.message, stage="provision")


async def _through_the_gate(attempt: Attempt, feed: PodFeed, lives: Lives, *, only_release: bool) -> None:
    follower = Follower(attempt.context, _ref(attempt).name, gate_alive=lambda: _gate_runs(feed.view))
    await run_beside(_to_marker(attempt, feed, follower, lives, only_release=only_release), follower.run())


async def _to_marker(attempt: Attempt, feed: PodFeed, follower: Follower, lives: Lives, *, only_release: bool) -> None:
    if only_release:
        # An earlier holder's marker may still arrive, so the gate may open at any moment from here on.
        await run_beside(feed.until(_gate_ended), _mark_again(attempt, follower))
        return
    marker = await run_beside(_marker_after_seed(attempt, follower, lives), _refuse_ended(feed))
    await attempt.lease.hold()
    await run_beside(feed.until(_gate_ended), follower.mark(marker))


async def _mark_again(attempt: Attempt, follower: Follower) -> None:
    marker = await _marker_again(attempt, follower)
    await attempt.lease.hold()
    await follower.mark(marker)


async def _marker_after_seed(attempt: Attempt, follower: Follower, lives: Lives) -> dict[str, Any]:
    receipt, _ = await both(_seeded(attempt), _proven(attempt, follower))
    policy = await _read_again(attempt, lives)
    state = _still_standing(attempt, follower)
    evidence = _evidence(attempt, state, receipt, policy)
    event = ReleaseBegun(
        epoch=attempt.lease.epoch, pod=_ref(attempt), evidence=evidence, at=attempt.context.cluster.now()
    )
    await attempt.lease.write(lambda _: event)
    return _marker(attempt, state.start_id, receipt.sha256)


async def _marker_again(attempt: Attempt, follower: Follower) -> dict[str, Any]:
    """A take-over in ``releasing``: the same prover, its proof standing, and the seed that is in place already."""
    known = attempt.lease.record.evidence
    state = await follower.standing(within=attempt.context.settings.bounds.first_proof)
    await _read_again(attempt, None)
    if state.start_id != known.start_id:
        raise PodgateError("gate_restarted", "The prover restarted after the release had begun.", stage="release")
    if known.seed_sha256 is None:
        raise PodgateError("launch_abandoned", "The record does not say which seed is in place.", stage="release")
    return _marker(attempt, state.start_id, known.seed_sha256)


def _marker(attempt: Attempt, start_id: str, seed: str) -> dict[str, Any]:
    return {"podUid": _ref(attempt).uid, "startId": start_id, "epoch": attempt.lease.epoch, "seedSha256": seed}


async def _seeded(attempt: Attempt) -> SeedReceipt:
    try:
        receipt = await send_seed(
            attempt.context.cluster,
            attempt.context.namespace,
            _ref(attempt).name,
            attempt.seed,
            epoch=attempt.lease.epoch,
            idle_seconds=attempt.context.settings.bounds.transfer_idle,
            sleep=attempt.context.sleep,
        )
    except NotFound as error:  # an exec may know it before the watch does
        raise PodgateError("sandbox_lost", "The run's pod went while it was seeded.", stage="seed") from error
    attempt.tell("seeded", f"{receipt.bytes} bytes")
    return receipt


async def _proven(attempt: Attempt, follower: Follower) -> ProverState:
    state = await follower.standing(within=attempt.context.settings.bounds.first_proof)
    attempt.tell("proven", f"by {state.by}")
    return state


async def _read_again(attempt: Attempt, first: Lives | None) -> Json:
    """Attest a second time, on what is stored right before the release; return the policy."""
    cluster, namespace = attempt.context.cluster, attempt.context.namespace
    pod, policy = await both(
        cluster.get(Kind.POD, namespace, _ref(attempt).name),
        cluster.get(Kind.NETWORK_POLICY, namespace, attempt.sent_policy["metadata"]["name"]),
    )
    view = _present(None if pod is None else PodView.of(pod))
    if again := restarted(view, first):
        raise PodgateError("gate_restarted", f"Before the release {again}.", stage="release")
    if pod is None or policy is None:
        raise PodgateError("attestation_failed", "The run's NetworkPolicy is gone.", stage="attestation")
    _attested(attempt, pod, policy)
    return policy


def _still_standing(attempt: Attempt, follower: Follower) -> ProverState:
    """Take the newest state; a fall since the first success was raised by the follower, or will be by the gate."""
    state = follower.state
    if state is None or not state.standing:
        raise PodgateError(
            "probe_unusable_before_release", "The prover's state is not known any more.", stage="release"
        )
    if reachable := exposure_refused(state, attempt.context.settings.node_exposure):
        raise PodgateError("node_reachable", f"The pod can reach {reachable}.", stage="release")
    return state


def _evidence(attempt: Attempt, state: ProverState, receipt: SeedReceipt, policy: Json) -> Evidence:
    warnings = (*attempt.warnings, *(("node_reachable",) if state.node_exposure else ()))
    return Evidence(
        pod_uid=_ref(attempt).uid,
        pod_digest=digest_of(attempt.sent_pod),
        policy_digest=digest_of(attempt.sent_policy),
        policy_uid=policy["metadata"]["uid"],
        policy_name=policy["metadata"]["name"],
        start_id=state.start_id,
        witness_backends=dict(state.backends),
        rounds=rounds_of(state),
        by=state.by,
        policy_latency_seconds=state.policy_latency_seconds,
        node_exposure=state.node_exposure,
        seed_sha256=receipt.sha256,
        seed_bytes=receipt.bytes,
        warnings=warnings,
    )


def rounds_of(state: ProverState) -> Rounds:
    """Return the prover's counts as evidence keeps them."""
    return Rounds(
        count=state.rounds,
        proven=state.proven_rounds,
        first_at=state.first_round_at,
        first_good_at=state.first_good_at,
        standing_since=state.standing_since,
        last_at=state.now - state.last.age if state.last else None,
        last_verdict=state.last.verdict if state.last else None,
    )


async def _refuse_ended(feed: PodFeed) -> None:
    """Raise what ended the gate before our marker; its execs would only say that nothing answers any more.

    A gate that opened although no release was recorded was opened by someone else: that run is not to be trusted.
    """
    pod = await feed.until(_gate_ended)
    _opened_or_refused(pod)
    raise PodgateError("gate_restarted", "The gate opened before this run's release was recorded.", stage="release")


async def _gate_opened(attempt: Attempt, feed: PodFeed) -> None:
    _opened_or_refused(await feed.until(_gate_ended))
    attempt.tell("released", "")


def _opened_or_refused(pod: PodView) -> None:
    if refusal := gate_verdict(pod):
        raise PodgateError(refusal.code, refusal.message, stage="release")


def _gate_ended(pod: PodView | None) -> PodView | None:
    pod = _present(pod)
    return pod if pod.gate is not None and pod.gate.terminated is not None else None


def _gate_runs(pod: PodView | None) -> bool:
    return pod is not None and pod.gate is not None and pod.gate.running is not None


def _worker_started(pod: PodView | None) -> bool | None:
    """Wait for the worker's process, also one that has ended by now; what became of it is for the observer."""
    pod = _present(pod)
    worker = pod.worker
    if worker is not None and (worker.running is not None or worker.terminated is not None):
        return True
    _not_stuck(pod)
    return None


def _present(pod: PodView | None) -> PodView:
    if pod is None:
        raise PodgateError("sandbox_lost", "The run's pod is gone.", stage="provision")
    if pod.deletion_at is not None:
        raise PodgateError("sandbox_lost", "The run's pod is being deleted.", stage="provision")
    if pod.phase == "Failed" and (pod.gate is None or pod.gate.terminated is None):
        raise PodgateError("pod_start_failed", pod.message or pod.reason or "The pod failed.", stage="provision")
    return pod


def _too_late(pod: PodView | None) -> PodgateError:
    wait = waiting(pod) if pod is not None else None
    if wait is not None:
        return PodgateError(wait.code, f"The provision bound passed: {wait.message}", stage="provision")
    what = "the pod was not seen" if pod is None else course(pod)
    return PodgateError("pod_start_timeout", f"The provision bound passed: {what}.", stage="provision")


def _left(attempt: Attempt) -> float:
    return max(0.0, (attempt.until - attempt.context.cluster.now()).total_seconds())


def _ref(attempt: Attempt) -> PodRef:
    if attempt.pod is None:
        raise RuntimeError("the pod's uid is known from its creation on")
    return attempt.pod
