"""Reap: what nobody will ever ask for again, and what crashes left. Safe beside any number of launchers and reapers.

Objects are listed first and records last, so that a run which begins meanwhile has its record in the list. Whatever is
to be changed is read again and judged again right before, and deleted under its uid.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from isolation import labels
from launcher.cluster.errors import ClusterError, Conflict
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.decide.retention import Found, Retention, Unreadable, Verdict, of_canary, of_preflight, of_run
from launcher.errors import PodgateError
from launcher.observing import Observes, Stops
from launcher.settings import Settings
from launcher.translate import from_cluster, from_record
from records.codec import Stored
from records.errors import RecordError, RecordInvalid, RecordTooNew
from records.store import RecordStore

_RUN = re.compile(r"podgate-run-(?P<token>[0-9a-f]{20})(-[0-9a-f]{8})?")
_CANARY = re.compile(r"podgate-canary-[0-9a-f]{8}-(open|policed)")
_PREFLIGHT = re.compile(r"podgate-preflight-[0-9a-f]+")

_LISTED = (Kind.POD, Kind.NETWORK_POLICY, Kind.SECRET, Kind.CONFIG_MAP)
_ORDER = {Kind.POD: 0, Kind.SECRET: 1, Kind.NETWORK_POLICY: 2, Kind.CONFIG_MAP: 3}
"""A record goes last, so that a crash in between leaves it to tell what the rest belonged to."""


@dataclass(frozen=True)
class Line:
    """One object, and what became of it."""

    kind: str
    name: str
    why: str

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        """Return the line of a verdict."""
        return cls(verdict.found.kind.value.kind, verdict.found.name, verdict.why)


@dataclass
class Report:
    """What a pass did: objects deleted, runs looked at (and what they are now), objects kept, and what failed."""

    deleted: list[Line] = field(default_factory=list)
    settled: list[Line] = field(default_factory=list)
    kept: list[Line] = field(default_factory=list)
    failed: list[Line] = field(default_factory=list)

    def as_json(self) -> Mapping[str, Any]:
        """Return the report as the command prints it under ``--json``."""
        return {
            outcome: [vars(line) for line in getattr(self, outcome)]
            for outcome in ("deleted", "settled", "kept", "failed")
        }


def retention_of(settings: Settings) -> Retention:
    """Return the settings' own bounds as what the decisions take."""
    bounds = settings.bounds
    return Retention(
        tombstone_kept=timedelta(seconds=bounds.tombstone_kept),
        orphan_age=timedelta(seconds=bounds.orphan_age),
        collect_window=timedelta(seconds=settings.isolation.collect_window_seconds),
        abandoned_after=timedelta(seconds=bounds.abandoned_after),
    )


@dataclass(frozen=True)
class _Group:
    """Objects that are judged together. ``token`` is set for a run's; ``bodies`` are the raw objects of ``found``."""

    name: str
    token: str | None
    found: tuple[Found, ...]
    bodies: tuple[Json, ...]

    @property
    def record(self) -> Json | None:
        return next((b for f, b in zip(self.found, self.bodies, strict=True) if f.kind is Kind.CONFIG_MAP), None)


