"""The preflight's probe as a process: everything a launcher decides from is in its last line."""

import socket
import subprocess
import sys
import time

import pytest
from inpod_lab import CONTROL, DENY, POD, WITNESS, Running, eventually, pod_env, witness_config

from isolation.objects.programs import CanaryConfig, Target

LISTEN = 8789


@pytest.fixture
def witness(lab, programs) -> Running:
    return programs.start("witness", witness_config(), netns=lab.witness)


def start(lab, programs, mode, *, env=None, netns=None, **more):
    base = {
        "mode": mode,
        "witness": WITNESS,
        "control_port": CONTROL,
        "deny_port": DENY,
        "listen_port": LISTEN,
        "bound_seconds": 4,
    }
    return programs.start("canary", CanaryConfig(**{**base, **more}), netns=netns or lab.pod, env=env or pod_env())


def answer(canary, seconds=12):
    return canary.until(lambda line: line.get("final"), seconds)


def test_an_open_canary_reaches_both_ports_in_every_family(lab, programs, witness):
    found = answer(start(lab, programs, "open"))
    assert (found["ok"], found["code"]) == (True, None)
    assert {f: (seen["allOpen"], seen["backend"]) for f, seen in found["families"].items()} == {
        f: (True, WITNESS[f]) for f in "46"
    }


def test_an_open_canary_says_which_port_it_could_not_reach(lab, programs, witness):
    lab.policy(f"udp dport {DENY} drop")
    found = answer(start(lab, programs, "open"))
    assert (found["ok"], found["code"]) == (False, "witness_unavailable")
    assert "udp silent" in found["message"]


def test_an_open_canary_serves_its_listener_until_sigterm(lab, programs, witness):
    canary = start(lab, programs, "open")
    answer(canary)
    code = f"import socket;print(socket.create_connection(('{POD['6']}',{LISTEN}),timeout=3).recv(99))"
    heard = subprocess.run(
        ["ip", "netns", "exec", lab.witness, sys.executable, "-I", "-c", code],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert heard.stdout == "b'podgate-canary\\n'\n"
    before = time.monotonic()
    canary.process.terminate()
    assert (canary.ends(), time.monotonic() - before < 1) == (0, True)


@pytest.mark.parametrize(("policy", "by"), [("enforce", "drop"), ("reject", "refusal")])
def test_a_policed_canary_finds_the_policy_enforced(lab, programs, witness, policy, by):
    getattr(lab, policy)()
    found = answer(start(lab, programs, "policed"))
    assert (found["ok"], found["code"], found["leaks"]) == (True, None, [])
    assert [(seen["control"], seen["by"], seen["standing"]) for seen in found["families"].values()] == [
        ("up", by, True)
    ] * 2
    assert 0 < found["standingAfter"] < 4


def test_a_policed_canary_says_that_nothing_is_enforced(lab, programs, witness):
    found = answer(start(lab, programs, "policed", bound_seconds=2))
    assert (found["ok"], found["code"]) == (False, "policy_not_enforced")
    assert found["families"]["4"]["deny"].startswith("tcp banner")


def test_a_policed_canary_names_a_leak(lab, programs, witness):
    lab.enforce()
    found = answer(start(lab, programs, "policed", targets=(Target(ip=WITNESS["6"], port=CONTROL, name="metadata"),)))
    assert (found["code"], found["leaks"]) == ("policy_leak", ["metadata"])


def test_a_policed_canary_measures_how_late_the_policy_came(lab, programs, witness):
    programs.start(
        "canary",
        CanaryConfig(mode="open", witness={}, control_port=CONTROL, deny_port=DENY, listen_port=LISTEN),
        netns=lab.witness,
        env=pod_env(),
    )
    eventually(lambda: open_to(lab, LISTEN))
    canary = start(
        lab,
        programs,
        "policed",
        bound_seconds=10,
        latency_targets=({"ip": WITNESS["4"], "port": LISTEN}, {"ip": WITNESS["6"], "port": LISTEN}),
    )
    canary.line()
    time.sleep(1)  # the very delay that is measured
    lab.policy(f"tcp dport {DENY} drop", f"udp dport {DENY} drop", f"tcp dport {LISTEN} drop")
    found = answer(canary)
    assert found["ok"] is True
    assert [(seen["sawOpen"], seen["stillOpen"]) for seen in found["latency"]] == [(True, False)] * 2
    assert all(0.7 < seen["seconds"] < 2 for seen in found["latency"])


def open_to(lab, port):
    code = f"import socket;socket.create_connection(('{WITNESS['4']}',{port}),timeout=1)"
    return (
        subprocess.run(
            ["ip", "netns", "exec", lab.pod, sys.executable, "-I", "-c", code],
            capture_output=True,
            timeout=10,
            check=False,
        ).returncode
        == 0
    )


def test_a_target_that_stays_open_is_said_to(lab, programs, witness):
    lab.enforce()
    found = answer(start(lab, programs, "policed", latency_targets=({"ip": WITNESS["4"], "port": CONTROL},)))
    assert [(seen["seconds"], seen["stillOpen"]) for seen in found["latency"]] == [(None, True)]


def test_a_missing_family_is_said_at_once(lab, programs, witness):
    found = answer(start(lab, programs, "policed", witness={"4": WITNESS["4"]}))
    assert (found["code"], found["missingFamilies"]) == ("witness_family_missing", ["6"])


def test_a_pod_whose_addresses_are_not_known_is_no_success(lab, programs):
    assert answer(start(lab, programs, "policed", env={"PODGATE_POD_IPS": "x"}))["code"] == "probe_unusable"


def test_it_ends_by_itself_after_its_idle_time(lab, programs):
    canary = start(lab, programs, "policed", env={"PODGATE_POD_IPS": "x"}, idle_seconds=0.2)
    assert canary.ends() == 0


def test_a_port_that_is_taken_is_a_failure(programs):
    with socket.create_server(("127.0.0.1", 0)) as held:
        config = CanaryConfig(
            mode="open", witness=WITNESS, control_port=CONTROL, deny_port=DENY, listen_port=held.getsockname()[1]
        )
        assert programs.start("canary", config, env=pod_env()).ends() == 1
