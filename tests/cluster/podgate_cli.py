"""The command as real processes with the launcher's Role, and an administrator's look at what they leave.

Run as a program it is the command, too, but one that halts itself right after one call of the cluster was carried out:
``podgate_cli.py METHOD:KIND[:PHASE] SIGNAL ARGS…``. So a launch can be killed between two calls.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bed import REPOSITORY, Bed

from isolation import names

FIRST_PROOF_SECONDS = "8"
COMMAND_SECONDS = 150
"""For one process of the command: a launch within a shortened bound, a run of seconds, a removal."""

SMALL = ("--cpus", "0.1", "--memory-mb", "128", "--disk-mb", "64")
"""What a worker of a test gets: the node has two processors, and several tests share it."""

UNTIL_GO = "until [ -e /tmp/go ]; do sleep 0.1; done"
"""Shell of a worker that runs until :meth:`Place.let_go`."""


def until(what: str, look: Callable[[], Any], *, seconds: float = 60, every: float = 0.2) -> Any:
    """Return what ``look`` says as soon as it says something; fail with ``what`` when the time is over."""
    deadline = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(every)
    return seen


@dataclass(frozen=True)
class Done:
    """How a process of the command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def error(self) -> dict[str, Any]:
        """The error, the last line on stderr."""
        (body,) = json.loads(self.err.splitlines()[-1]).values()
        return body


@dataclass(frozen=True)
class Place:
    """A namespace with Podgate installed, seen by an administrator."""

    bed: Bed
    namespace: str
    kubeconfig: Path

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.bed.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def objects(self, kinds: str = "configmap,pod,networkpolicy,secret") -> set[str]:
        """Return the uids of what there is, tombstones and preflights included."""
        return set(self.kubectl("get", kinds, "-o", "jsonpath={.items[*].metadata.uid}").split())

    def of_run(self, run_id: str) -> set[str]:
        """Return what a run has besides its record, as ``kind/name``."""
        listed = self.kubectl("get", "pod,networkpolicy,secret", "-o", "name").split()
        return {name for name in listed if names.token(run_id) in name}

    def record(self, run_id: str) -> dict[str, Any] | None:
        """Return the run's record as it is stored."""
        stored = self.kubectl("get", "configmap", _name(run_id), "--ignore-not-found", "-o", "json")
        return json.loads(json.loads(stored)["data"]["record.json"]) if stored else None

    def phase(self, run_id: str) -> str | None:
        """Return the phase that the record says."""
        record = self.record(run_id)
        return record and record["phase"]

    def pod(self, run_id: str) -> dict[str, Any] | None:
        """Return the run's pod."""
        stored = self.kubectl("get", "pod", _name(run_id), "--ignore-not-found", "-o", "json")
        return json.loads(stored) if stored else None

    def container(self, run_id: str, name: str) -> dict[str, Any]:
        """Return a container's state, empty before it is published."""
        status = (self.pod(run_id) or {}).get("status", {})
        everyone = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return next((each["state"] for each in everyone if each["name"] == name), {})

    def inside(self, run_id: str, container: str, *argv: str) -> str:
        """Run a program in a container of the run."""
        return self.kubectl("exec", _name(run_id), "-c", container, "--", *argv)

    def let_go(self, run_id: str) -> None:
        """End a worker that waits for it (``UNTIL_GO``)."""
        self.inside(run_id, names.WORKER, "touch", "/tmp/go")

    def worker_was_begun(self, run_id: str) -> bool:
        """Tell whether any event speaks of the worker's container: a pull, a start, a failure."""
        events = json.loads(self.kubectl("get", "events", "-o", "json"))["items"]
        about = [e["involvedObject"] for e in events if e["involvedObject"].get("name") == _name(run_id)]
        return any(names.WORKER in about_one.get("fieldPath", "") for about_one in about)


