"""What all containers of ours have in common."""

from collections.abc import Mapping, Sequence
from typing import Any

from isolation import quantity
from isolation.resources import Share


def container(
    name: str,
    image: str,
    share: Share,
    *,
    command: Sequence[str] = (),
    args: Sequence[str] = (),
    env: Sequence[Mapping[str, Any]] = (),
    mounts: Sequence[Mapping[str, Any]] = (),
    uid: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One confined container. ``uid`` only where it differs from the pod's; empty lists are left out."""
    built: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": amounts(share), "requests": amounts(share)},
        "securityContext": confinement(uid),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        **more,
    }
    lists = {"command": command, "args": args, "env": env, "volumeMounts": mounts}
    return {**built, **{key: list(items) for key, items in lists.items() if items}}


def amounts(share: Share) -> dict[str, str]:
    """A share, in the server's spelling."""
    return {
        "cpu": quantity.cpu(share.millicores),
        "ephemeral-storage": quantity.mebibytes(share.disk_mib),
        "memory": quantity.mebibytes(share.memory_mib),
    }


def confinement(uid: int | None) -> dict[str, Any]:
    """No way to more rights, nothing writable but the mounts. The pod's own context says the rest."""
    context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }
    return context if uid is None else {**context, "runAsUser": uid}


def variable(name: str, value: str) -> dict[str, Any]:
    """An environment variable with a literal value; the server drops an empty one."""
    return {"name": name, "value": literal(value)} if value else {"name": name}


def literal(word: str) -> str:
    """Text that the kubelet hands on unchanged: it turns ``$$`` into ``$`` and expands ``$(NAME)``."""
    return word.replace("$", "$$")


def from_pod(name: str, field: str) -> dict[str, Any]:
    """An environment variable that the kubelet fills in from the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": field}}}


def mount(volume: str, path: str, *, sub_path: str | None = None, read_only: bool = False) -> dict[str, Any]:
    """One mount of a volume."""
    built: dict[str, Any] = {"mountPath": path, "name": volume}
    if sub_path is not None:
        built["subPath"] = sub_path
    if read_only:
        built["readOnly"] = True
    return built


def memory_volume(name: str, mebibytes: int) -> dict[str, Any]:
    """A volume in memory; what is in it counts against the memory of the container that wrote it."""
    return {"emptyDir": {"medium": "Memory", "sizeLimit": quantity.mebibytes(mebibytes)}, "name": name}
