"""All that must stand before a run: namespace, accounts, least rights, the default-deny policy, the witness."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isolation import labels, names
from isolation.objects.policy import deny_all_but, policy
from isolation.objects.witness import witness
from isolation.options import IsolationOptions

Json = dict[str, Any]

NETWORKING = "networking.k8s.io"


@dataclass(frozen=True)
class Right:
    """One rule of a Role, and why it is there. ``only`` narrows it to objects of these names."""

    resource: str
    verbs: tuple[str, ...]
    why: str
    group: str = ""
    only: tuple[str, ...] = ()

    def rule(self) -> Json:
        """Return the rule as RBAC writes it."""
        rule: Json = {"apiGroups": [self.group], "resources": [self.resource], "verbs": list(self.verbs)}
        return {**rule, "resourceNames": list(self.only)} if self.only else rule


def launcher_rights(options: IsolationOptions) -> tuple[Right, ...]:
    """What a launcher may do in the namespace, and nothing beyond it.

    Secrets and policies are never deleted by it: they go with the pod that owns them. Secrets cannot be read.
    """
    return (
        Right("pods", ("create", "get", "delete", "watch"), "the run's pod, and the preflight's"),
        Right("pods/exec", ("create", "get"), "seed, proof and collect; websockets are a GET"),
        Right("pods/log", ("get",), "the worker's output and the prover's rounds"),
        Right("events", ("list",), "why a pod makes no progress; its last probe failure when it is gone"),
        Right("configmaps", ("create", "get", "update"), "records and the preflight's result"),
        Right("secrets", ("create",), "capabilities"),
        Right("networkpolicies", ("create", "get"), "the run's policy, and the default-deny one", NETWORKING),
        Right("services", ("get",), "the witness's addresses", only=(options.witness,)),
    )


REAPER_RIGHTS = (
    Right("configmaps", ("list", "get", "update", "delete"), "records past their retention"),
    Right("pods", ("list", "get", "delete"), "pods whose record is over or missing"),
    Right("secrets", ("list", "delete"), "Secrets whose pod is missing"),
    Right("networkpolicies", ("list", "get", "delete"), "policies whose pod is missing", NETWORKING),
)
"""What the reaper may do. To list Secrets is to be able to read them, which is why the launcher may not: keep this
account to the reaper.
"""


def installation(options: IsolationOptions) -> list[Json]:
    """All objects of an installation, in apply order."""
    return [
        _namespace(options),
        *(_account(options, name) for name in _ACCOUNTS),
        *_granted(options, names.LAUNCHER_ACCOUNT, launcher_rights(options)),
        *_granted(options, names.REAPER_ACCOUNT, REAPER_RIGHTS),
        default_deny(options),
        *witness(options),
    ]


_ACCOUNTS = (names.WORKER_ACCOUNT, names.LAUNCHER_ACCOUNT, names.REAPER_ACCOUNT, names.WITNESS_ACCOUNT)


def default_deny(options: IsolationOptions) -> Json:
    """Closes every pod of the namespace in both directions, so that one whose own policy is missing is not open."""
    body = deny_all_but({}, egress=[])
    return policy(names.DEFAULT_DENY, options.namespace, body, component="install")


def _namespace(options: IsolationOptions) -> Json:
    """PodSecurity ``restricted`` is enforced for whatever is created here, by whomever."""
    modes = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("audit", "enforce", "warn")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"labels": {**labels.managed("install"), **modes}, "name": options.namespace},
    }


def _metadata(options: IsolationOptions, name: str) -> Json:
    return {"labels": labels.managed("install"), "name": name, "namespace": options.namespace}


def _account(options: IsolationOptions, name: str) -> Json:
    """No pod gets a token by default; the launcher's and the reaper's own pods ask for theirs."""
    return {
        "apiVersion": "v1",
        "automountServiceAccountToken": False,
        "kind": "ServiceAccount",
        "metadata": _metadata(options, name),
    }


def _granted(options: IsolationOptions, account: str, rights: Sequence[Right]) -> list[Json]:
    """A Role of the account's own name, and its binding."""
    api_group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{api_group}/v1",
        "kind": "Role",
        "metadata": _metadata(options, account),
        "rules": [right.rule() for right in rights],
    }
    binding = {
        "apiVersion": f"{api_group}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(options, account),
        "roleRef": {"apiGroup": api_group, "kind": "Role", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": options.namespace}],
    }
    return [role, binding]
