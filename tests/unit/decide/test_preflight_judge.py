"""What the canaries' answers mean, as a truth table."""

import pytest

from launcher.decide.preflight import PreflightReport, final_line, judge_open, judge_policed
from launcher.errors import CODES

SERVED = {"allOpen": True, "standing": False, "verdict": "open", "control": "up", "deny": "tcp banner,udp banner"}
STANDING = {"allOpen": False, "standing": True, "verdict": "proven", "by": "drop", "control": "up", "detail": ""}
GOOD = PreflightReport(ok=True)


def unpoliced(**families):
    seen = {name[1:]: SERVED | changes for name, changes in families.items()}
    return {"ok": all(f["allOpen"] for f in seen.values()), "code": None, "message": "", "families": seen}


def policed(*, answer=None, **families):
    seen = {name[1:]: STANDING | changes for name, changes in families.items()}
    ok = all(f["standing"] for f in seen.values())
    return {"ok": ok, "code": None, "message": "", "families": seen} | (answer or {})


def fallen(verdict, detail=""):
    return {"standing": False, "verdict": verdict, "detail": detail}


def closed(verdict, control="up"):
    return {"allOpen": False, "verdict": verdict, "control": control, "deny": "tcp silent,udp silent"}


def judged(answer, *, node_exposure="record"):
    return judge_policed(answer, before=GOOD, node_exposure=node_exposure)


def test_ports_that_answer_and_a_policy_that_stands_are_a_success():
    before = judge_open(unpoliced(_4={}, _6={}))
    report = judge_policed(policed(_4={}, _6={}), before=before, node_exposure="record")

    assert (report.ok, report.code, report.message) == (True, None, None)
    assert [finding.name for finding in report.findings] == [
        "unpoliced, IPv4", "unpoliced, IPv6", "policed, IPv4", "policed, IPv6",
    ]  # fmt: skip
    assert all(finding.ok for finding in report.findings)


@pytest.mark.parametrize(
    ("verdict", "control", "code"),
    [
        ("unserved", "banner", "witness_unserved"),
        ("proven", "up", "witness_unserved"),
        ("open", "up", "witness_unserved"),
        ("leak", "up", "witness_unserved"),
        ("leak", "silent", "witness_unavailable"),
        ("unavailable", "silent", "witness_unavailable"),
        ("intercepted", "up", "policy_intercepted"),
        ("unusable", "local", "probe_unusable"),
        (None, "", "probe_unusable"),
    ],
)
def test_an_unpoliced_pod_that_does_not_reach_both_ports_says_which_part_is_away(verdict, control, code):
    report = judge_open(unpoliced(_4={}, _6=closed(verdict, control)))

    assert (report.ok, report.code) == (False, code)
    assert "IPv6" in report.message
    assert [finding.ok for finding in report.findings] == [True, False]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("open", "policy_not_enforced"),
        ("intercepted", "policy_intercepted"),
        ("leak", "policy_leak"),
        ("unserved", "witness_unserved"),
        ("unavailable", "witness_unavailable"),
        ("unusable", "probe_unusable"),
        (None, "probe_unusable"),
    ],
)
def test_a_policed_pods_last_round_names_the_code(verdict, code):
    report = judged(policed(_4=fallen(verdict, "what was seen"), _6={}))

    assert (report.ok, report.code) == (False, code)
    assert "IPv4" in report.message
    assert "what was seen" in report.message


def test_enforcement_in_one_family_alone_is_none_and_the_message_names_the_other():
    report = judged(policed(_4={}, _6=fallen("open")))

    assert report.code == "policy_not_enforced"
    assert "IPv6" in report.message
    assert "IPv4" not in report.message


@pytest.mark.parametrize("order", [("_4", "_6"), ("_6", "_4")])
def test_the_most_alarming_family_names_the_code(order):
    quiet, loud = order
    report = judged(policed(**{quiet: fallen("unavailable"), loud: fallen("open")}))

    assert report.code == "policy_not_enforced"
    assert f"IPv{loud[1:]}" in report.message


