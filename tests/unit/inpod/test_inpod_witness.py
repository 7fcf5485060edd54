"""The witness as a process, on loopback and across a wire."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import pytest
from inpod_lab import CONTROL, DENY, WITNESS, eventually, free_port, witness_config

QUESTION = b"podgate-probe: is this port closed?\n"
MUTE = "self.__dict__.setdefault('mute', deny) and (lambda *_: None)("
DEAD = "(lambda *_: None)("
"""Nobody keeps the listening socket: it is closed."""


@pytest.fixture
def ports():
    return free_port(), free_port()


@pytest.fixture
def witness(programs, ports):
    running = programs.start("witness", witness_config(control_port=ports[0], deny_port=ports[1]))
    eventually(lambda: answers(ports[0]))
    return running


def answers(port, ip="127.0.0.1"):
    try:
        return hear(port, ip)
    except ConnectionRefusedError:
        return None


def hear(port, ip="127.0.0.1"):
    with socket.create_connection((ip, port), timeout=3) as link:
        said = b""
        while piece := link.recv(200):
            said += piece
        return said.decode()


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_the_control_port_says_its_address_and_that_deny_is_up(witness, ports, ip):
    assert hear(ports[0], ip) == f"podgate-witness control deny=up ip={ip} port={ports[1]}\n"


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_the_deny_port_greets_over_tcp_and_udp(witness, ports, ip):
    assert hear(ports[1], ip) == "podgate-witness deny\n"
    assert ask_udp(ports[1], ip) == b"podgate-witness deny\n"


def ask_udp(port, ip="127.0.0.1", question=QUESTION):
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(1)
        link.connect((ip, port))
        link.send(question)
        try:
            return link.recv(100)
        except TimeoutError:
            return None


def test_a_datagram_is_answered_from_the_address_that_was_asked(witness, ports):
    assert ask_udp(ports[1], "127.0.0.7") == b"podgate-witness deny\n"


def test_a_short_datagram_gets_no_longer_answer(witness, ports):
    assert ask_udp(ports[1], question=b"x") is None


@pytest.mark.parametrize(
    ("serving", "broken"),
    [("loop.watch(deny,", MUTE), ("loop.watch(deny,", DEAD), ("loop.watch(self._datagrams,", MUTE)],
)
def test_a_deny_listener_that_is_mute_or_dead_is_said_to_be_down(programs, ports, serving, broken):
    programs.start(
        "witness",
        witness_config(control_port=ports[0], deny_port=ports[1]),
        change=lambda text: text.replace(serving, broken),
    )
    assert "deny=down" in eventually(lambda: answers(ports[0]))


def test_a_full_accept_queue_is_said_to_be_down(programs, ports):
    def change(text):
        return text.replace("loop.watch(deny,", MUTE).replace(
            "link.listen(BACKLOG)", f"link.listen(BACKLOG if port != {ports[1]} else 1)"
        )

    programs.start("witness", witness_config(control_port=ports[0], deny_port=ports[1]), change=change)
    eventually(lambda: answers(ports[0]))
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            link = stack.enter_context(socket.socket())
            link.settimeout(0)
            link.connect_ex(("127.0.0.1", ports[1]))
        assert "deny=down" in hear(ports[0])


def test_many_connections_at_once_are_served_by_few_looks(witness, ports):
    heard, lock = [], threading.Lock()

    def one(number):
        with socket.create_connection(
            ("127.0.0.1", ports[0]), timeout=3, source_address=(f"127.0.1.{number}", 0)
        ) as link:
            said = link.recv(200)
        with lock:
            heard.append(said)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 101)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == [b"podgate-witness control deny=up ip=127.0.0.1 port=%d\n" % ports[1]] * 100


def test_a_source_has_fifty_connections_a_second(witness, ports):
    said = [from_source(ports[1], "127.0.2.2") for _ in range(60)]
    assert said[:50] == [b"podgate-witness deny\n"] * 50
    assert b"" in said[50:]
    assert from_source(ports[1], "127.0.2.3") == b"podgate-witness deny\n"


def from_source(port, ip):
    with connect_from(ip, port) as link:
        try:
            return link.recv(200)
        except ConnectionResetError:
            return b""


def test_a_source_has_sixteen_connections_at_once(programs, ports):
    never = "self.until = time.monotonic() + LOOK_SECONDS"
    programs.start(
        "witness",
        witness_config(control_port=ports[0], deny_port=ports[1]),
        change=lambda text: text.replace("loop.watch(deny,", MUTE).replace(never, "self.until = time.monotonic() + 2"),
    )
    eventually(lambda: listening(ports[0]))
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(connect_from("127.0.3.3", ports[0])) for _ in range(17)]
        assert links[16].recv(100) == b""
        links[0].settimeout(0.2)
        with pytest.raises(TimeoutError):
            links[0].recv(100)


def connect_from(ip, port):
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(ip, 0))


def listening(port):
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


def test_a_flood_from_one_address_keeps_nobody_else_waiting(lab, programs):
    programs.start("witness", witness_config(), netns=lab.witness)
    lab.policy()
    subprocess.run(["ip", "-n", lab.pod, "addr", "add", "10.99.0.3/24", "dev", "eth0"], check=True, timeout=10)
    flood = (
        "import socket,time\nuntil=time.monotonic()+3\nn=0\n"
        "while time.monotonic()<until:\n s=socket.socket(); s.bind(('10.99.0.3',0)); s.setblocking(False)\n"
        f" s.connect_ex(('{WITNESS['4']}',{CONTROL})); n+=1; time.sleep(0); s.close()\n"
        "print(n)"
    )
    calm = (
        "import socket,time,json\nlate=[]\nfor _ in range(20):\n t=time.monotonic()\n"
        f" s=socket.create_connection(('{WITNESS['4']}',{CONTROL}),timeout=3,source_address=('10.99.0.2',0))\n"
        " ok=b'deny=up' in s.recv(100); s.close()\n"
        " late.append(time.monotonic()-t if ok else 99); time.sleep(0.05)\nprint(json.dumps(late))"
    )
    inside = ["ip", "netns", "exec", lab.pod, sys.executable, "-I", "-c"]
    eventually(
        lambda: (
            subprocess.run(
                [*inside, calm.replace("range(20)", "range(1)")], capture_output=True, timeout=10, check=False
            ).returncode
            == 0
        )
    )
    flooding = subprocess.Popen([*inside, flood], stdout=subprocess.PIPE, text=True)
    late = json.loads(subprocess.run([*inside, calm], capture_output=True, text=True, timeout=30, check=True).stdout)
    tried = int(flooding.communicate(timeout=10)[0])
    assert tried > 1000
    assert max(late) < 1.2


def test_it_ends_at_sigterm_at_once(witness):
    before = time.monotonic()
    witness.process.terminate()
    assert witness.ends() == 0
    assert time.monotonic() - before < 0.5


def test_a_taken_port_is_a_failure(witness, programs, ports):
    other = programs.start("witness", witness_config(control_port=ports[0], deny_port=DENY))
    assert other.ends() == 1
