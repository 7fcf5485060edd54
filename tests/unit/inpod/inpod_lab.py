"""Runs in-pod programs as processes, on loopback or in two joined network namespaces that the test makes itself."""

import contextlib
import http.client
import itertools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isolation.objects.programs import ProverConfig, WitnessConfig, argv

PYTHON = os.environ.get("PODGATE_TEST_POD_PYTHON", sys.executable)
CONTROL, DENY, HEALTH = 8787, 8788, 8799
POD = {"4": "10.99.0.2", "6": "fd99::2"}
WITNESS = {"4": "10.99.0.1", "6": "fd99::1"}
POD_UID = "5f0c1d9e-pod"


def eventually(look: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Return the first true value of ``look``; fails after the time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {look}")


PORTS = 1_000
"""For each test process, from 20,000 on: below what kernels hand out, so that no connection takes one in between."""
_handed_out = itertools.count()


def free_port() -> int:
    """Return a port that nobody has, over TCP and UDP, in either family, and that no other test gets."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 12
    for _ in range(PORTS):
        port = 20_000 + worker * PORTS + next(_handed_out) % PORTS
        if all(_can_be_bound(port, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)):
            return port
    raise AssertionError("every port of this test process is taken")


def _can_be_bound(port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET6, kind) as probe:
        probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            probe.bind(("::", port))
        except OSError:
            return False
    return True


class Running:
    """One program as a process; its lines of output as they come."""

    def __init__(self, words: list[str], env: dict[str, str], stdin: int | None = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            words, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.errors = b""
        self._errors = threading.Thread(target=self._read_errors, daemon=True)
        self._errors.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            self.errors = (self.errors + line)[-16384:]

    def line(self, seconds: float = 10.0) -> dict[str, Any] | None:
        """Return the next line as JSON, None at the end."""
        raw = self._lines.get(timeout=seconds)
        return None if raw is None else json.loads(raw)

    def until(self, wanted: Callable[[dict[str, Any]], object], seconds: float = 10.0) -> dict[str, Any]:
        """Return the first line that is wanted."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self.line(left)
                if line is None:
                    break
                if wanted(line):
                    return line
        raise AssertionError(f"no such line within {seconds} s; stderr: {self.errors.decode()}")

    def ends(self, seconds: float = 5.0) -> int:
        """Return the exit code."""
        return self.process.wait(seconds)

    def close(self) -> None:
        """Kill what is left of it: this process's own session, nothing else."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait(5)
        self._reader.join(5)
        self._errors.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if pipe:
                    pipe.close()


class Programs:
    """Starts programs and ends them all."""

    def __init__(self) -> None:
        self._running: list[Running] = []

    def start(
        self,
        program: str,
        config: Any,
        *,
        netns: str | None = None,
        env: dict[str, str] | None = None,
        change: Callable[[str], str] | None = None,
    ) -> Running:
        """Start a program; ``change`` gets its source, for broken variants."""
        words = [PYTHON, *argv(program, config)[1:]]
        if change:
            changed = change(words[-2])
            assert changed != words[-2]
            words[-2] = changed
        inside = ["ip", "netns", "exec", netns] if netns else []
        running = Running([*inside, *words], {"PATH": os.environ["PATH"], **(env or {})})
        self._running.append(running)
        return running

    def close(self) -> None:
        for running in self._running:
            running.close()


def sh(*words: str, stdin: str | None = None) -> str:
    """Run a command that must succeed."""
    return subprocess.run(words, input=stdin, capture_output=True, text=True, check=True, timeout=20).stdout


class Lab:
    """A pod's namespace and a witness's, joined by one pair of interfaces.

    The policy sits where packets arrive at the witness.
    """

    def __init__(self, name: str) -> None:
        self.pod, self.witness = f"{name}p", f"{name}w"
        for netns in (self.pod, self.witness):
            sh("ip", "netns", "add", netns)
        sh(
            "ip",
            "link",
            "add",
            "eth0",
            "netns",
            self.pod,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.witness,
        )
        for netns, addresses in ((self.pod, POD), (self.witness, WITNESS)):
            self._configure(netns, addresses)
        for netns in (self.pod, self.witness):
            # the kernel tells a new link's carrier up to a second late, and IPv6 waits for that
            eventually(lambda netns=netns: "state UP" in sh("ip", "-n", netns, "link", "show", "dev", "eth0"))

    def _configure(self, netns: str, addresses: dict[str, str]) -> None:
        sh("ip", "-n", netns, "link", "set", "lo", "up")
        self.detect_duplicates(netns, wanted=False)
        sh("ip", "-n", netns, "addr", "add", addresses["4"] + "/24", "dev", "eth0")
        sh("ip", "-n", netns, "addr", "add", addresses["6"] + "/64", "dev", "eth0", "nodad")
        sh(
            "ip", "-n", netns, "link", "set", "eth0", "addrgenmode", "none"
        )  # no other source address than the one given
        sh("ip", "-n", netns, "link", "set", "eth0", "up")

    def detect_duplicates(self, netns: str, *, wanted: bool) -> None:
        """Let new IPv6 addresses pass duplicate address detection, which takes a second or two, or not."""
        sh("ip", "netns", "exec", netns, "sh", "-c", f"echo {int(wanted)} > /proc/sys/net/ipv6/conf/eth0/accept_dad")

    def policy(self, *rules: str) -> None:
        """Replace the policy: nft rules for what arrives at the witness from the pod."""
        body = "\n".join(["type filter hook input priority 0;", *(f'iifname "eth0" {rule}' for rule in rules)])
        table = f"table inet lab\ndelete table inet lab\ntable inet lab {{\nchain arrive {{\n{body}\n}}\n}}\n"
        sh("ip", "netns", "exec", self.witness, "nft", "-f", "-", stdin=table)

    def enforce(self) -> None:
        """Drop what goes to the deny port."""
        self.policy(f"tcp dport {DENY} drop", f"udp dport {DENY} drop")

    def reject(self) -> None:
        """Refuse what goes to the deny port."""
        self.policy(f"tcp dport {DENY} reject with tcp reset", f"udp dport {DENY} reject")

    def ask(self, method: str, path: str, body: str | None = None, port: int = HEALTH) -> tuple[int, str]:
        """Ask the prover in the pod, from within the pod, as a process of another uid could."""
        code = (
            "import http.client,sys;c=http.client.HTTPConnection('127.0.0.1',"
            f"{port},timeout=2);"
            "c.request(sys.argv[1],sys.argv[2],sys.argv[3] or None);r=c.getresponse();"
            "print(r.status);print(r.read().decode())"
        )
        done = subprocess.run(
            ["ip", "netns", "exec", self.pod, sys.executable, "-I", "-c", code, method, path, body or ""],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        status, _, content = done.stdout.partition("\n")
        return int(status or 0), content

    def state(self) -> dict[str, Any]:
        """Return the prover's state."""
        return json.loads(self.ask("GET", "/state")[1])

    def close(self) -> None:
        for netns in (self.pod, self.witness):
            subprocess.run(["ip", "netns", "del", netns], check=False, capture_output=True)


def witness_config(**more: Any) -> WitnessConfig:
    """Return the witness's configuration."""
    return WitnessConfig(**{"control_port": CONTROL, "deny_port": DENY, **more})


def prover_config(tmp_path: Path, **more: Any) -> ProverConfig:
    """Return a prover's configuration with a state file of the test's own."""
    base = {
        "witness": WITNESS,
        "control_port": CONTROL,
        "deny_port": DENY,
        "health_port": HEALTH,
        "timeout_seconds": 600,
        "state_file": str(tmp_path / "verdict.json"),
    }
    return ProverConfig(**{**base, **more})


def pod_env(ips: str = ",".join(POD.values())) -> dict[str, str]:
    """Return the environment that the downward API would give."""
    return {"PODGATE_POD_UID": POD_UID, "PODGATE_POD_IPS": ips}


class ScriptedProver:
    """Answers like a prover on a loopback port, by a script: path → (status, object)."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.asked = answers, []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link, contextlib.suppress(OSError):
                self._one(link)

    def _one(self, link: socket.socket) -> None:
        link.settimeout(5)
        request = link.recv(8192).decode()
        what = " ".join(request.split(" ")[:2])
        self.asked.append(what)
        answer = self.answers.get(what)
        answer = answer() if callable(answer) else answer
        if answer is None:
            return
        status, body = answer
        text = body if isinstance(body, str) else json.dumps(body)
        link.sendall(
            f"HTTP/1.1 {status} {http.client.responses[status]}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
        )

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def lines_of(link: socket.socket) -> Iterator[bytes]:
    """Yield what a socket says until its end."""
    while piece := link.recv(4096):
        yield piece
