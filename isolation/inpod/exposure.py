"""Part: whether the pod can reach its own node and the API server. Reported, and never part of a verdict."""

from __future__ import annotations

import time

from isolation.inpod.loop import Loop
from isolation.inpod.probe import BANNER, CONNECTED, Attempt, plain_ip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping

KUBELET_PORT = 10250
EAGER_TRIES = 10
EAGER_SECONDS = 2.0
SELDOM_SECONDS = 60.0


def node_targets(environment: Mapping[str, str]) -> list[tuple[str, str, int]]:
    """Return (name, address, port) of the node's kubelet in each family and of the API server, from the environment."""
    hosts = [ip for ip in map(plain_ip, environment.get("PODGATE_HOST_IPS", "").split(",")) if ip]
    found = [("kubelet", ip, KUBELET_PORT) for ip in hosts]
    server, port = (
        plain_ip(environment.get("KUBERNETES_SERVICE_HOST", "")),
        environment.get("KUBERNETES_SERVICE_PORT", ""),
    )
    if server and port.isdigit() and 0 < int(port) < 65536:
        found.append(("apiserver", server, int(port)))
    return found


class Exposure:
    """Tries each target now and again; ``reachable`` says what the last try of each saw."""

    def __init__(self, loop: Loop, targets: list[tuple[str, str, int]]) -> None:
        self._loop, self._targets = loop, targets
        self._reached: dict[str, bool] = {}
        self._tries = 0
        if targets:
            loop.at(time.monotonic(), self._try_all)

    @property
    def looked(self) -> bool:
        """True once every target has been tried."""
        return len(self._reached) == len({label(*target) for target in self._targets})

    @property
    def reachable(self) -> list[str]:
        """Names and addresses of what could be reached at the last try."""
        return [name for name, reached in self._reached.items() if reached]

    def _try_all(self) -> None:
        self._tries += 1
        for target in self._targets:
            self._try(label(*target), Attempt(target[1], target[2]))
        pause = EAGER_SECONDS if self._tries < EAGER_TRIES else SELDOM_SECONDS
        self._loop.at(time.monotonic() + pause, self._try_all)

    def _try(self, name: str, attempt: Attempt) -> None:
        def ended() -> None:
            self._reached[name] = attempt.kind in (BANNER, CONNECTED)

        attempt.start(self._loop, ended)


def label(name: str, ip: str, port: int) -> str:
    """Return how evidence calls a target."""
    return "%s %s:%d" % (name, "[%s]" % ip if ":" in ip else ip, port)