@dataclass
class Podgate:
    """``podgate``: called, it runs to its end; started, it runs beside the test. Settings are environment variables."""

    place: Place
    environ: dict[str, str]
    run_ids: list[str] = field(default_factory=list)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run_id(self) -> str:
        """Return a new run id; its pod is deleted after the test."""
        self.run_ids.append(f"test-{secrets.token_hex(6)}")
        return self.run_ids[-1]

    def handle(self, run_id: str) -> str:
        """Return a run's handle."""
        return f"{self.place.namespace}/{names.token(run_id)}"

    def image(self, name: str) -> str:
        """Return one of the bed's images, by digest."""
        return self.place.bed.images[name]

    def shell(self, run_id: str, script: str, *flags: str) -> list[str]:
        """Arguments of ``run`` and ``launch`` for a small worker with a shell."""
        command = ("--image", self.image("python"), "--run-id", run_id, *SMALL, *flags, "--", "sh", "-c", script)
        return list(command)

    def set(self, **settings: object) -> "Podgate":
        """Return the same command under further settings."""
        more = {f"PODGATE_{name.upper()}": str(value) for name, value in settings.items()}
        return replace(self, environ={**self.environ, **more})

    def at(self, kubeconfig: Path) -> "Podgate":
        """Return the same command with another way to the cluster."""
        return replace(self, environ={**self.environ, "KUBECONFIG": str(kubeconfig)})

    def program(self, path: Path, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program of ours, with the same settings, instead of the command."""
        return self._start([sys.executable, str(path), *arguments], PYTHONPATH=str(REPOSITORY))

    def __call__(self, *arguments: str, stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> Done:
        """Run the command to its end."""
        process = self.start(*arguments)
        return self.end(process, stdin=stdin, seconds=seconds)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command."""
        return self._start([sys.executable, "-m", "launcher", *arguments])

    def halting(self, point: str, how: signal.Signals, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command so that it halts right after a call at ``point`` (``METHOD:KIND[:PHASE]``)."""
        return self._start(
            [sys.executable, __file__, point, how.name, *arguments], PYTHONPATH=str(REPOSITORY / "tests")
        )

    def end(
        self, process: subprocess.Popen[bytes], *, stdin: str | None = None, seconds: float = COMMAND_SECONDS
    ) -> Done:
        """Wait for a process, and say how it ended."""
        out, err = process.communicate(stdin and stdin.encode(), timeout=seconds)
        return Done(process.returncode, out.decode(), err.decode())

    def _start(self, argv: Sequence[str], **more: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ | more,
            cwd=REPOSITORY,
        )
        self.running.append(process)
        return process

    def close(self) -> None:
        """End what the test left running, here and in the cluster."""
        for process in self.running:
            process.kill()
            process.communicate()
        if self.run_ids:
            pods = [_name(run_id) for run_id in self.run_ids]
            self.place.kubectl("delete", "pod", *pods, "--ignore-not-found", "--wait=false")


@contextmanager
def opened(place: Place, workspace_root: Path) -> Iterator[Podgate]:
    """Yield the command with the settings of a test."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PODGATE_")}
    settings = {
        "KUBECONFIG": str(place.kubeconfig),
        "PODGATE_NAMESPACE": place.namespace,
        "PODGATE_TRUSTED_IMAGE": place.bed.images["python"],
        "PODGATE_FIRST_PROOF_SECONDS": FIRST_PROOF_SECONDS,
        "PODGATE_PREFLIGHT_SUCCESS_KEPT_SECONDS": "3600",
        "PODGATE_WORKSPACE_ROOT": str(workspace_root),
    }
    podgate = Podgate(place, clean | settings)
    try:
        yield podgate
    finally:
        podgate.close()


def _name(run_id: str) -> str:
    return names.run_name(names.token(run_id))


def _halting_main(point: str, how: str, arguments: Sequence[str]) -> int:
    """Be the command, and send ourselves a signal right after the call for a run's object that ``point`` names."""
    import asyncio  # noqa: PLC0415 - only the program needs what follows, tests that import this module do not
    from contextlib import asynccontextmanager  # noqa: PLC0415

    from launcher.app import build_launcher, open_cluster  # noqa: PLC0415
    from launcher.cli.main import main  # noqa: PLC0415
    from launcher.cli.program import Program  # noqa: PLC0415
    from launcher.cluster.port import Json, Kind  # noqa: PLC0415
    from launcher.cluster.retrying import RetryingCluster  # noqa: PLC0415
    from launcher.testing.interceptor import Interceptor  # noqa: PLC0415

    class Halting(Interceptor):
        async def create(self, kind: Kind, namespace: str | None, body: Json, *, dry_run: bool = False) -> Json:
            stored = await super().create(kind, namespace, body, dry_run=dry_run)
            _halt(f"create:{kind.value.kind}", body)
            return stored

        async def replace(self, kind: Kind, namespace: str, name: str, body: Json) -> Json:
            stored = await super().replace(kind, namespace, name, body)
            _halt(f"replace:{kind.value.kind}", body)
            return stored

    def _halt(call: str, body: Json) -> None:
        if not body["metadata"]["name"].startswith("podgate-run-"):
            return
        said = json.loads(body.get("data", {}).get("record.json", "{}")).get("phase")
        if point in (call, f"{call}:{said}"):
            os.kill(os.getpid(), signal.Signals[how])

    @asynccontextmanager
    async def open_launcher(settings: Any) -> Any:
        async with open_cluster(settings) as cluster:
            retrying = RetryingCluster(Halting(cluster), sleep=asyncio.sleep, monotonic=time.monotonic)
            yield build_launcher(settings, retrying)

    return main(arguments, Program(open_launcher=open_launcher))


if __name__ == "__main__":
    sys.exit(_halting_main(sys.argv[1], sys.argv[2], sys.argv[3:]))
