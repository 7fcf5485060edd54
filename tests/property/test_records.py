import asyncio
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.birth import opened
from records.canonical import ARTIFACT_LIMIT, canonical
from records.codec import RECORD_LIMIT, decode, encode, from_object, to_object
from records.errors import IllegalTransition, RecordError, RecordInvalid, RecordTooNew
from records.model import Evidence, Phase, PodRef, Record, Result, Rounds
from records.ports import Naming
from records.store import RecordStore
from records.testing import MemoryConfigMaps, no_pause
from records.transitions import (
    REACHABLE,
    Ended,
    EvidenceNoted,
    LeaseRenewed,
    LeaseTaken,
    PodNamed,
    ReleaseBegun,
    Removed,
    ResultFilled,
    StopRequested,
    WorkerStarted,
    apply,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TOKEN = "ab" * 10
NAMING = Naming(token_of=lambda _: TOKEN, name_of=lambda token: f"podgate-run-{token}")

times = st.integers(0, 5000).map(lambda s: NOW + timedelta(seconds=s))
epochs = st.integers(1, 3)
pods = st.sampled_from(["p1", "p2"]).map(lambda uid: PodRef(uid=uid, name="n"))
leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
artifacts = st.dictionaries(
    st.text(max_size=8),
    st.recursive(leaves | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c), max_leaves=8),
)
results = st.fixed_dictionaries(
    {
        "exit_code": st.integers(0, 2),
        "reason": st.sampled_from(["completed", "worker_failed"]),
        "message": st.none() | st.text(max_size=600),
        "result_artifact": st.none() | artifacts,
        "artifacts": st.sampled_from(["unknown", "collected", "absent"]),
    }
).map(Result.model_validate)
numbers = st.floats(allow_nan=False, allow_infinity=False)
rounds = st.fixed_dictionaries({"count": st.integers(), "first_at": st.none() | numbers}).map(Rounds.model_validate)
evidence = st.fixed_dictionaries(
    {
        "pod_uid": st.none() | st.text(),
        "image_ids": st.dictionaries(st.text(), st.text()),
        "rounds": st.none() | rounds,
        "end": st.sampled_from([None, "open", "standing"]),
        "warnings": st.lists(st.text()).map(tuple),
    }
).map(Evidence.model_validate)
events = st.one_of(
    st.builds(LeaseTaken, holder=st.sampled_from("ab"), expires_at=times, now=times),
    st.builds(LeaseRenewed, epoch=epochs, expires_at=times),
    st.builds(PodNamed, epoch=epochs, pod=pods),
    st.builds(EvidenceNoted, evidence=evidence),
    st.builds(ReleaseBegun, epoch=epochs, pod=pods, evidence=evidence, at=times),
    st.builds(WorkerStarted, times, times, times, times, st.just({"worker": "i"})),
    st.builds(Ended, phase=st.sampled_from(list(Phase)), result=results, at=times, evidence=st.none() | evidence),
    st.builds(StopRequested, at=times, reason=st.none() | st.text()),
    st.builds(ResultFilled, result=results),
    st.builds(Removed, at=times),
)


def fresh() -> Record:
    return opened(
        token=TOKEN,
        run_id="r",
        spec_hash="s",
        manifest_digest=None,
        holder="a",
        now=NOW,
        lease_until=NOW + timedelta(seconds=30),
        provision_by=NOW + timedelta(seconds=300),
        disk_mb=1,
        timeout_seconds=1,
    )


def attempted(record: Record, event: object) -> Record:
    try:
        return apply(record, event)
    except IllegalTransition:
        return record


@st.composite
def histories(draw):
    """Events are drawn in the order of a life with disorder mixed in, so that late phases are reached, too."""
    record, past = fresh(), []
    for event in draw(st.lists(events, max_size=14)):
        past.append(record)
        record = attempted(record, event)
    return [*past, record]


@given(histories())
def test_phases_follow_one_another_only_as_the_table_says(history):
    for before, after in pairwise(history):
        assert after.phase is before.phase or after.phase in REACHABLE[before.phase]


@given(st.sampled_from([Phase.FAILED, Phase.STOPPED, Phase.LOST]), results, st.lists(events, max_size=10))
def test_terminal_is_terminal(outcome, result, later):
    record = ended = apply(fresh(), Ended(outcome, result, NOW))
    for event in later:
        record = attempted(record, event)
        assert record.phase in (outcome, Phase.REMOVED)
        if record.result is not None:
            assert (record.result.exit_code, record.result.reason) == (ended.result.exit_code, ended.result.reason)
    assert record.evidence == ended.evidence


