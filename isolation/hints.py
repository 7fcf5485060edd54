"""Why a stored object may differ from the one that was sent, where the cause is well known. One rule, one cause.

A hint is advice for a person. Nothing is decided by it, and it never repeats a value.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Keys = tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """A difference, as the rules look at it."""

    kind: str
    keys: Keys
    name: str
    sent: Any
    stored: Any


@dataclass(frozen=True)
class Cause:
    """A well-known cause: how it shows, and what to say about it."""

    says: str
    shows: Callable[[Seen], bool]


_MESH_NAME = re.compile(r"(^|[^a-z])(istio|linkerd|kuma|consul|envoy|cilium-proxy|osm|mesh)", re.IGNORECASE)
_IDENTITY_VARIABLE = re.compile(r"AWS_|AZURE_|GOOGLE_|CLOUDSDK_|GCP_")
_IDENTITY_VOLUME = re.compile(r"aws-iam-token|eks-pod-identity-token|azure-identity-token|gcp-ksa|.*-identity-token")
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105 -- a volume's name
_LIMIT_RANGER = "kubernetes.io/limit-ranger"
_PLACED = {"containers", "initContainers"}
_MAPS = {"labels", "annotations"}


def hint(kind: str, keys: Keys, name: str, sent: Any, stored: Any) -> str | None:
    """What the difference usually comes from; None when nothing is known. The first cause that shows wins."""
    seen = Seen(kind, keys, name, sent, stored)
    return next((cause.says for cause in CAUSES if cause.shows(seen)), None)


def _in(seen: Seen, *lists: str) -> bool:
    """True when the difference is a whole element of one of these lists."""
    return len(seen.keys) > 1 and seen.keys[-1] == "*" and seen.keys[-2] in lists


def _in_map(seen: Seen) -> bool:
    """True when the difference is one label or one annotation."""
    return len(seen.keys) == 3 and seen.keys[0] == "metadata" and seen.keys[1] in _MAPS  # noqa: PLR2004 -- metadata, map, name


def _mesh(seen: Seen) -> bool:
    placed = _in(seen, *_PLACED, "volumes", "env") or _in_map(seen)
    return placed and _MESH_NAME.search(seen.name) is not None


def _limit_range(seen: Seen) -> bool:
    return seen.name == _LIMIT_RANGER or "resources" in seen.keys


def _identity(seen: Seen) -> bool:
    if _in(seen, "env"):
        return _IDENTITY_VARIABLE.match(seen.name) is not None
    if _in(seen, "volumes"):
        return _IDENTITY_VOLUME.fullmatch(seen.name) is not None
    return _in(seen, "volumeMounts") and "serviceaccount" in seen.name and "kubernetes.io" not in seen.name


def _token(seen: Seen) -> bool:
    mounted = _in(seen, "volumeMounts") and "kubernetes.io/serviceaccount" in seen.name
    return mounted or (_in(seen, "volumes") and seen.name.startswith(_TOKEN_VOLUME))


def _mirror(seen: Seen) -> bool:
    if seen.keys[-1:] != ("image",) or not (isinstance(seen.sent, str) and isinstance(seen.stored, str)):
        return False
    return "@" in seen.sent and seen.sent.partition("@")[2] == seen.stored.partition("@")[2]


def _scc(seen: Seen) -> bool:
    constrained = {"seLinuxOptions", "fsGroup", "runAsUser", "supplementalGroups"}
    return seen.name == "openshift.io/scc" or ("securityContext" in seen.keys and seen.name in constrained)


def _topology(seen: Seen) -> bool:
    return _in_map(seen) and seen.name.startswith("topology.kubernetes.io/")


def _reordered(seen: Seen) -> bool:
    return bool(seen.keys) and seen.keys[-1] in _PLACED


def _member(*keys: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.keys[: len(keys)] == keys


CAUSES: tuple[Cause, ...] = (
    Cause("a service mesh injects its proxy: exclude this namespace from the injection", _mesh),
    Cause("a LimitRange rewrites resources: remove it from this namespace, or its defaults", _limit_range),
    Cause("topology labels are copied from the node: allow them by path and value", _topology),
    Cause("a pod-identity webhook injects cloud credentials: exclude this namespace or service account", _identity),
    Cause("a service account token is mounted: something turned automountServiceAccountToken on", _token),
    Cause("an image mirror rewrites the repository; the digest is the same: allow it by its prefix", _mirror),
    Cause("the image was replaced by another one", lambda seen: seen.keys[-1:] == ("image",)),
    Cause("a SecurityContextConstraint rewrites the pod: give the namespace one that keeps its uids", _scc),
    Cause(
        "the service account adds a pull secret: pull secrets belong to the node",
        _member("spec", "imagePullSecrets"),
    ),
    Cause("a debug container was attached to the pod", lambda seen: "ephemeralContainers" in seen.keys),
    Cause("the object is being deleted", lambda seen: seen.keys[:2] == ("metadata", "deletionTimestamp")),
    Cause("the object is being deleted", lambda seen: seen.keys[:2] == ("metadata", "deletionGracePeriodSeconds")),
    Cause("a default PriorityClass: name the class in the settings", _member("spec", "priorityClassName")),
    Cause("a runtime class or a node-selector policy says where pods may go", _member("spec", "nodeSelector")),
    Cause("a runtime class or a toleration policy adds tolerations", _member("spec", "tolerations")),
    Cause("an admission webhook or policy injects a container", lambda seen: _in(seen, *_PLACED)),
    Cause("an admission webhook or policy injects a volume", lambda seen: _in(seen, "volumes", "volumeMounts")),
    Cause("an admission webhook or policy injects environment variables", lambda seen: _in(seen, "env")),
    Cause(
        "elements stand in another order: an admission webhook put its own first",
        _reordered,
    ),
    Cause("an admission webhook, policy or controller writes labels or annotations", _in_map),
)
