"""Records to start from: one being provisioned, and the same in every later phase."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest

from records.birth import opened
from records.model import Evidence, Phase, PodRef, Record, Result
from records.ports import Naming
from records.store import RecordStore
from records.testing import MemoryConfigMaps, no_pause
from records.transitions import Ended, ReleaseBegun, Removed, WorkerStarted, apply

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUN_ID = "run-1"


def token_of(run_id: str) -> str:
    return hashlib.sha256(run_id.encode()).hexdigest()[:20]


@pytest.fixture
def naming() -> Naming:
    return Naming(token_of=token_of, name_of=lambda token: f"podgate-run-{token}")


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def fresh() -> Record:
    return opened(
        token=token_of(RUN_ID),
        run_id=RUN_ID,
        spec_hash="spec",
        manifest_digest="manifest",
        holder="replica-a/1",
        now=NOW,
        lease_until=NOW + timedelta(seconds=30),
        provision_by=NOW + timedelta(seconds=300),
        disk_mb=2048,
        timeout_seconds=900,
    )


@pytest.fixture
def in_phase(fresh):
    """Return the record as it is after the normal course up to a phase."""
    pod = PodRef(uid="pod-1", name="podgate-run-x")
    end = Result(exit_code=0, reason="completed")
    steps = {
        Phase.RELEASING: ReleaseBegun(epoch=1, pod=pod, evidence=Evidence(start_id="s"), at=NOW),
        Phase.ACTIVE: WorkerStarted(
            NOW, NOW, NOW + timedelta(seconds=900), NOW + timedelta(seconds=4500), {"worker": "i"}
        ),
        Phase.SUCCEEDED: Ended(Phase.SUCCEEDED, end, NOW),
        Phase.REMOVED: Removed(NOW),
    }

    def build(phase):
        record = fresh
        for reached, event in steps.items():
            if record.phase is phase:
                return record
            outcome = phase in (Phase.FAILED, Phase.STOPPED, Phase.LOST) and reached is Phase.SUCCEEDED
            record = apply(record, Ended(phase, end, NOW) if outcome else event)
        return record

    return build


@pytest.fixture
def port() -> MemoryConfigMaps:
    return MemoryConfigMaps()


@pytest.fixture
def store(port, naming) -> RecordStore:
    return RecordStore(port, naming, sleep=no_pause)