@given(histories(), events)
def test_saying_an_event_again_changes_nothing(history, event):
    once = attempted(history[-1], event)
    assert attempted(once, event) == once or isinstance(event, LeaseTaken)


@given(histories())
def test_a_stop_once_recorded_is_never_lost_and_never_released(history):
    for before, after in pairwise(history):
        if before.stop is not None:
            assert after.stop == before.stop
            assert (before.phase, after.phase) != (Phase.PROVISIONING, Phase.RELEASING)


@given(histories())
def test_a_record_survives_being_written_and_read(history):
    text = encode(history[-1]).decode()
    back = decode(text)
    assert back == history[-1]
    assert encode(back).decode() == text


@given(st.text(max_size=200) | st.recursive(leaves, st.lists).map(json.dumps))
def test_text_that_is_no_record_is_invalid_and_nothing_else(text):
    with pytest.raises((RecordInvalid, RecordTooNew)):
        decode(text)


@given(histories(), st.data())
def test_any_damage_to_stored_text_is_told_as_a_record_error(history, data):
    text = encode(history[-1]).decode()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 4)) :]
    try:
        decode(damaged)
    except RecordError as error:
        assert isinstance(error, RecordInvalid | RecordTooNew)  # noqa: PT017 - text that is still a record may be read


JSON = st.recursive(leaves | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c), max_leaves=5)


@given(histories(), st.data(), JSON)
def test_any_value_put_in_any_field_is_told_as_a_record_error(history, data, value):
    fields = json.loads(encode(history[-1]))
    fields[data.draw(st.sampled_from(sorted(fields)))] = value
    body = to_object(history[-1], NAMING)
    body["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    body["data"]["record.json"] = json.dumps(fields)
    try:
        from_object(body, NAMING)
    except RecordError as error:
        assert isinstance(error, RecordInvalid | RecordTooNew)  # noqa: PT017 - the value may be the right one


wide = st.sampled_from(["x", "é", "\U0001f600", '"', "\\", "\x00"])


@settings(max_examples=25, deadline=None)
@given(wide, st.integers(500, 5000), st.integers(1, 300), st.integers(0, 64))
def test_no_record_is_larger_than_its_limit(character, length, count, excluded):
    text = character * length
    many = {f"{i}{text}": text for i in range(count)}
    full = Evidence(
        **dict.fromkeys(("pod_uid", "pod_digest", "policy_digest", "policy_uid", "start_id", "gate_message"), text)
    ).evolve(
        witness_backends=many,
        image_ids=many,
        violations=(text,) * 64,
        warnings=(text,) * 16,
        node_exposure=(text,) * 16,
    )
    artifact = {"a": "x" * (ARTIFACT_LIMIT - 8)}
    assert len(canonical(artifact)) == ARTIFACT_LIMIT
    result = Result(
        exit_code=1, reason=text, message=text, diagnostic=text, result_artifact=artifact, artifacts="collected"
    )
    record = fresh().evolve(labels=many, collect_exclude=(text,) * excluded)
    record = apply(record, Ended(Phase.FAILED, result, NOW, evidence=full))
    data = encode(record)
    back = decode(data.decode())
    assert len(data) <= RECORD_LIMIT
    assert (back.phase, back.result.exit_code, back.result.reason) == (record.phase, 1, record.result.reason)


@pytest.mark.parametrize("writers", [2, 8])
@settings(max_examples=30, deadline=None)
@given(faults=st.lists(st.sampled_from(["none", "stale", "lost-before", "lost-after"]), max_size=6))
def test_concurrent_writers_lose_no_update(writers, faults):
    assert asyncio.run(_race(writers, faults, tries=64)) == {f"w{n}" for n in range(min(writers, 16))}


@pytest.mark.parametrize("faults", [[], ["lost-after"] * 20, ["lost-before", "stale"] * 10])
def test_thirty_two_writers_lose_no_update(faults):
    written = asyncio.run(_race(32, faults, tries=200))
    assert written == {f"w{n}" for n in range(32)}


async def _race(writers, faults, tries):
    """Let each writer add its own line to the evidence, and return the lines that stayed."""
    port = MemoryConfigMaps()
    store = RecordStore(port, NAMING, sleep=no_pause, tries=tries)
    await store.create(fresh())
    port.faults.extend(faults)

    def adds(number):
        news = EvidenceNoted(
            Evidence(image_ids={f"w{number}": "x"}) if number < 16 else Evidence(warnings=(f"w{number}",))
        )
        return lambda _record: news

    await asyncio.gather(*(store.update(TOKEN, adds(number)) for number in range(writers)))
    kept = (await store.read(TOKEN)).record.evidence
    return {*kept.image_ids, *kept.warnings}
