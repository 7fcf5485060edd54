from datetime import timedelta

import pytest

from records.errors import (
    IllegalTransition,
    OutcomeUnknown,
    RecordConflict,
    RecordExists,
    RecordInvalid,
    RecordMissing,
    Stale,
)
from records.model import Evidence, Phase, PodRef, Result
from records.store import TRIES
from records.transitions import Ended, EvidenceNoted, ReleaseBegun, StopRequested

pytestmark = pytest.mark.anyio

FAILED = Result(exit_code=1, reason="worker_failed")


def ends(now):
    return lambda record: None if record.phase.terminal else Ended(Phase.FAILED, FAILED, now)


async def test_a_created_record_is_read_back(store, fresh):
    stored = await store.create(fresh)
    assert await store.read(fresh.token) == stored
    assert stored.record == fresh


async def test_reading_an_unknown_token_gives_none(store):
    assert await store.read("0" * 20) is None


async def test_creating_a_second_record_tells_what_is_there(store, fresh):
    first = await store.create(fresh)
    other = fresh.evolve(lease=fresh.lease.evolve(holder="replica-b/1"))
    with pytest.raises(RecordExists) as caught:
        await store.create(other)
    assert caught.value.stored == first


@pytest.mark.parametrize("fault", ["lost-before", "lost-after", "stale"])
async def test_a_create_whose_answer_was_lost_finds_its_own_record(store, port, fresh, fault):
    port.faults.append(fault)
    assert (await store.create(fresh)).record == fresh


async def test_a_lost_create_finds_its_own_record_even_when_a_stop_was_recorded_meanwhile(store, fresh, now):
    await store.create(fresh)
    await store.update(fresh.token, lambda _: StopRequested(now))
    assert (await store.create(fresh)).record.stop is not None


async def test_updating_an_unknown_token_says_so(store, now):
    with pytest.raises(RecordMissing):
        await store.update("0" * 20, ends(now))


async def test_an_update_that_wants_nothing_writes_nothing(store, port, fresh):
    created = await store.create(fresh)
    assert await store.update(fresh.token, lambda _: None) == created
    assert port.calls == ["create", "get"]


async def test_an_event_that_says_nothing_new_writes_nothing(store, port, fresh):
    created = await store.create(fresh)
    assert await store.update(fresh.token, lambda _: EvidenceNoted(Evidence()), known=created) == created
    assert port.calls == ["create"]


async def test_a_stored_record_in_hand_saves_the_read(store, port, fresh, now):
    created = await store.create(fresh)
    assert (await store.update(fresh.token, ends(now), known=created)).record.phase is Phase.FAILED
    assert port.calls == ["create", "replace"]


async def test_a_stale_record_in_hand_is_read_again_and_decided_again(store, fresh, now):
    created = await store.create(fresh)
    await store.update(fresh.token, lambda _: EvidenceNoted(Evidence(gate_exit=0)))
    ended = await store.update(fresh.token, ends(now), known=created)
    assert (ended.record.phase, ended.record.evidence.gate_exit) == (Phase.FAILED, 0)


async def test_a_transition_no_longer_wanted_after_the_reread_is_no_error(store, fresh, now):
    created = await store.create(fresh)
    lost = Result(exit_code=1, reason="node_lost")
    await store.update(fresh.token, lambda _: Ended(Phase.LOST, lost, now))
    assert (await store.update(fresh.token, ends(now), known=created)).record.phase is Phase.LOST


async def test_a_release_that_meets_a_stop_at_the_last_moment_is_refused(store, fresh, now):
    created = await store.create(fresh)
    await store.update(fresh.token, lambda _: StopRequested(now))
    release = ReleaseBegun(1, PodRef(uid="p", name="n"), Evidence(), now)
    with pytest.raises(IllegalTransition, match="stop"):
        await store.update(fresh.token, lambda _: release, known=created)


@pytest.mark.parametrize("fault", ["lost-before", "lost-after"])
async def test_a_replace_whose_answer_was_lost_is_settled_by_reading(store, port, fresh, now, fault):
    await store.create(fresh)
    seen = []
    port.faults.append(fault)
    ended = await store.update(fresh.token, lambda record: seen.append(record.phase) or ends(now)(record))
    assert ended.record.phase is Phase.FAILED
    assert seen == [Phase.PROVISIONING, Phase.PROVISIONING if fault == "lost-before" else Phase.FAILED]


async def test_after_eight_conflicts_nothing_was_written_and_the_caller_is_told(store, port, fresh, now):
    await store.create(fresh)
    port.faults.extend(["stale"] * TRIES)
    with pytest.raises(RecordConflict) as caught:
        await store.update(fresh.token, ends(now))
    assert (caught.value.tries, (await store.read(fresh.token)).record) == (8, fresh)


async def test_seven_conflicts_are_survived(store, port, fresh, now):
    await store.create(fresh)
    port.faults.extend(["stale"] * (TRIES - 1))
    assert (await store.update(fresh.token, ends(now))).record.phase is Phase.FAILED


async def test_an_answer_that_stays_lost_is_told_as_such(store, port, fresh, now):
    await store.create(fresh)
    port.faults.extend(["lost-before"] * TRIES)
    with pytest.raises(OutcomeUnknown):
        await store.update(fresh.token, ends(now))


async def test_a_record_deleted_between_read_and_replace_is_missing(store, fresh, now):
    created = await store.create(fresh)
    await store.delete(created)
    with pytest.raises(RecordMissing):
        await store.update(fresh.token, ends(now), known=created)


async def test_a_record_made_anew_under_the_name_is_not_taken_for_the_old_one(store, fresh, now):
    old = await store.create(fresh)
    await store.delete(old)
    await store.create(fresh.evolve(created_at=now + timedelta(hours=1)))
    with pytest.raises(Stale):
        await store.delete(old)


async def test_an_invalid_record_is_not_overwritten(store, port, fresh, now):
    await store.create(fresh)
    name = next(iter(port.objects))
    port.objects[name]["data"] = {"record.json": "{}"}
    with pytest.raises(RecordInvalid):
        await store.update(fresh.token, ends(now))
    assert port.objects[name]["data"] == {"record.json": "{}"}
