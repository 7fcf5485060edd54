import json
import re

import pytest

from launcher.cli.failures import known_error, text
from launcher.cluster.errors import NotFound, Refused, Unreachable
from launcher.errors import CATALOGUE, CODES, PodgateError, before_release


def test_codes_are_said_once():
    assert len(CODES) == len(CATALOGUE)


@pytest.mark.parametrize("code", CATALOGUE, ids=lambda c: c.code)
def test_every_code_has_a_sentence_and_a_place_to_look(code):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", code.code)
    assert code.meaning[0].isupper()
    assert code.meaning.endswith(".")
    assert code.look
    assert not code.look.endswith(".")


def test_every_proof_code_has_its_variant_for_a_proof_that_fell():
    proof = {c.code for c in CATALOGUE if c.group == "proof"}
    plain = {c for c in proof if not c.endswith("_before_release")}
    assert proof == plain | {before_release(c) for c in plain}


def test_a_variant_has_no_variant_of_its_own():
    assert before_release("policy_leak_before_release") == "policy_leak_before_release"


def test_an_unknown_code_cannot_be_raised():
    with pytest.raises(KeyError):
        PodgateError("no_such_code", "x")


def test_json_holds_only_what_there_is():
    assert PodgateError("job_not_found", "m").as_json() == {"error": {"code": "job_not_found", "message": "m"}}


def test_json_holds_stage_and_violations():
    error = PodgateError(
        "attestation_failed", "m", stage="provision", violations=[{"path": "$.spec", "kind": "unexpected"}]
    )
    body = json.loads(json.dumps(error.as_json()))["error"]
    assert (body["stage"], body["violations"]) == ("provision", [{"path": "$.spec", "kind": "unexpected"}])


def test_for_a_person_violations_are_a_list_and_where_to_look_is_last():
    error = PodgateError(
        "attestation_failed",
        "Two paths differ.",
        violations=[
            {"path": "$.a", "kind": "unexpected", "hint": "a mesh"},
            {"path": "$.b", "kind": "missing", "hint": None},
        ],
    )
    assert text(error).splitlines() == [
        "podgate: attestation_failed: Two paths differ.",
        "  - $.a: unexpected; a mesh",
        "  - $.b: missing",
        "  Where to look: admission webhooks and policies; allowances.",
    ]


def test_very_many_violations_are_cut_for_a_person():
    error = PodgateError(
        "attestation_failed", "m", violations=[{"path": f"$.{n}", "kind": "missing"} for n in range(100)]
    )
    assert "and 60 more" in text(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unreachable("get pods"), "cluster_unreachable"),
        (Refused("create pods", status=403, reason="Forbidden"), "access_denied"),
        (Refused("create pods", status=422, reason="Invalid", message="no"), "manifest_refused"),
        (NotFound("get pods", status=404), "access_denied"),
        (RuntimeError("secret"), "internal_error"),
    ],
)
def test_every_exception_has_a_code(error, code):
    assert known_error(error).code == code


def test_an_unforeseen_exceptions_own_text_is_not_repeated():
    assert "secret" not in text(known_error(RuntimeError("secret")))
