"""What run pods and canaries have in common: everything about a pod that is not its containers."""

from typing import Any

from isolation import names
from isolation.options import EgressProfile, IsolationOptions

NOWHERE = "127.0.0.1"
"""The only nameserver of a pod without DNS: nothing listens there."""

_TOLERATED_SECONDS = 300
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def pod_spec(options: IsolationOptions, egress: EgressProfile, *, deadline_seconds: int) -> dict[str, Any]:
    """A pod's spec without containers and volumes, every default said.

    ``deadline_seconds`` is a backstop only. Numeric priority and preemption policy are left to a named priority class:
    the server refuses others than the class's own, and only it knows them.
    """
    spec: dict[str, Any] = {
        "activeDeadlineSeconds": deadline_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
        "securityContext": security_context(options),
        "serviceAccount": names.WORKER_ACCOUNT,
        "serviceAccountName": names.WORKER_ACCOUNT,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": options.stop_grace_seconds,
        "tolerations": default_tolerations(),
        **_resolving(egress),
        **_priority(options),
    }
    return spec if options.runtime_class is None else {**spec, "runtimeClassName": options.runtime_class}


def security_context(options: IsolationOptions) -> dict[str, Any]:
    """Numeric identities of the whole pod. With a group but no user some runtimes cannot even make the sandbox."""
    return {
        "fsGroup": options.uids.group,
        "runAsGroup": options.uids.group,
        "runAsNonRoot": True,
        "runAsUser": options.uids.worker,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def default_tolerations() -> list[dict[str, Any]]:
    """The two that the server adds to every pod, in its order."""
    return [
        {"effect": "NoExecute", "key": taint, "operator": "Exists", "tolerationSeconds": _TOLERATED_SECONDS}
        for taint in _TAINTS
    ]


def _resolving(egress: EgressProfile) -> dict[str, Any]:
    if egress.dns:
        dns: dict[str, Any] = {"dnsPolicy": "ClusterFirst"}
    else:
        dns = {"dnsConfig": {"nameservers": [NOWHERE]}, "dnsPolicy": "None"}
    aliases = [{"hostnames": list(alias.hostnames), "ip": alias.ip} for alias in egress.host_aliases]
    return {**dns, "hostAliases": aliases} if aliases else dns


def _priority(options: IsolationOptions) -> dict[str, Any]:
    if options.priority_class is not None:
        return {"priorityClassName": options.priority_class}
    return {"preemptionPolicy": "PreemptLowerPriority", "priority": 0}
