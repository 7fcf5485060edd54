"""What ``podgate doctor`` looks at. Gathering only: what the facts mean is decided in ``doctor_checks.py``.

Nothing is created: access is asked by SelfSubjectAccessReview, and the exact pod and policy of a run go in by dry-run.
"""

from collections.abc import Awaitable
from dataclasses import dataclass, replace
from typing import TypeVar

from isolation import names
from isolation.objects import Owner, build_pod, build_policy
from isolation.objects.install import launcher_rights
from isolation.options import IsolationOptions
from isolation.spec import JobSpec
from launcher.cluster.errors import ClusterError, Refused
from launcher.cluster.port import AdminPort, Json, Kind
from launcher.settings import Settings

T = TypeVar("T")

_FORBIDDEN = (401, 403)
_RUN_ID = "podgate-doctor"
_UNKNOWN_UID = "00000000-0000-4000-8000-000000000000"
"""Owners of dry-run objects: nothing looks them up before the garbage collector does, and nothing is stored."""


@dataclass(frozen=True)
class Right:
    """One thing the launcher's account has to be able to do in the namespace."""

    verb: str
    group: str
    resource: str
    name: str = ""
    allowed: bool | None = None

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}" + (f" {self.name}" if self.name else "")


@dataclass(frozen=True)
class Unknown:
    """A question that was not answered. ``forbidden``: this account may not ask it."""

    why: str
    forbidden: bool = False


@dataclass(frozen=True)
class DryRun:
    """An object as it was sent, and as the cluster would store it or why it would not."""

    sent: Json
    stored: Json | Unknown


@dataclass(frozen=True)
class Facts:
    """Everything that was found. None means that the object is not there."""

    version: tuple[int, int] | Unknown
    rights: tuple[Right, ...] | Unknown
    namespace: Json | Unknown | None
    default_deny: Json | Unknown | None
    witness: Json | Unknown | None
    witness_deployment: Json | Unknown | None
    pod: DryRun | Unknown
    policy: DryRun | Unknown


async def gather(cluster: AdminPort, settings: Settings) -> Facts:
    """Ask everything. A question that cannot be answered becomes a fact, too, so that the others still are."""
    options = settings.isolation
    space = options.namespace
    witness = await _ask(cluster.get(Kind.SERVICE, space, options.witness))
    pod, policy = await _dry_runs(cluster, options, witness)
    return Facts(
        version=await _ask(cluster.server_version()),
        rights=await _ask(_reviewed(cluster, space, required_rights(options))),
        namespace=await _ask(cluster.get(Kind.NAMESPACE, None, space)),
        default_deny=await _ask(cluster.get(Kind.NETWORK_POLICY, space, names.DEFAULT_DENY)),
        witness=witness,
        witness_deployment=await _ask(cluster.get(Kind.DEPLOYMENT, space, options.witness)),
        pod=pod,
        policy=policy,
    )


def required_rights(options: IsolationOptions) -> tuple[Right, ...]:
    """The launcher's rights, verb by verb; ``podgate manifests`` makes its Role of the same ones."""
    return tuple(
        Right(verb, right.group, right.resource, name)
        for right in launcher_rights(options)
        for name in right.only or ("",)
        for verb in right.verbs
    )


async def _reviewed(cluster: AdminPort, namespace: str, rights: tuple[Right, ...]) -> tuple[Right, ...]:
    return tuple([await _review(cluster, namespace, right) for right in rights])


async def _review(cluster: AdminPort, namespace: str, right: Right) -> Right:
    answer = await cluster.create(Kind.ACCESS_REVIEW, None, _question(namespace, right))
    return replace(right, allowed=bool(answer.get("status", {}).get("allowed")))


def _question(namespace: str, right: Right) -> Json:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": resource}
    attributes |= {"subresource": subresource} if subresource else {}
    attributes |= {"name": right.name} if right.name else {}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }


def witness_ips(service: Json) -> dict[str, str]:
    """The witness's ClusterIPs by family."""
    ips = service.get("spec", {}).get("clusterIPs") or []
    return {("6" if ":" in ip else "4"): ip for ip in ips if ip and ip != "None"}


async def _dry_runs(
    cluster: AdminPort, options: IsolationOptions, witness: Json | Unknown | None
) -> tuple[DryRun | Unknown, DryRun | Unknown]:
    if witness is None or isinstance(witness, Unknown):
        missing = Unknown("not tried: the witness Service could not be read, and the pod names its addresses")
        return missing, missing
    spec = JobSpec(run_id=_RUN_ID, image=options.trusted_image)
    record = Owner("v1", "ConfigMap", names.run_name(names.token(_RUN_ID)), _UNKNOWN_UID)
    pod = build_pod(spec, options, witness_ips=witness_ips(witness), record=record, secret=None)
    owner = Owner("v1", "Pod", pod["metadata"]["name"], _UNKNOWN_UID)
    policy = build_policy(spec, options, pod=owner)
    return (
        await _dry_run(cluster, Kind.POD, options.namespace, pod),
        await _dry_run(cluster, Kind.NETWORK_POLICY, options.namespace, policy),
    )


async def _dry_run(cluster: AdminPort, kind: Kind, namespace: str, body: Json) -> DryRun:
    return DryRun(body, await _ask(cluster.create(kind, namespace, body, dry_run=True)))


async def _ask(question: Awaitable[T]) -> T | Unknown:
    try:
        return await question
    except Refused as error:
        return Unknown(error.message or str(error), forbidden=error.status in _FORBIDDEN)
    except ClusterError as error:
        return Unknown(str(error))
