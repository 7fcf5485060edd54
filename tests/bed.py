"""The test bed: a real Kubernetes on this machine, and the rights that tests have there."""

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from isolation import names
from isolation.objects.install import installation
from isolation.options import IsolationOptions

REPOSITORY = Path(__file__).resolve().parent.parent
DEFAULT_SCRIPT = REPOSITORY.parent / "shared" / "cluster" / "cluster"

POLL = 0.2


class BedMissing(Exception):
    """There is no test bed, or it does not answer. A failure in CI, a printed skip elsewhere."""


@dataclass(frozen=True)
class Bed:
    """A running test bed. ``script`` is its command, ``kubeconfig`` the administrator's."""

    script: Path
    kubeconfig: Path
    images: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run the bed's command and return its output; a failure raises with what it said."""
        done = subprocess.run(
            [str(self.script), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl as the administrator."""
        return self.command("kubectl", *arguments, stdin=stdin, timeout=timeout)

    def apply(self, *objects: dict) -> None:
        """Apply objects as the administrator."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    @contextmanager
    def namespace(self, prefix: str = "test") -> Iterator[str]:
        """A namespace of one's own; its deletion is asked for at the end, and not waited for."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.kubectl("create", "namespace", name)
        try:
            yield name
        finally:
            self.kubectl("delete", "namespace", name, "--wait=false")

    def options(self, namespace: str, **changes: object) -> IsolationOptions:
        """Options for runs on this bed, with its Python image as the trusted one."""
        return IsolationOptions(namespace=namespace, trusted_image=self.images["python"], **changes)

    @contextmanager
    def installed(self, **changes: object) -> Iterator[IsolationOptions]:
        """A namespace in which Podgate is installed as ``podgate manifests`` says, with the witness ready."""
        with self.namespace("podgate") as name:
            options = self.options(name, **changes)
            self.apply(*installation(options))
            self.kubectl("-n", name, "rollout", "status", f"deployment/{options.witness}", "--timeout=60s", timeout=90)
            yield options

    def account_kubeconfig(self, namespace: str, directory: Path, account: str = names.LAUNCHER_ACCOUNT) -> Path:
        """Write a kubeconfig that has a service account's rights and no others: by default the launcher's."""
        token = self.kubectl("-n", namespace, "create", "token", account).strip()
        administrator = json.loads(self.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": administrator["clusters"],
            "users": [{"name": account, "user": {"token": token}}],
            "contexts": [
                {
                    "name": account,
                    "context": {
                        "cluster": administrator["clusters"][0]["name"],
                        "user": account,
                        "namespace": namespace,
                    },
                }
            ],
            "current-context": account,
        }
        path = directory / f"{account}.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def wait_for(self, what: str, *arguments: str, seconds: float = 30) -> str:
        """Wait until kubectl's output holds ``what``, and return it."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.kubectl(*arguments)
            if what in said:
                return said
            if time.monotonic() > deadline:
                raise AssertionError(f"{' '.join(arguments)}: no {what!r} within {seconds:g} s, but {said!r}")
            time.sleep(POLL)


def find() -> Bed:
    """Return the running bed. Raises BedMissing."""
    script = Path(os.environ.get("PODGATE_TEST_BED", DEFAULT_SCRIPT))
    if not script.exists():
        raise BedMissing(f"no test bed at {script}; set PODGATE_TEST_BED")
    try:
        listed = os.environ.get("KUBECONFIG") or Bed(script, Path("/dev/null")).command("kubeconfig").strip()
        bed = Bed(script, Path(listed.splitlines()[-1]))
        bed.kubectl("get", "--raw=/readyz", timeout=20)
        pairs = [line.split("=", 1) for line in bed.command("images").splitlines() if "=" in line]
    except (AssertionError, subprocess.TimeoutExpired, IndexError) as error:
        raise BedMissing(f"the test bed does not answer: {error}") from error
    return Bed(script, bed.kubeconfig, dict(pairs))
