"""The two ways in which a record begins: a launch opens it, or a stop leaves a tombstone for an unknown handle."""

from collections.abc import Mapping
from datetime import datetime

from records.model import Lease, Phase, Record, Result, Stop, TimelineEntry

STOPPED_EXIT = 143
"""128 + SIGTERM, what a shell reports for a stopped process."""


def opened(
    *,
    token: str,
    run_id: str,
    spec_hash: str,
    manifest_digest: str | None,
    holder: str,
    now: datetime,
    lease_until: datetime,
    provision_by: datetime,
    disk_mb: int,
    timeout_seconds: int,
    collect_exclude: tuple[str, ...] = (),
    require_result: bool = False,
    labels: Mapping[str, str] | None = None,
) -> Record:
    """Return the record of a launch that begins now: ``provisioning``, held by ``holder`` with epoch 1."""
    return Record(
        token=token,
        run_id=run_id,
        spec_hash=spec_hash,
        manifest_digest=manifest_digest,
        phase=Phase.PROVISIONING,
        created_at=now,
        provision_by=provision_by,
        disk_mb=disk_mb,
        timeout_seconds=timeout_seconds,
        collect_exclude=collect_exclude,
        require_result=require_result,
        lease=Lease(holder=holder, epoch=1, expires_at=lease_until),
        timeline=(TimelineEntry(phase=Phase.PROVISIONING, at=now),),
        labels=dict(labels or {}),
    )


def tombstone(*, token: str, now: datetime, reason: str | None = None) -> Record:
    """Return the record of a run that was stopped before it was launched. Its run id is not known, only its token."""
    return Record(
        token=token,
        run_id=None,
        spec_hash=None,
        phase=Phase.STOPPED,
        created_at=now,
        provision_by=now,
        disk_mb=0,
        timeout_seconds=0,
        stop=Stop(requested_at=now, reason=reason),
        result=stopped_result(reason),
        timeline=(TimelineEntry(phase=Phase.STOPPED, at=now),),
    )


def stopped_result(reason: str | None) -> Result:
    """Return the outcome of a stopped run; there is nothing to collect."""
    return Result(exit_code=STOPPED_EXIT, reason="stopped", message=reason, artifacts="absent")
