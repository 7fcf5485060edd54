"""Specs, options and objects that tests of isolation share."""

import copy
import json
from pathlib import Path
from typing import Any

from isolation.objects import Owner, build_pod, build_policy
from isolation.options import IsolationOptions
from isolation.spec import JobSpec, parse_spec

RECORDED = Path(__file__).parent / "data" / "kubernetes-1.34"

TRUSTED = "registry.test/python@sha256:" + "a" * 64
IMAGE = "registry.test/team/job@sha256:" + "b" * 64
RECORD = Owner("v1", "ConfigMap", "podgate-run-x", "0f0e0d0c-1111-2222-3333-444455556666")
POD = Owner("v1", "Pod", "podgate-run-x", "aaaaaaaa-1111-2222-3333-444455556666")
WITNESS_IPS = {"4": "10.96.0.9", "6": "fd00::9"}


def wire(**fields: Any) -> dict[str, Any]:
    return {"runId": "run-1", "image": IMAGE, **fields}


def spec(**fields: Any) -> JobSpec:
    return parse_spec(wire(**fields))


def options(**fields: Any) -> IsolationOptions:
    return IsolationOptions(trusted_image=TRUSTED, **fields)


def pod(
    job: JobSpec | None = None, chosen: IsolationOptions | None = None, secret: str | None = None
) -> dict[str, Any]:
    job, chosen = job or spec(command=["true"]), chosen or options()
    return build_pod(job, chosen, witness_ips=WITNESS_IPS, record=RECORD, secret=secret)


def policy(job: JobSpec | None = None, chosen: IsolationOptions | None = None) -> dict[str, Any]:
    return build_policy(job or spec(), chosen or options(), pod=POD)


def stored(sent: dict[str, Any]) -> dict[str, Any]:
    """What a server gives back for a manifest of ours: its own metadata added, and for a pod the node and a status."""
    kept = copy.deepcopy(sent)
    kept["metadata"] |= {
        "uid": "99999999-1111-2222-3333-444455556666",
        "resourceVersion": "17",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": [{"manager": "podgate", "operation": "Update"}],
    }
    if kept["kind"] == "Pod":
        kept["spec"]["nodeName"] = "node-1"
        kept["status"] = {"phase": "Pending"}
    return kept


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def container(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    body = manifest["spec"]
    return next(c for c in [*body.get("initContainers", []), *body["containers"]] if c["name"] == name)
