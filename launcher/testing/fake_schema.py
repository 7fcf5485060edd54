"""The little of the API's schema that a fake server checks and fills in: enough to meet our own mistakes."""

import base64
import copy
import re
from collections.abc import Mapping
from types import MappingProxyType

from launcher.cluster.errors import Refused
from launcher.cluster.port import Json, Kind

LARGEST_DATA = 1 << 20
"""Bytes of a ConfigMap's or Secret's data; more is refused with 422."""

_COMMON = frozenset({"apiVersion", "kind", "metadata"})
_METADATA = frozenset(
    [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ]
)
_TOP: Mapping[Kind, frozenset[str]] = MappingProxyType(
    {
        Kind.CONFIG_MAP: frozenset({"data", "binaryData", "immutable"}),
        Kind.SECRET: frozenset({"data", "stringData", "type", "immutable"}),
        Kind.SERVICE_ACCOUNT: frozenset({"secrets", "imagePullSecrets", "automountServiceAccountToken"}),
        Kind.EVENT: frozenset(
            [
                "action",
                "count",
                "eventTime",
                "firstTimestamp",
                "involvedObject",
                "lastTimestamp",
                "message",
                "reason",
                "related",
                "reportingComponent",
                "reportingInstance",
                "series",
                "source",
                "type",
            ]
        ),
    }
)
_USUAL = frozenset({"spec", "status"})
_POLICY = frozenset({"podSelector", "policyTypes", "ingress", "egress"})
_POD = frozenset(
    [
        "activeDeadlineSeconds",
        "affinity",
        "automountServiceAccountToken",
        "containers",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostUsers",
        "hostname",
        "imagePullSecrets",
        "initContainers",
        "nodeName",
        "nodeSelector",
        "os",
        "overhead",
        "preemptionPolicy",
        "priority",
        "priorityClassName",
        "readinessGates",
        "resourceClaims",
        "resources",
        "restartPolicy",
        "runtimeClassName",
        "schedulerName",
        "schedulingGates",
        "securityContext",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "terminationGracePeriodSeconds",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    ]
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def check_known(operation: str, kind: Kind, namespace: str | None, body: Json) -> None:
    """Raise Refused for what a strict server refuses: unknown fields, a bad name, another namespace."""
    metadata = body.get("metadata", {})
    unknown = set(body) - _COMMON - _TOP.get(kind, _USUAL)
    unknown |= {f"metadata.{name}" for name in set(metadata) - _METADATA}
    spec = {Kind.POD: _POD, Kind.NETWORK_POLICY: _POLICY}.get(kind)
    if spec is not None:
        unknown |= {f"spec.{name}" for name in set(body.get("spec", {})) - spec}
    if unknown:
        message = f'strict decoding error: unknown field "{min(unknown)}"'
        raise Refused(operation, status=400, reason="BadRequest", message=message)
    if metadata.get("namespace", namespace) != namespace:
        raise Refused(operation, status=400, reason="BadRequest", message="the namespace does not match the request")
    if not _NAME.fullmatch(metadata.get("name", "")):
        raise Refused(operation, status=422, reason="Invalid", message="metadata.name: Invalid value")
    if sum(len(value) for value in (body.get("data") or {}).values()) > LARGEST_DATA:
        message = "[]: Too long: may not be more than 1048576 bytes"
        raise Refused(operation, status=422, reason="Invalid", message=message)


def normalized(kind: Kind, body: Json) -> Json:
    """Return the object as a server would spell it."""
    made = copy.deepcopy(body)
    if kind is Kind.SECRET:
        data = {name: base64.b64encode(text.encode()).decode() for name, text in made.pop("stringData", {}).items()}
        made["data"] = made.get("data", {}) | data
        made.setdefault("type", "Opaque")
    if kind is Kind.POD:
        made.setdefault("status", {"phase": "Pending", "qosClass": "Guaranteed"})
    if kind is Kind.NETWORK_POLICY:
        for rule in [*made["spec"].get("ingress", ()), *made["spec"].get("egress", ())]:
            for port in rule.get("ports", ()):
                port.setdefault("protocol", "TCP")
    return made
