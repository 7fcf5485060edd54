"""Pods that a measurement makes for itself, and takes away again however it ends."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from isolation.objects.container import confinement
from isolation.options import IsolationOptions
from launcher.cluster.port import AdminPort, Json, Kind

WAIT_SECONDS = 120.0
"""What a pod may take to come up, and to go."""

POD_SECONDS = 3600
"""A pod ends by itself after that, should this process be killed before it could delete it."""

POLL = 0.25


def new_name() -> str:
    """Return a name that no other pod has."""
    return f"bench-{secrets.token_hex(4)}"


@asynccontextmanager
async def pod(cluster: AdminPort, options: IsolationOptions, name: str, **parts: Any) -> AsyncIterator[None]:
    """Create a pod, and wait for its end afterwards: two in turn must not share the machine.

    ``parts`` belong to its spec. It is deleted by its name, also when the answer to its creation never came.
    """
    try:
        await cluster.create(Kind.POD, options.namespace, _body(options, name, parts))
        yield
    finally:
        await _gone(cluster, options.namespace, name)


async def running(cluster: AdminPort, namespace: str, name: str, containers: int) -> None:
    """Wait until so many containers run. Raises RuntimeError with what the cluster said last when they never do."""
    found: Json | None = None
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not _runs(found := await cluster.get(Kind.POD, namespace, name), containers):
                await asyncio.sleep(POLL)
    except TimeoutError as error:
        raise RuntimeError(f"pod {name} did not run within {WAIT_SECONDS:g} s: {_said(found)}") from error


def container(name: str, image: str, command: Sequence[str], amounts: dict[str, str], **more: Any) -> Json:
    """Return a container whose limits equal its requests, as confined as those of a run."""
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": confinement(None),
        **more,
    }


def _body(options: IsolationOptions, name: str, parts: dict[str, Any]) -> Json:
    uids = options.uids
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": options.namespace},
        "spec": {
            "activeDeadlineSeconds": POD_SECONDS,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "fsGroup": uids.group,
                "runAsGroup": uids.group,
                "runAsNonRoot": True,
                "runAsUser": uids.worker,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **parts,
        },
    }


async def _gone(cluster: AdminPort, namespace: str, name: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        found = await cluster.get(Kind.POD, namespace, name)
        if found is not None:
            await cluster.delete(Kind.POD, namespace, name, uid=found["metadata"]["uid"], grace_seconds=1)
        while await cluster.get(Kind.POD, namespace, name) is not None:
            await asyncio.sleep(POLL)


def _said(found: Json | None) -> str:
    """Return the messages of the pod's conditions, which name what is missing (processors, an image, …)."""
    status = (found or {}).get("status", {})
    messages = [each["message"] for each in status.get("conditions", []) if each.get("message")]
    return "; ".join(messages) or status.get("phase", "it is not there")


def _runs(found: Json | None, containers: int) -> bool:
    statuses = (found or {}).get("status", {}).get("containerStatuses") or []
    return len(statuses) == containers and all("running" in each["state"] for each in statuses)
