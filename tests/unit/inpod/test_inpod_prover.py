"""The prover as a process, in a pod's network namespace of the test's own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from inpod_lab import (
    CONTROL,
    DENY,
    HEALTH,
    POD,
    POD_UID,
    WITNESS,
    eventually,
    free_port,
    pod_env,
    prover_config,
    witness_config,
)

from isolation.objects.programs import Target


@pytest.fixture
def witness(lab, programs):
    running = programs.start("witness", witness_config(), netns=lab.witness)
    assert running.process.stdout is not None
    return running


def quick(text):
    """Watch each connection for 0.4 s: enough where no SYN is lost and the consequences are what matters."""
    return text.replace("\nWATCH_SECONDS = 1.2\n", "\nWATCH_SECONDS = 0.4\n")


def start(lab, programs, tmp_path, *, env=None, change=quick, **more):
    return programs.start("prover", prover_config(tmp_path, **more), netns=lab.pod, env=env or pod_env(), change=change)


def child_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def supervisor_of(running):
    return running.process.pid


def reachable_state(lab):
    status, body = lab.ask("GET", "/state")
    return json.loads(body) if status == 200 else None


def marker(state, **more):
    return json.dumps({"podUid": POD_UID, "startId": state["startId"], "epoch": 1, "seedSha256": "a" * 64, **more})


def stand(prover):
    prover.until(lambda line: line.get("standing") is True)


def release(lab):
    return lab.ask("POST", "/release", marker(lab.state()))


@pytest.mark.parametrize(("policy", "by"), [("enforce", "drop"), ("reject", "refusal")])
def test_a_proof_comes_to_stand_in_both_families(lab, programs, witness, tmp_path, policy, by):
    getattr(lab, policy)()
    stand(start(lab, programs, tmp_path, change=None))
    state = lab.state()
    assert (state["standing"], state["by"], state["backends"]) == (True, by, WITNESS)
    assert state["standingSince"] - state["firstGoodAt"] < 2.5


def test_without_a_policy_no_proof_stands(lab, programs, witness, tmp_path):
    prover = start(lab, programs, tmp_path)
    prover.until(lambda line: line.get("round") == 12)
    state = lab.state()
    assert (state["standing"], state["everStood"], state["code"]) == (False, False, "policy_not_enforced")
    assert state["verdict"] is None


def test_a_policy_for_ipv4_alone_is_no_policy(lab, programs, witness, tmp_path):
    lab.policy(f"meta nfproto ipv4 tcp dport {DENY} drop", f"meta nfproto ipv4 udp dport {DENY} drop")
    prover = start(lab, programs, tmp_path)
    prover.until(lambda line: line.get("family") == "4" and line.get("verdict") == "proven" and line["round"] > 20)
    assert lab.state()["standing"] is False


def test_a_policy_that_forgets_udp_is_no_policy(lab, programs, witness, tmp_path):
    lab.policy(f"tcp dport {DENY} drop")
    line = start(lab, programs, tmp_path).until(lambda line: "verdict" in line)
    assert (line["verdict"], line["detail"]) == ("open", "deny port answered over UDP")


def test_a_policy_that_comes_late_is_waited_for(lab, programs, witness, tmp_path):
    prover = start(lab, programs, tmp_path)
    prover.until(lambda line: line.get("verdict") == "open")
    lab.enforce()
    stand(prover)
    state = lab.state()
    assert state["openUntil"] > state["firstRoundAt"]


MUTE = "self.__dict__.setdefault('mute', deny) and (lambda *_: None)("
DEAD = "(lambda *_: None)("
DATAGRAMS = "loop.watch(self._datagrams,"


@pytest.mark.parametrize("with_policy", [True, False])
@pytest.mark.parametrize(
    ("serving", "broken"), [("loop.watch(deny,", MUTE), ("loop.watch(deny,", DEAD), (DATAGRAMS, MUTE)]
)
def test_a_witness_with_a_mute_or_dead_deny_listener_proves_nothing(
    lab, programs, tmp_path, serving, broken, with_policy
):
    programs.start("witness", witness_config(), netns=lab.witness, change=lambda text: text.replace(serving, broken))
    if with_policy:
        lab.enforce()
    prover = start(lab, programs, tmp_path, change=None)
    prover.until(lambda line: line.get("round", 0) >= 12)
    state = lab.state()
    assert state["provenRounds"] == 0
    assert state["last"]["verdict"] in ({"unserved"} if with_policy else {"open", "intercepted"})


def test_without_a_witness_the_proof_is_unavailable(lab, programs, tmp_path):
    line = start(lab, programs, tmp_path).until(lambda line: "verdict" in line)
    assert line["verdict"] == "unavailable"


def test_openness_is_seen_while_the_control_port_is_away(lab, programs, witness, tmp_path):
    lab.policy(f"tcp dport {CONTROL} drop")
    line = start(lab, programs, tmp_path).until(lambda line: "verdict" in line)
    assert line["verdict"] == "open"


def test_something_that_accepts_in_the_witnesss_place_is_an_interceptor(lab, programs, witness, tmp_path):
    rule = f"type nat hook output priority -100;\ntcp dport {DENY} redirect to :9999\n"
    table = f"table inet mesh {{\nchain out {{\n{rule}}}\n}}\n"
    subprocess.run(["ip", "netns", "exec", lab.pod, "nft", "-f", "-"], input=table, text=True, check=True, timeout=10)
    programs.start(
        "witness",
        witness_config(control_port=9998, deny_port=9999),
        netns=lab.pod,
        change=lambda text: text.replace("client.greet(DENY)", 'client.greet(b"")'),
    )
    lab.enforce()
    line = start(lab, programs, tmp_path).until(lambda line: "verdict" in line)
    assert line["verdict"] == "intercepted"


def test_a_closed_target_that_answers_is_a_leak_by_name(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, targets=(Target(ip=WITNESS["4"], port=CONTROL, name="metadata"),))
    prover.until(lambda line: line.get("verdict") == "leak")
    eventually(lambda: lab.state()["leaks"] == ["metadata"])


def test_closed_targets_that_are_closed_do_not_matter(lab, programs, witness, tmp_path):
    lab.enforce()
    targets = (Target(ip=WITNESS["4"], port=9, name="a"), Target(ip=WITNESS["6"], port=53, protocol="udp", name="b"))
    stand(start(lab, programs, tmp_path, targets=targets))


def test_a_family_in_which_the_witness_has_no_address_is_named(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, witness={"4": WITNESS["4"]})
    prover.until(lambda line: line.get("round", 0) >= 10)
    state = lab.state()
    assert (state["missingFamilies"], state["code"], state["standing"]) == (["6"], "witness_family_missing", False)


def test_a_pod_of_one_family_is_proven_in_that_one(lab, programs, witness, tmp_path):
    lab.enforce()
    stand(start(lab, programs, tmp_path, env=pod_env(POD["6"])))
    assert list(lab.state()["backends"]) == ["6"]


def test_an_address_under_duplicate_detection_is_waited_for(lab, programs, witness, tmp_path):
    lab.enforce()
    lab.detect_duplicates(lab.pod, wanted=True)
    subprocess.run(["ip", "-n", lab.pod, "addr", "del", POD["6"] + "/64", "dev", "eth0"], check=True, timeout=10)
    subprocess.run(["ip", "-n", lab.pod, "addr", "add", POD["6"] + "/64", "dev", "eth0"], check=True, timeout=10)
    prover = start(lab, programs, tmp_path)
    first = prover.until(lambda line: line.get("family") == "6")
    assert first["verdict"] in ("unusable", "unavailable")
    stand(prover)


def test_node_exposure_is_reported_and_no_verdict(lab, programs, witness, tmp_path):
    lab.enforce()
    env = {
        **pod_env(),
        "KUBERNETES_SERVICE_HOST": WITNESS["4"],
        "KUBERNETES_SERVICE_PORT": str(CONTROL),
        "PODGATE_HOST_IPS": WITNESS["6"],
    }
    stand(start(lab, programs, tmp_path, env=env))
    assert lab.state()["nodeExposure"] == [f"apiserver {WITNESS['4']}:{CONTROL}"]


def test_a_release_needs_a_standing_proof(lab, programs, witness, tmp_path):
    start(lab, programs, tmp_path).until(lambda line: "round" in line)
    status, body = release(lab)
    assert (status, json.loads(body)["exit"], json.loads(body)["code"]) == (409, 40, "policy_not_enforced")


@pytest.mark.parametrize(("wrong", "code"), [({"startId": "f" * 32}, 41), ({"podUid": "another"}, 42)])
def test_a_release_for_another_start_or_pod_is_refused(lab, programs, witness, tmp_path, wrong, code):
    lab.enforce()
    stand(start(lab, programs, tmp_path))
    status, body = lab.ask("POST", "/release", marker(lab.state(), **wrong))
    assert (status, json.loads(body)["exit"]) == (409, code)
    assert lab.state()["released"] is False


@pytest.mark.parametrize("body", ["", "[", "[" * 4000, '"x"', "\x00", '{"startId": NaN}'])
def test_a_release_that_is_no_marker_is_refused(lab, programs, tmp_path, body):
    start(lab, programs, tmp_path)
    eventually(lambda: reachable_state(lab))
    assert lab.ask("POST", "/release", body.replace("\x00", "\\u0000"))[0] == 409


def test_a_release_is_remembered_before_it_is_granted(lab, programs, witness, tmp_path):
    lab.enforce()
    stand(start(lab, programs, tmp_path))
    assert release(lab) == (200, '{"ok":true}\n\n')
    assert json.loads((tmp_path / "verdict.json").read_text())["releasedAt"] > 0
    assert lab.state()["released"] is True


def test_a_release_that_cannot_be_remembered_is_refused(lab, programs, witness, tmp_path):
    lab.enforce()
    stand(start(lab, programs, tmp_path, state_file=str(tmp_path / "absent" / "verdict.json")))
    assert release(lab)[0] == 409
    assert lab.state()["released"] is False


def test_openness_before_the_release_fells_the_proof_and_ends_nothing(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path)
    stand(prover)
    lab.policy()
    prover.until(lambda line: line.get("standing") is False)
    state = lab.state()
    assert (state["everStood"], state["verdict"], state["code"]) == (True, None, "policy_not_enforced_before_release")
    assert lab.ask("GET", "/healthz")[0] == 200


def test_openness_during_the_run_ends_it_for_good_and_across_restarts(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, calm_seconds=0.5)
    stand(prover)
    release(lab)
    lab.policy()
    assert prover.until(lambda line: line.get("verdict") == "open" and "at" in line and "round" not in line)
    assert lab.ask("GET", "/healthz")[0] == 503
    lab.enforce()
    os.kill(child_of(supervisor_of(prover)), signal.SIGKILL)
    again = prover.until(lambda line: line.get("prover") == "started")
    eventually(lambda: lab.ask("GET", "/healthz") == (503, "open\n\n"))
    assert lab.state()["startId"] == again["startId"]


def test_blindness_ends_the_run_after_its_time(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, calm_seconds=0.5, blind_after_seconds=1)
    stand(prover)
    release(lab)
    lab.policy("drop")
    prover.until(lambda line: line.get("verdict") == "blind", 15)
    assert lab.ask("GET", "/healthz") == (503, "blind\n\n")


def test_blindness_that_is_only_recorded_is_visible_and_ends_with_the_witnesss_return(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, calm_seconds=0.5, blind_after_seconds=0.5, on_blind="record")
    stand(prover)
    release(lab)
    lab.policy("drop")
    blind = eventually(lambda: lab.state()["blindSince"])
    eventually(lambda: lab.state()["now"] - blind > 1)
    assert lab.ask("GET", "/healthz")[0] == 200
    lab.enforce()
    eventually(lambda: lab.state()["blindSince"] is None, 15)


def test_a_run_ends_at_its_time_with_no_launcher(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path, timeout_seconds=1, timeout_grace_seconds=0.5)
    stand(prover)
    release(lab)
    assert lab.ask("GET", "/healthz")[0] == 200
    prover.until(lambda line: line.get("verdict") == "timeout")
    assert lab.ask("GET", "/healthz") == (503, "timeout\n\n")


def test_a_restarted_child_is_another_start_and_goes_on_with_the_release(lab, programs, witness, tmp_path):
    lab.enforce()
    prover = start(lab, programs, tmp_path)
    stand(prover)
    before = lab.state()
    release(lab)
    os.kill(child_of(supervisor_of(prover)), signal.SIGKILL)
    prover.until(lambda line: line.get("prover") == "started")
    after = eventually(lambda: reachable_state(lab))
    assert after["startId"] != before["startId"]
    assert (after["released"], after["everStood"]) == (True, True)
    stand(prover)


def test_what_cannot_be_read_back_counts_as_lost(lab, programs, tmp_path):
    (tmp_path / "verdict.json").write_text("{")
    start(lab, programs, tmp_path)
    assert eventually(lambda: lab.ask("GET", "/healthz")[0]) == 503


def test_nobody_else_gets_the_port_while_the_child_is_away(lab, programs, tmp_path):
    prover = start(lab, programs, tmp_path)
    eventually(lambda: reachable_state(lab))
    tries = (
        "import os,socket,sys,time\nos.setuid(64001)\nfound=set()\nuntil=time.monotonic()+2\n"
        "while time.monotonic()<until:\n"
        " for ip in ('0.0.0.0','127.0.0.1','::','::1'):\n"
        "  A,P=socket.SO_REUSEADDR,socket.SO_REUSEPORT\n"
        "  for options in ((),(A,),(P,),(A,P)):\n"
        "   s=socket.socket(socket.AF_INET6 if ':' in ip else socket.AF_INET)\n"
        "   [s.setsockopt(socket.SOL_SOCKET,o,1) for o in options]\n"
        f"   try: s.bind((ip,{HEALTH})); s.listen(); found.add('got it')\n"
        "   except OSError as e: found.add(e.errno)\n   s.close()\n"
        "print(sorted(found, key=str))\n"
    )
    thief = subprocess.Popen(
        ["ip", "netns", "exec", lab.pod, sys.executable, "-I", "-c", tries], stdout=subprocess.PIPE, text=True
    )
    os.kill(child_of(supervisor_of(prover)), signal.SIGSTOP)
    os.kill(child_of(supervisor_of(prover)), signal.SIGKILL)
    said, _ = thief.communicate(timeout=10)
    assert said.strip() == "[98]"


def test_sigterm_ends_prover_and_child_at_once(programs, tmp_path):
    port = free_port()
    prover = programs.start("prover", prover_config(tmp_path, health_port=port), env=pod_env("127.0.0.1"))
    prover.until(lambda line: line.get("prover") == "started")
    child = child_of(supervisor_of(prover))
    before = time.monotonic()
    prover.process.terminate()
    assert prover.ends() == 0
    assert time.monotonic() - before < 1
    eventually(lambda: not Path(f"/proc/{child}").exists())


def test_a_port_that_somebody_else_holds_is_a_failure(programs, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as held:
        prover = programs.start(
            "prover", prover_config(tmp_path, health_port=held.getsockname()[1]), env=pod_env("127.0.0.1")
        )
        assert prover.ends() == 1


def test_clients_that_flood_or_dawdle_neither_stop_the_rounds_nor_the_answers(programs, tmp_path):
    port = free_port()
    prover = programs.start("prover", prover_config(tmp_path, health_port=port), env=pod_env("127.0.0.1"))
    prover.until(lambda line: line.get("prover") == "started")
    idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(100)]
    idle[0].close()
    for link in idle[50:]:
        link.sendall(b"GET /hea")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 200")
    first = prover.until(lambda line: "round" in line)["round"]
    prover.until(lambda line: line.get("round", 0) >= first + 4, 4)
    for link in idle:
        link.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"\xff\xfe /x y\r\n\r\n",
        b"A" * 9000,
    ],
)
def test_a_request_that_is_none_is_answered_or_closed(programs, tmp_path, request_):
    port = free_port()
    prover = programs.start("prover", prover_config(tmp_path, health_port=port), env=pod_env("127.0.0.1"))
    prover.until(lambda line: line.get("prover") == "started")
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(request_)
        try:
            answer = link.recv(100)
        except ConnectionResetError:
            answer = b""
    assert answer[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 404")
