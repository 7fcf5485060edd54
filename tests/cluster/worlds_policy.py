"""Worlds in which policies, admission or the witness are not as they should be, and how they are set right again."""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bed import Bed
from podgate_cli import Done, Place, Podgate, until

from isolation import names
from isolation.inpod import source
from isolation.objects.programs import INTERPRETER

Mode = Callable[[str], None]

WITNESS = "podgate-witness"
ALL_WITNESSES = 2
ENFORCED = "enforce"


@contextmanager
def modes(podgate: Podgate) -> Iterator[Mode]:
    """Yield what sets how policies are enforced, after a preflight that is valid for the rest of the test."""
    valid_preflight(podgate)
    try:
        yield lambda name: (podgate.place.bed.command("policy", name), None)[1]
    finally:
        podgate.place.bed.command("policy", ENFORCED)


def valid_preflight(podgate: Podgate) -> None:
    """See to a preflight that succeeded; one that failed for an earlier test is made anew."""
    checked = podgate("preflight", "--json")
    if checked.code:
        checked = podgate("preflight", "--force", "--json")
    assert checked.code == 0, checked.out or checked.err


def own_image(bed: Bed, directory: Path) -> str:
    """Make a worker image that no node has: whoever starts its container must pull it, and an Event says so."""
    shutil.copy(shutil.which("busybox") or "/bin/busybox", directory / "sh")
    (directory / "tmp").mkdir()
    (directory / "content").write_text(secrets.token_hex(16))
    return bed.command("image", "test-worker", str(directory), "/sh").strip()


def evidence(podgate: Podgate, run_id: str) -> dict[str, Any]:
    """Return a run's evidence, as the command prints it."""
    return podgate("evidence", "--json", "--run-id", run_id).json


def refused(podgate: Podgate, *flags: str, image: str | None = None) -> Done:
    """Launch a run that must be refused: nothing of its worker began, and nothing is left but the record."""
    run_id = podgate.run_id()
    arguments = podgate.shell(run_id, "true", *flags)
    if image is not None:
        arguments[arguments.index("--image") + 1] = image
    done = podgate("launch", "--json", *arguments)
    assert done.code == 125, done.err
    nothing_began(podgate.place, run_id)
    return done


def nothing_began(place: Place, run_id: str) -> None:
    """Hold that a run failed without its worker, and that its pod, policy and Secret go."""
    assert place.phase(run_id) == "failed"
    until("pod, policy and Secret are gone", lambda: not place.of_run(run_id))
    assert not place.worker_was_begun(run_id)


def was_pulled(place: Place, image: str) -> bool:
    """Tell whether any Event of the namespace speaks of an image: that it is pulled, or was there already."""
    said = json.loads(place.kubectl("get", "events", "-o", "json"))["items"]
    return any(image in (event.get("message") or "") for event in said)


def prover_log(place: Place, run_id: str) -> list[dict[str, Any]]:
    """Return what the prover has said so far; empty before it runs."""
    if "running" not in place.container(run_id, names.PROVER):
        return []
    log = place.kubectl("logs", names.run_name(names.token(run_id)), "-c", names.PROVER)
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def rounds(place: Place, run_id: str) -> list[dict[str, Any]]:
    """Return the prover's rounds so far, oldest first."""
    return [line for line in prover_log(place, run_id) if "round" in line]


_MOVED = """
_listen = listen
def listen(port, kind):
    return _listen(port + 10000 if port == CONFIG["denyPort"] and kind in MOVED else port, kind)
"""
_MUTE_TCP = """
HELD = []
def _hold(self, client, own):
    if client._source:
        client._source.open -= 1
    HELD.append(client)
    del HELD[:-64]
Witness._deny = _hold
"""
_MUTE_UDP = """
def _swallow(self):
    try:
        self._datagrams.recv(256)
    except OSError:
        pass
Witness._answer_datagrams = _swallow
"""

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "dead": "MOVED = (SOCK_STREAM, SOCK_DGRAM)" + _MOVED,
        "TCP dead": "MOVED = (SOCK_STREAM,)" + _MOVED,
        "UDP dead": "MOVED = (SOCK_DGRAM,)" + _MOVED,
        "mute": _MUTE_TCP + _MUTE_UDP,
        "TCP mute": _MUTE_TCP,
        "UDP mute": _MUTE_UDP,
    }
)
"""What is changed in the witness's program. A dead listener listens elsewhere: the port itself is closed."""

