"""Records, pods and provers as one look finds them. Seconds count from the release; the worker starts at 1 s."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from isolation import names
from launcher.cluster.views import (
    Condition,
    ContainerState,
    ContainerView,
    EventView,
    PodView,
    Running,
    Terminated,
    Waiting,
)
from launcher.decide.progress import Finish, NeedsEvents, NeedsProver, Progress, progress
from launcher.decide.prover_report import ProverReport
from records.birth import opened
from records.model import Evidence, Phase, PodRef, Record
from records.transitions import PodNamed, ReleaseBegun, StopRequested, WorkerStarted, apply

RECORDED = Path(__file__).parents[2] / "data" / "kubernetes-1.34"
RELEASED = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIMEOUT = 60
TOKEN = names.token("run-1")
POD = PodRef(uid="pod-1", name=names.run_name(TOKEN))
PINNED = "registry.test/job@sha256:" + "b" * 64


def at(seconds: float) -> datetime:
    return RELEASED + timedelta(seconds=seconds)


def provisioning(*, named: bool = True, timeout: int = TIMEOUT) -> Record:
    """Created 30 s before the release; its lease ends at the release, its provision bound 270 s later."""
    record = opened(
        token=TOKEN,
        run_id="run-1",
        spec_hash="spec",
        manifest_digest="manifest",
        holder="replica/1",
        now=at(-30),
        lease_until=at(0),
        provision_by=at(270),
        disk_mb=64,
        timeout_seconds=timeout,
    )
    return apply(record, PodNamed(1, POD)) if named else record


def releasing(**fields: Any) -> Record:
    return apply(provisioning(**fields), ReleaseBegun(1, POD, Evidence(start_id="s"), at(0)))


def active(**fields: Any) -> Record:
    record = releasing(**fields)
    deadline = at(1 + record.timeout_seconds)
    return apply(record, WorkerStarted(at(2), at(1), deadline, deadline + timedelta(hours=1), {}))


def stopping(record: Record, seconds: float = 10) -> Record:
    return apply(record, StopRequested(at(seconds), "enough"))


def ended(code: int = 0, seconds: float = 10, reason: str | None = None, **fields: Any) -> Terminated:
    said = reason or ("Completed" if code == 0 else "Error")
    return Terminated(code, said, started_at=at(1), finished_at=at(seconds), **fields)


def pod(
    worker: ContainerState | None = None,
    *,
    prover: ContainerState | None = None,
    gate: ContainerState | None = None,
    keeper: ContainerState | None = None,
    image_id: str = PINNED,
    **fields: Any,
) -> PodView:
    """A released pod whose worker runs, unless said otherwise."""
    init = (
        ContainerView("prover", prover or Running(at(-20))),
        ContainerView("gate", gate or Terminated(0, "Completed", started_at=at(-20), finished_at=at(0))),
    )
    containers = (
        ContainerView("keeper", keeper or Running(at(0))),
        ContainerView("worker", worker or Running(at(1)), image_id=image_id),
    )
    known = PodView(
        uid=POD.uid,
        name=POD.name,
        phase="Running",
        grace_seconds=10,
        active_deadline_seconds=300 + TIMEOUT + 3600,
        generation=1,
        node="node",
        started_at=at(-25),
        init=init,
        containers=containers,
        images=(("worker", PINNED),),
    )
    return replace(known, **fields)


def starting(worker: Waiting | None = None, **fields: Any) -> PodView:
    """A pod whose gate has opened and whose worker does not run yet."""
    return pod(worker or Waiting("PodInitializing"), **({"phase": "Pending"} | fields))


def gated(**fields: Any) -> PodView:
    """A pod whose gate runs."""
    return starting(gate=Running(at(-20)), keeper=Waiting("PodInitializing"), **fields)


def deleted(view: PodView, seconds: float, *, grace: int = 10) -> PodView:
    """Somebody asked for the deletion at that second."""
    return replace(view, deletion_at=at(seconds + grace), deletion_grace=grace, generation=2)


def evicting(seconds: float, reason: str = "EvictionByEvictionAPI") -> tuple[Condition, ...]:
    return (Condition("DisruptionTarget", "True", reason, "drained", at(seconds)),)


def probe_killed(seconds: float, *, why: str = "HTTP probe failed with statuscode: 503") -> tuple[EventView, ...]:
    """What a kubelet writes when it kills the worker for its liveness probe."""
    unhealthy = EventView(
        "Unhealthy",
        f"Liveness probe failed: {why}",
        warning=True,
        container="worker",
        first_at=at(seconds),
        last_at=at(seconds),
    )
    killing = EventView(
        "Killing",
        "Container worker failed liveness probe",
        warning=False,
        container="worker",
        first_at=at(seconds),
        last_at=at(seconds),
    )
    return unhealthy, killing


def line(seconds: float, verdict: str = "proven", *, standing: bool = True, number: int = 1) -> dict[str, Any]:
    when = at(seconds).timestamp()
    return {"round": number, "at": when, "family": "4", "verdict": verdict, "took": 0.2, "standing": standing}


def lost(seconds: float, verdict: str = "open") -> dict[str, Any]:
    return {"verdict": verdict, "at": at(seconds).timestamp(), "detail": "witness"}


def report(*lines: dict[str, Any]) -> ProverReport:
    started = {"prover": "started", "startId": "s"}
    return ProverReport.of_log(b"\n".join(json.dumps(each).encode() for each in (started, *lines)))


STANDING = report(*(line(s, number=s) for s in range(1, 5)))
"""A prover whose proof stood to the end."""


def decided(
    record: Record,
    view: PodView | None,
    seconds: float,
    prover: ProverReport = STANDING,
    events: tuple[EventView, ...] = (),
) -> Progress:
    """Decide as an observer does that gathers whatever it is asked for."""
    asked: dict[str, Any] = {}
    for _ in range(3):
        step = progress(record, view, at(seconds), **asked)
        if isinstance(step, NeedsProver):
            asked["prover"] = prover
        elif isinstance(step, NeedsEvents):
            asked["events"] = events
        else:
            return step
    raise AssertionError("it asked twice for the same facts")


def outcome(*args: Any, **named: Any) -> tuple[str, str, int]:
    """Decide, and say how the run ends."""
    step = decided(*args, **named)
    assert isinstance(step, Finish), step
    return str(step.phase), step.result.reason, step.result.exit_code


def finish(*args: Any, **named: Any) -> Finish:
    step = decided(*args, **named)
    assert isinstance(step, Finish), step
    return step


def recorded(name: str) -> PodView:
    """A pod that a real Kubernetes 1.34 served. Its gate was of an earlier anatomy: there is no prover in it."""
    return PodView.of(json.loads((RECORDED / f"status-{name}.json").read_text()))


def recorded_events(name: str) -> tuple[EventView, ...]:
    events = json.loads((RECORDED / "status-events.json").read_text())[name]
    return tuple(EventView.of(event | {"involvedObject": {"fieldPath": event["fieldPath"] or ""}}) for event in events)


def record_of(view: PodView, phase: Phase, *, timeout: int = 3600) -> Record:
    """A record of that pod, released when its gate ended, and in that phase."""
    gate = view.gate.terminated if view.gate else None
    released_at = (gate.finished_at if gate else None) or view.started_at or RELEASED
    shift = released_at - RELEASED
    ref = PodRef(uid=view.uid, name=view.name)
    fresh = opened(
        token=TOKEN,
        run_id="run-1",
        spec_hash="spec",
        manifest_digest="manifest",
        holder="replica/1",
        now=at(-30) + shift,
        lease_until=at(30) + shift,
        provision_by=at(270) + shift,
        disk_mb=64,
        timeout_seconds=timeout,
    )
    record = apply(fresh, ReleaseBegun(1, ref, Evidence(start_id="s"), released_at))
    if phase is Phase.RELEASING:
        return record
    deadline = released_at + timedelta(seconds=timeout)
    return apply(record, WorkerStarted(released_at, released_at, deadline, deadline, {}))
