import json

import pytest

from records.birth import tombstone
from records.codec import KEY, RECORD_LIMIT, decode, encode, from_object, to_object
from records.errors import RecordInvalid, RecordTooNew
from records.model import Phase


def stored(record, naming):
    body = to_object(record, naming)
    body["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    return body


def rewritten(body, **changes):
    record = json.loads(body["data"][KEY]) | changes
    return body | {"data": {KEY: json.dumps(record)}}


@pytest.mark.parametrize("phase", list(Phase))
def test_a_record_comes_back_as_it_was_written(in_phase, naming, phase):
    back = from_object(stored(in_phase(phase), naming), naming)
    assert (back.record, back.uid, back.resource_version) == (in_phase(phase), "u", "7")


def test_a_record_is_written_canonically(fresh):
    text = encode(fresh).decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def test_times_are_utc_with_milliseconds(fresh):
    assert json.loads(encode(fresh))["createdAt"] == "2026-03-01T12:00:00.000Z"


def test_the_object_is_labelled_and_carries_the_run_id(fresh, naming):
    metadata = to_object(fresh, naming)["metadata"]
    assert metadata["labels"] == {"app.kubernetes.io/managed-by": "podgate", "podgate.dev/component": "run-record"}
    assert metadata["annotations"] == {"podgate.dev/run-id": "run-1"}


def test_a_tombstone_of_an_unknown_handle_names_no_run(naming, now):
    body = stored(tombstone(token="ab" * 10, now=now, reason="why"), naming)
    assert "annotations" not in body["metadata"]
    assert from_object(body, naming).record.result.exit_code == 143


def test_a_newer_schema_is_refused_and_not_guessed(fresh, naming):
    with pytest.raises(RecordTooNew) as caught:
        from_object(rewritten(stored(fresh, naming), schemaVersion=2, anything="new"), naming)
    assert caught.value.version == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"schemaVersion": 0},
        {"schemaVersion": True},
        {"schemaVersion": "1"},
        {"unknown": 1},
        {"runId": "run-2"},
        {"token": "0" * 20},
        {"specHash": None},
        {"diskMb": "2048"},
        {"createdAt": "2026-03-01T12:00:00Z"},
        {"createdAt": "2026-03-01T12:00:00.000+01:00"},
        {"createdAt": "2026-02-30T12:00:00.000Z"},
        {"createdAt": 1772366400},
        {"phase": "paused"},
        {"phase": "succeeded"},
        {"lease": {"holder": "x", "epoch": 0, "expiresAt": "2026-03-01T12:00:00.000Z"}},
        {"timeline": [{"phase": "active", "at": "2026-03-01T12:00:00.000Z"}] * 9},
    ],
    ids=str,
)
def test_what_we_would_not_have_written_is_invalid(fresh, naming, changes):
    with pytest.raises(RecordInvalid):
        from_object(rewritten(stored(fresh, naming), **changes), naming)


@pytest.mark.parametrize("text", ["", "[]", "1", "null", "{", '{"a":1,"a":2}', '{"a":NaN}', "[" * 100_000, "1" * 5000])
def test_what_is_not_one_json_object_is_invalid(text):
    with pytest.raises(RecordInvalid):
        decode(text)


def test_a_record_that_says_a_field_twice_is_invalid(fresh):
    with pytest.raises(RecordInvalid):
        decode(encode(fresh).decode().replace('"diskMb":2048', '"diskMb":1,"diskMb":2048'))


def test_an_error_names_the_field_and_not_its_value(fresh, naming):
    with pytest.raises(RecordInvalid) as caught:
        from_object(rewritten(stored(fresh, naming), diskMb="hush"), naming)
    assert "diskMb" in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: m.update(name="podgate-run-other"),
        lambda m: m.update(labels={}),
        lambda m: m.update(annotations={"podgate.dev/run-id": "run-2"}),
        lambda m: m.pop("annotations"),
        lambda m: m.pop("uid"),
        lambda m: m.pop("resourceVersion"),
    ],
)
def test_metadata_that_does_not_agree_is_invalid(fresh, naming, spoil):
    body = stored(fresh, naming)
    spoil(body["metadata"])
    with pytest.raises(RecordInvalid):
        from_object(body, naming)


@pytest.mark.parametrize("body", [{}, {"metadata": {"name": "x"}}, {"metadata": {"name": "x"}, "data": {KEY: 5}}])
def test_an_object_without_a_record_is_invalid(naming, body):
    with pytest.raises(RecordInvalid):
        from_object(body, naming)


def test_a_message_is_cut_at_500_characters(in_phase):
    record = in_phase(Phase.FAILED)
    cut = record.result.evolve(message="x" * 501).message
    assert (len(cut), cut[-1]) == (500, "…")


def test_undecodable_output_can_be_written(in_phase):
    record = in_phase(Phase.FAILED)
    record = record.evolve(result=record.result.evolve(message="a\udcffb"))
    assert decode(encode(record).decode()).result.message == "a?b"


def test_optional_parts_go_in_order_and_the_outcome_stays(in_phase):
    record = in_phase(Phase.SUCCEEDED)
    evidence = record.evidence.evolve(violations=("v",) * 64, gate_message="g")
    record = record.evolve(evidence=evidence, labels={"big": "x" * RECORD_LIMIT}, collect_exclude=("kept",))
    back = decode(encode(record).decode())
    assert (back.evidence.violations, back.evidence.gate_message, back.labels) == ((), None, {})
    assert (back.collect_exclude, back.result, back.phase) == (("kept",), record.result, Phase.SUCCEEDED)


def test_a_terminal_write_does_not_fail_for_an_artifact_that_cannot_be_kept(in_phase):
    record = in_phase(Phase.SUCCEEDED)
    record = record.evolve(result=record.result.evolve(result_artifact={"a": "x" * 70_000}, artifacts="collected"))
    result = decode(encode(record).decode()).result
    assert (result.exit_code, result.result_artifact, result.artifacts) == (0, None, "invalid")
