"""What is kept, and for how long: from a record, the objects found, and the time, to a verdict for each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, Self

from launcher.cluster.port import Json, Kind
from launcher.decide.recovery import abandoned
from records.codec import Stored
from records.model import Phase, Record

Act = Literal["keep", "delete", "observe", "stop"]


@dataclass(frozen=True)
class Retention:
    """How long what is kept."""

    tombstone_kept: timedelta
    """A terminal record, and so its evidence, after its end or removal."""
    orphan_age: timedelta
    """An object whose counterpart is missing, before it is deleted: launches create one object after another."""
    collect_window: timedelta
    """A released run's pod after its end, when the record does not say until when."""
    abandoned_after: timedelta
    """A launch without a holder, or a run beyond its deadline, before the reaper looks at it."""


@dataclass(frozen=True)
class Found:
    """An object of ours as a list or a read gave it."""

    kind: Kind
    name: str
    uid: str
    created_at: datetime
    changed_at: datetime
    deleting: bool
    owners: frozenset[str]

    @classmethod
    def of(cls, kind: Kind, body: Json) -> Self:
        """Read what retention needs of an object's metadata."""
        metadata = body["metadata"]
        created = datetime.fromisoformat(metadata["creationTimestamp"])
        writes = [
            datetime.fromisoformat(entry["time"]) for entry in metadata.get("managedFields", ()) if "time" in entry
        ]
        return cls(
            kind=kind,
            name=metadata["name"],
            uid=metadata["uid"],
            created_at=created,
            changed_at=max([created, *writes]),
            deleting=metadata.get("deletionTimestamp") is not None,
            owners=frozenset(owner["uid"] for owner in metadata.get("ownerReferences", ())),
        )


@dataclass(frozen=True)
class Unreadable:
    """A record that is there and cannot be read. Nothing of its run is judged, so nothing is deleted."""

    why: str


@dataclass(frozen=True)
class Verdict:
    """What is to be done with one object, and why. ``observe`` and ``stop`` are for the record's run."""

    found: Found
    act: Act
    why: str


def of_run(
    record: Stored | Unreadable | None, objects: Sequence[Found], *, now: datetime, retention: Retention
) -> tuple[Verdict, ...]:
    """Judge every object of one run: its record, pod, policy and Secret, as far as they were found."""
    if isinstance(record, Unreadable):
        return tuple(Verdict(found, "keep", record.why) for found in objects)
    run = _Run(record, tuple(objects), now, retention)
    return tuple(run.judge(found) for found in objects)


def of_canary(objects: Sequence[Found], *, now: datetime, retention: Retention) -> tuple[Verdict, ...]:
    """Judge one canary's pod and policy: a preflight deletes its own, so what is old was left by a crash."""
    pods = [found for found in objects if found.kind is Kind.POD]
    return tuple(
        Verdict(found, "keep", "its pod is there")
        if pods and found.kind is not Kind.POD
        else _by_age(found, found.created_at, now, retention, "left by a preflight")
        for found in objects
    )


def of_preflight(found: Found, *, now: datetime, retention: Retention) -> Verdict:
    """Judge a preflight's shared result by its last write: it is valid for minutes, and made again when missing."""
    return _by_age(found, found.changed_at, now, retention, "its result is no longer valid")


@dataclass(frozen=True)
class _Run:
    stored: Stored | None
    objects: tuple[Found, ...]
    now: datetime
    retention: Retention

    def judge(self, found: Found) -> Verdict:
        if found.deleting:
            return Verdict(found, "keep", "being deleted")
        if found.kind is Kind.POD:
            return self._pod(found)
        if found.kind is Kind.CONFIG_MAP:
            return self._record(found)
        return self._dependant(found)

    def _pod(self, found: Found) -> Verdict:
        if self.stored is None or self.stored.uid not in found.owners:
            return _by_age(found, found.created_at, self.now, self.retention, "its record is missing")
        record = self.stored.record
        if not record.phase.terminal:
            return Verdict(found, "keep", "its run is live")
        # A stalled launcher may have created it after the removal: nothing will ever be collected from it.
        if record.phase is Phase.REMOVED:
            return Verdict(found, "delete", "its run was removed")
        if self.now < _collectable_until(record, self.retention):
            return Verdict(found, "keep", "its run can still be collected")
        return Verdict(found, "delete", "its run can no longer be collected")

    def _dependant(self, found: Found) -> Verdict:
        """Judge a policy or a Secret: it goes after its pod, never before, and a pod being deleted may be alive."""
        if self._pods:
            return Verdict(found, "keep", "its pod is there")
        if self.stored is not None and not self.stored.record.phase.terminal:
            return Verdict(found, "keep", "its run is live")
        return _by_age(found, found.created_at, self.now, self.retention, "its pod is missing")

    def _record(self, found: Found) -> Verdict:
        if self.stored is None or self.stored.uid != found.uid:
            return Verdict(found, "keep", "another record has its name now")
        record = self.stored.record
        if not record.phase.terminal:
            return self._live(found, record)
        if self._pods:
            return Verdict(found, "keep", "its pod is there")
        since = record.entered(Phase.REMOVED) or record.ended_at or record.created_at
        until = max(since + self.retention.tombstone_kept, _collectable_until(record, self.retention))
        if self.now < until:
            return Verdict(found, "keep", "its evidence is kept")
        return Verdict(found, "delete", "its evidence was kept long enough")

    def _live(self, found: Found, record: Record) -> Verdict:
        """A live run is never touched; one that nobody looks after any more is looked at, as any status would."""
        patience = self.retention.abandoned_after
        if record.stop is not None and self.now >= record.stop.requested_at + patience:
            return Verdict(found, "stop", "its stop was not finished")
        if abandoned(record, self.now, after=patience):
            return Verdict(found, "observe", "its launch has no holder")
        if record.deadline_at is not None and self.now >= record.deadline_at + patience:
            return Verdict(found, "observe", "its deadline has passed")
        return Verdict(found, "keep", "its run is live")

    @property
    def _pods(self) -> bool:
        return any(found.kind is Kind.POD for found in self.objects)


def _collectable_until(record: Record, retention: Retention) -> datetime:
    """A run that was never released has nothing to collect; its pod is only leftovers of a clean-up that failed."""
    ended = record.ended_at or record.created_at
    if record.collect_until is not None:
        return record.collect_until
    released = record.entered(Phase.RELEASING) is not None
    return ended + (retention.collect_window if released else retention.orphan_age)


def _by_age(found: Found, since: datetime, now: datetime, retention: Retention, why: str) -> Verdict:
    if found.deleting:
        return Verdict(found, "keep", "being deleted")
    if now < since + retention.orphan_age:
        return Verdict(found, "keep", f"{why}, not for long enough")
    return Verdict(found, "delete", why)