def test_without_any_enforcement_a_reached_target_is_not_the_news():
    answer = policed(_4=fallen("open"), answer={"leaks": ["metadata"], "code": "policy_not_enforced"})
    assert judged(answer).code == "policy_not_enforced"


def test_a_leak_is_named():
    report = judged(policed(_4=fallen("leak", "reached metadata"), answer={"leaks": ["metadata"]}))
    assert report.code == "policy_leak"
    assert "metadata" in report.message


def test_a_proof_that_came_too_late_has_the_code_of_what_went_before():
    answer = policed(_4=fallen("proven"), answer={"code": "policy_not_enforced", "message": "IPv4: open"})
    assert judged(answer).code == "policy_not_enforced"


@pytest.mark.parametrize("judge", [judge_open, judged])
def test_a_family_without_a_witness_has_its_own_code(judge):
    answer = policed(_4={}) | {"missingFamilies": ["6"], "ok": False}
    report = judge(answer)

    assert report.code == "witness_family_missing"
    assert "IPv6" in report.message


@pytest.mark.parametrize("judge", [judge_open, judged])
@pytest.mark.parametrize("answer", [{}, {"families": None}, {"families": ["4"], "ok": True}, {"families": {"4": 1}}])
def test_an_answer_without_content_proves_nothing(judge, answer):
    report = judge(answer)
    assert (report.ok, report.code) == (False, "probe_unusable")


def test_the_canarys_own_trouble_is_told_in_its_words():
    answer = {"families": {}, "ok": False, "code": "probe_unusable", "message": "the pod's addresses are not known"}
    assert judge_open(answer).message == "the pod's addresses are not known"


def test_a_code_that_nobody_knows_is_not_passed_on():
    assert judged({"families": {}, "code": "surprise"}).code == "probe_unusable"


@pytest.mark.parametrize(("rule", "code"), [("record", None), ("refuse", "node_reachable")])
def test_a_reachable_node_is_recorded_or_refused(rule, code):
    report = judged(policed(_4={}, answer={"nodeExposure": ["kubelet 10.0.0.1:10250"]}), node_exposure=rule)

    assert (report.ok, report.code) == (code is None, code)
    assert report.node_exposure == ("kubelet 10.0.0.1:10250",)


def test_a_missing_proof_weighs_more_than_a_reachable_node():
    answer = policed(_4=fallen("open"), answer={"nodeExposure": ["apiserver 10.96.0.1:443"]})
    assert judged(answer, node_exposure="refuse").code == "policy_not_enforced"


@pytest.mark.parametrize(
    ("measured", "told"), [([0.4, 1.5], 1.5), ([0.0], 0.0), ([0.4, None], None), ([], None)], ids=str
)
def test_the_latency_is_the_slowest_familys_and_unknown_when_one_is(measured, told):
    answer = policed(_4={}, answer={"latency": [{"seconds": seconds} for seconds in measured]})
    assert judged(answer).policy_latency_seconds == told


def test_every_code_that_comes_out_is_documented():
    verdicts = ("open", "intercepted", "leak", "unserved", "unavailable", "unusable", "else", None)
    found = {judged(policed(_4=fallen(v))).code for v in verdicts} | {
        judge_open(unpoliced(_4=closed(v))).code for v in verdicts
    }
    assert found <= set(CODES)


def test_a_report_comes_back_from_its_json():
    report = judged(policed(_4={}, answer={"latency": [{"seconds": 0.5}], "nodeExposure": ["kubelet 10.0.0.1:10250"]}))
    assert PreflightReport.of(report.as_json()) == report


@pytest.mark.parametrize(
    ("line", "final"),
    [
        (b'{"final":true,"ok":true}', True),
        (b'{"canary":"started"}', False),
        (b'{"final":"yes"}', False),
        (b"[1]", False),
        (b"\xff not json", False),
        (b"", False),
    ],
)
def test_only_the_last_line_is_the_answer(line, final):
    assert (final_line(line) is not None) is final
