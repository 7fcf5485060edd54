"""What was seen of a run at one look, and the closed set of answers to "what is to be written now?". Values only."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from launcher.cluster.views import ContainerView, EventView, PodView, Terminated
from launcher.decide.disruption import UNKNOWN_END, Disruption, disruption_of
from launcher.decide.gate_verdict import gate_evidence
from launcher.decide.outcome import Outcome
from launcher.decide.prover_report import ProverReport
from launcher.decide.waiting import course, waiting
from records.model import Evidence, Phase, Record, Result


@dataclass(frozen=True)
class Unchanged:
    """Nothing to write. ``message`` says what the run waits for, when it waits."""

    message: str | None = None


@dataclass(frozen=True)
class Noted:
    """The run goes on, and something was seen that nobody may be able to see later."""

    evidence: Evidence
    message: str


@dataclass(frozen=True)
class Started:
    """The worker was seen started; look again, it may have ended already."""

    started_at: datetime
    deadline_at: datetime
    collect_until: datetime
    image_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Finish:
    """The run's outcome. ``delete_pod``: something of it may still run; delete it, after the outcome is written."""

    phase: Phase
    result: Result
    evidence: Evidence | None
    delete_pod: bool


@dataclass(frozen=True)
class NeedsProver:
    """An end is near: first the prover's own word is wanted."""


@dataclass(frozen=True)
class NeedsEvents:
    """The pod's Events may tell what its status does not."""


Progress = Unchanged | Noted | Started | Finish | NeedsProver | NeedsEvents


@dataclass(frozen=True)
class Windows:
    """Times that are settings: how long after its deadline a run's files are kept, and when a launch is abandoned."""

    collect: timedelta = timedelta(seconds=3600)
    abandoned_after: timedelta = timedelta(seconds=60)


@dataclass(frozen=True)
class Look:
    """One look at a run that has a pod. ``now`` is the API server's clock; times of containers are their node's.

    ``prover`` and ``events`` cost a request more each, and are gathered only when a decision asks; None: not asked for.
    """

    record: Record
    pod: PodView
    now: datetime
    prover: ProverReport | None = None
    events: tuple[EventView, ...] | None = None
    windows: Windows = Windows()

    @property
    def worker(self) -> ContainerView | None:
        """The worker, when the kubelet has published it."""
        return self.pod.worker

    @property
    def end(self) -> Terminated | None:
        """How the worker ended, when its own end was seen: an invented one is none."""
        end = self.worker.terminated if self.worker else None
        return None if end is not None and end.reason == UNKNOWN_END else end

    @property
    def running(self) -> bool:
        """Whether the worker runs, by its kubelet's last word."""
        return self.worker is not None and self.worker.running is not None

    @property
    def disruption(self) -> Disruption | None:
        """What disrupted the pod; meaningless once a stop was requested, since then the deletion is ours."""
        return disruption_of(self.pod)

    @property
    def over(self) -> bool:
        """Whether the pod has ended as a whole, which is said only after its containers have."""
        return self.pod.phase in ("Failed", "Succeeded")


def worker_started_at(pod: PodView) -> datetime | None:
    """When the worker's process started, by its node; None when it is not known to have."""
    worker = pod.worker
    if worker is None:
        return None
    if worker.running is not None:
        return worker.running.started_at
    end = worker.terminated
    return None if end is None or end.reason == UNKNOWN_END else end.started_at


def waits_for(pod: PodView | None, events: tuple[EventView, ...] | None) -> str:
    """Say in words what a run waits for whose worker has not started."""
    if pod is None:
        return "the pod is not made yet"
    held_up = waiting(pod, events)
    return course(pod) if held_up is None else held_up.message


def never_ran(outcome: Outcome, pod: PodView | None) -> Finish:
    """An outcome without a worker: there is nothing to collect, and nothing to say about its isolation."""
    result = outcome.result.model_copy(update={"artifacts": "absent"})
    evidence = gate_evidence(pod) if pod is not None else None
    return Finish(outcome.phase, result, evidence, delete_pod=True)
