"""What a launch does on finding a record under its run id, and when an observer may call a launch abandoned. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from records.model import Phase, Record, Result

ABANDONED_EXIT = 125
"""Podgate's own failure, as ``docker run`` reports its own: the worker never ran."""


@dataclass(frozen=True)
class ReturnHandle:
    """Start nothing: the run is over, or in good hands. ``why`` is for the log."""

    why: str


@dataclass(frozen=True)
class TakeOver:
    """Take the lease with the next epoch, and go on: provision what is missing, or only finish the release."""

    go_on: Literal["provision", "release"]


@dataclass(frozen=True)
class SpecConflict:
    """Another spec was launched under this run id (``job_spec_conflict``)."""


@dataclass(frozen=True)
class Abandon:
    """Nobody can go on: record ``failed`` with ``launch_abandoned``, then clean up."""

    why: str


Recovery = ReturnHandle | TakeOver | SpecConflict | Abandon


@dataclass(frozen=True)
class PodFact:
    """What recovery has to know of the pod there is under the run's name. One that is being deleted counts as vanished.

    ``released``: its gate exited 0, or its worker started; from then on the run needs no launcher.
    """

    uid: str
    released: bool = False


def recover(
    record: Record, *, spec_hash: str, manifest_digest: str | None, pod: PodFact | None, now: datetime
) -> Recovery:
    """Decide what a launch of ``spec_hash`` does with the record it found. First match wins, most final first.

    ``manifest_digest`` is that of the manifests this launch would send itself; ``now`` is the API server's clock. The
    pod matters only once the lease has expired: pass None before, to save the read.
    """
    # Whatever state the other run is in, its handle is not this spec's. A tombstone for an unknown handle is anyone's.
    if record.spec_hash is not None and record.spec_hash != spec_hash:
        return SpecConflict()
    if record.phase.terminal or record.phase is Phase.ACTIVE:
        return ReturnHandle(str(record.phase))
    # A stop is under way; taking over would start what someone wants ended.
    if record.stop is not None:
        return ReturnHandle("a stop was requested")
    if not lease_expired(record, now):
        return ReturnHandle("another launch holds the lease")
    return _expired(record, manifest_digest, pod, now)


def _expired(record: Record, manifest_digest: str | None, pod: PodFact | None, now: datetime) -> Recovery:
    same_pod = record.pod is None or (pod is not None and pod.uid == record.pod.uid)
    # The launcher died right after the release: the next observer will see the worker, however late it is.
    if record.phase is Phase.RELEASING and record.pod is not None and same_pod and pod is not None and pod.released:
        return ReturnHandle("released already")
    if now >= record.provision_by:
        return Abandon("the provision bound has passed")
    # An upgrade in between: what is attested would not be what this version builds.
    if record.manifest_digest is not None and record.manifest_digest != manifest_digest:
        return Abandon("this version builds other manifests than the launch that began")
    # One pod a run: what happened inside the vanished one is not known, so there is never a second.
    if not same_pod:
        return Abandon("the pod has vanished")
    if record.phase is Phase.RELEASING and record.pod is None:
        return Abandon("the record says releasing and names no pod")
    return TakeOver("release" if record.phase is Phase.RELEASING else "provision")


def lease_expired(record: Record, now: datetime, *, grace: timedelta = timedelta()) -> bool:
    """True when nobody has held the launch for ``grace``. A record that never had a lease counts from its creation."""
    ended = record.lease.expires_at if record.lease else record.created_at
    return now >= ended + grace


def abandoned(record: Record, now: datetime, *, after: timedelta) -> bool:
    """True when an observer, who takes nothing over, may say ``launch_abandoned``: no holder for ``after``.

    Ask only when the pod shows that no worker has started: a released worker needs no launcher.
    """
    return record.phase in (Phase.PROVISIONING, Phase.RELEASING) and lease_expired(record, now, grace=after)


def abandoned_result(why: str) -> Result:
    """Return the outcome of a launch that nobody went on with."""
    return Result(
        exit_code=ABANDONED_EXIT,
        reason="launch_abandoned",
        message=f"The launching replica went away: {why}.",
        retriable=True,
        artifacts="absent",
    )