class Reaper:
    """Reaps one namespace, with the reaper's own rights."""

    def __init__(
        self,
        cluster: AdminPort,
        store: RecordStore,
        observer: Observes,
        stopper: Stops,
        *,
        namespace: str,
        retention: Retention,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._observer = observer
        self._stopper = stopper
        self._namespace = namespace
        self._retention = retention

    async def reap(self, *, dry_run: bool = False) -> Report:
        """Make one pass, and tell what it did. A failure on one run is reported and stops nothing else.

        Raises ClusterError when the namespace cannot be listed: half a list would make objects look abandoned.
        ``dry_run`` tells what would be done and changes nothing.
        """
        report = Report()
        for group in await self._gather():
            try:
                await self._treat(group, report, dry_run=dry_run)
            except (ClusterError, RecordError, PodgateError) as error:
                report.failed.append(Line("Run" if group.token else "Object", group.name, _told(error)))
        return report

    async def _gather(self) -> list[_Group]:
        groups: dict[tuple[str, str | None], list[tuple[Found, Json]]] = defaultdict(list)
        for kind in _LISTED:
            listed = await self._cluster.list(kind, self._namespace, labels={labels.MANAGED_BY: labels.PODGATE})
            for body in listed:
                key = _key(kind, str(body["metadata"]["name"]))
                if key is not None:
                    groups[key].append(
                        (Found.of(kind, body), {"metadata": body["metadata"]} | _record_data(kind, body))
                    )
        return [_group(name, token, members) for (name, token), members in sorted(groups.items(), key=_by_name)]

    async def _treat(self, group: _Group, report: Report, *, dry_run: bool) -> None:
        verdicts = self._judge(group)
        if not dry_run and any(verdict.act != "keep" for verdict in verdicts):
            group = await self._again(group)
            verdicts = self._judge(group)
            if await self._settle(group, verdicts, report):
                group = await self._again(group)
                verdicts = tuple(v for v in self._judge(group) if v.act in ("keep", "delete"))
        for verdict in sorted(verdicts, key=lambda v: _ORDER[v.found.kind]):
            await self._apply(verdict, report, dry_run=dry_run)

    def _judge(self, group: _Group) -> tuple[Verdict, ...]:
        now = self._cluster.now()
        if group.token is not None:
            return of_run(self._read(group.record), group.found, now=now, retention=self._retention)
        if _PREFLIGHT.fullmatch(group.name):
            return tuple(of_preflight(found, now=now, retention=self._retention) for found in group.found)
        return of_canary(group.found, now=now, retention=self._retention)

    def _read(self, body: Json | None) -> Stored | Unreadable | None:
        if body is None:
            return None
        try:
            return self._store.parse(body)
        except (RecordInvalid, RecordTooNew) as error:
            return Unreadable(_told(error))

    async def _again(self, group: _Group) -> _Group:
        """Read the group's objects once more, and a run's record and pod in any case: they may be newer."""
        wanted = dict.fromkeys((found.kind, found.name) for found in group.found)
        if group.token is not None:
            wanted |= dict.fromkeys(((Kind.POD, group.name), (Kind.CONFIG_MAP, group.name)))
        members = []
        for kind, name in sorted(wanted, key=lambda key: _ORDER[key[0]]):
            if kind is Kind.SECRET:  # a Secret is never read: its value is nobody's business; its uid is the list's
                members += [
                    (f, b) for f, b in zip(group.found, group.bodies, strict=True) if (f.kind, f.name) == (kind, name)
                ]
                continue
            body = await self._cluster.get(kind, self._namespace, name)
            if body is not None:
                members.append((Found.of(kind, body), body))
        return _group(group.name, group.token, members)

    async def _settle(self, group: _Group, verdicts: Iterable[Verdict], report: Report) -> bool:
        """Have a run looked at, or its stop finished, where that is wanted; True when it was."""
        wanted = next((verdict for verdict in verdicts if verdict.act in ("observe", "stop")), None)
        if wanted is None or group.token is None:
            return False
        if wanted.act == "stop":
            stored: Stored | None = await self._stopper.stop(group.token)
        else:
            stored = await self._observer.observe(group.token)
        phase = stored.record.phase if stored else "gone"
        report.settled.append(Line("Run", wanted.found.name, f"{wanted.why}; it is {phase} now"))
        return True

    async def _apply(self, verdict: Verdict, report: Report, *, dry_run: bool) -> None:
        found = verdict.found
        if verdict.act == "keep":
            report.kept.append(Line.of(verdict))
            return
        if verdict.act != "delete":
            report.settled.append(Line.of(verdict))
            return
        try:
            there = dry_run or await self._cluster.delete(found.kind, self._namespace, found.name, uid=found.uid)
        except Conflict:
            report.kept.append(Line(found.kind.value.kind, found.name, "another object has its name now"))
        except ClusterError as error:
            report.failed.append(Line(found.kind.value.kind, found.name, _told(error)))
        else:
            if there:
                report.deleted.append(Line.of(verdict))


def _key(kind: Kind, name: str) -> tuple[str, str | None] | None:
    """Say what an object is judged with. Other names (witness, shared and default policies) are not the reaper's."""
    if run := _RUN.fullmatch(name):
        return f"podgate-run-{run['token']}", run["token"]
    if _CANARY.fullmatch(name) or (kind is Kind.CONFIG_MAP and _PREFLIGHT.fullmatch(name)):
        return name, None
    return None


def _record_data(kind: Kind, body: Json) -> Json:
    """Let go of everything but records: a Secret's value is not to be held for longer than its list took."""
    return {"data": body.get("data")} if kind is Kind.CONFIG_MAP else {}


def _group(name: str, token: str | None, members: Sequence[tuple[Found, Json]]) -> _Group:
    return _Group(name, token, tuple(found for found, _ in members), tuple(body for _, body in members))


def _by_name(item: tuple[tuple[str, str | None], Any]) -> str:
    return item[0][0]


def _told(error: ClusterError | RecordError | PodgateError) -> str:
    """Code and sentence, as any caller would be told."""
    if isinstance(error, PodgateError):
        return str(error)
    return str(from_cluster(error) if isinstance(error, ClusterError) else from_record(error))