_START = 'if __name__ == "__main__":'


@dataclass(frozen=True)
class Witness:
    """The witness of a place, which tests break and set right."""

    place: Place

    def pods(self) -> list[str]:
        """Return its pods by name, those that are ending included."""
        return self.place.kubectl("get", "pod", "-l", f"app.kubernetes.io/name={WITNESS}", "-o", "name").split()

    def addresses(self) -> set[str]:
        """Return the addresses of its pods."""
        everyone = "jsonpath={.items[*].status.podIPs[*].ip}"
        listed = self.place.kubectl("get", "pod", "-l", f"app.kubernetes.io/name={WITNESS}", "-o", everyone)
        return set(listed.split())

    def service_addresses(self) -> list[str]:
        """Return its Service's addresses, one a family."""
        return self._stored("service")["spec"]["clusterIPs"]

    def settled(self) -> None:
        """Wait until it is all there, as it was last asked for, and nothing older besides."""
        self.place.kubectl("rollout", "status", f"deployment/{WITNESS}", "--timeout=90s")
        until("old witnesses are gone", lambda: len(self.pods()) == ALL_WITNESSES)

    def break_with(self, fault: str) -> None:
        """Start it anew with a fault of ``FAULTS``. Its liveness probe goes, lest it be restarted again and again."""
        before, start, after = source("witness").rpartition(_START)
        assert start, "the witness's program starts as others do"
        program = f"{before}\nCONFIG = parse_object(sys.argv[1])\n{FAULTS[fault]}\n{start}{after}"
        self._replace({"command": [*INTERPRETER, program.replace("$", "$$")], "livenessProbe": None})

    def serve_deny_elsewhere(self) -> None:
        """Start it anew with another deny port than the one that runs look at."""
        (config,) = self._stored("deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
        moved = json.dumps({**json.loads(config), "denyPort": 18788})
        self._replace({"args": [moved], "livenessProbe": None})

    def scale(self, replicas: int) -> None:
        """Ask for a number of backends, and wait until there are so many."""
        self.place.kubectl("scale", "deployment", WITNESS, f"--replicas={replicas}")
        until(f"{replicas} witnesses are left", lambda: len(self.pods()) == replicas)

    def only_ipv4(self) -> None:
        """Take the Service's IPv6 address away."""
        first = next(address for address in self.service_addresses() if ":" not in address)
        spec = {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"], "clusterIPs": [first]}
        self._merge("service", spec)

    @contextmanager
    def mended_afterwards(self) -> Iterator["Witness"]:
        """Set everything back at the end."""
        deployment, service = self._stored("deployment")["spec"], self._stored("service")["spec"]
        try:
            yield self
        finally:
            self._merge("service", {key: service[key] for key in ("ipFamilyPolicy", "ipFamilies", "clusterIPs")})
            if self._stored("deployment")["spec"] != deployment:
                # All at once, and only then as before: a rollout one by one would take twice the time.
                self._put(deployment | {"strategy": {"type": "Recreate"}})
                self.settled()
                self._put(deployment)
            self.settled()

    def _replace(self, container: dict[str, Any]) -> None:
        spec = self._stored("deployment")["spec"]
        (old,) = spec["template"]["spec"]["containers"]
        spec["template"]["spec"]["containers"] = [{key: v for key, v in (old | container).items() if v is not None}]
        self._put(spec | {"strategy": {"type": "Recreate"}})
        self.settled()

    def _put(self, spec: dict[str, Any]) -> None:
        patch = json.dumps([{"op": "replace", "path": "/spec", "value": spec}])
        self.place.kubectl("patch", "deployment", WITNESS, "--type=json", "-p", patch)

    def _merge(self, kind: str, spec: dict[str, Any]) -> None:
        self.place.kubectl("patch", kind, WITNESS, "--type=merge", "-p", json.dumps({"spec": spec}))

    def _stored(self, kind: str) -> dict[str, Any]:
        return json.loads(self.place.kubectl("get", kind, WITNESS, "-o", "json"))
