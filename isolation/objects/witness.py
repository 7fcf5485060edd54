"""The witness: every run may reach its one port and none the other, so that a block on the second means something."""

from typing import Any

from isolation import labels, names
from isolation.objects import programs
from isolation.objects.container import confinement
from isolation.objects.podspec import security_context
from isolation.objects.policy import deny_all_but, policy, port
from isolation.options import IsolationOptions

Json = dict[str, Any]

REPLICAS = 2
"""One can be away, or rolled out, without blinding any run."""

_RESOURCES: Json = {
    "limits": {"cpu": "500m", "ephemeral-storage": "64Mi", "memory": "96Mi"},
    "requests": {"cpu": "50m", "ephemeral-storage": "64Mi", "memory": "96Mi"},
}
"""A few connections a second need almost nothing. The limit leaves room for refusing a flood."""


def witness(options: IsolationOptions) -> list[Json]:
    """Policy, Service, disruption budget and Deployment of the witness, in apply order."""
    return [_policy(options), _service(options), _budget(options), _deployment(options)]


def _metadata(options: IsolationOptions) -> Json:
    return {"labels": labels.managed("witness"), "name": options.witness, "namespace": options.namespace}


def _policy(options: IsolationOptions) -> Json:
    """Admits run pods and canaries on both ports: the deny port is closed by *their* policies, or it proves nothing."""
    ports = [port(options.control_port), port(options.deny_port), port(options.deny_port, "UDP")]
    pods = [{"podSelector": {"matchLabels": {labels.NAME: name}}} for name in (labels.RUN_POD, labels.CANARY_POD)]
    body = deny_all_but(labels.witness_selector(), egress=[], ingress=[{"from": pods, "ports": ports}])
    return policy(options.witness, options.namespace, body, component="witness")


def _service(options: IsolationOptions) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(options),
        "spec": {
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [
                {"name": "control", "port": options.control_port, "protocol": "TCP"},
                {"name": "deny", "port": options.deny_port, "protocol": "TCP"},
                {"name": "deny-udp", "port": options.deny_port, "protocol": "UDP"},
            ],
            "selector": labels.witness_selector(),
            "type": "ClusterIP",
        },
    }


def _budget(options: IsolationOptions) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(options),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels.witness_selector()}},
    }


def _deployment(options: IsolationOptions) -> Json:
    """A rollout starts a new backend before it ends an old one."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(options),
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels.witness_selector()},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}, "type": "RollingUpdate"},
            "template": {"metadata": {"labels": labels.witness_pod()}, "spec": _pod_spec(options)},
        },
    }


def _pod_spec(options: IsolationOptions) -> Json:
    return {
        "automountServiceAccountToken": False,
        "containers": [_container(options)],
        "enableServiceLinks": False,
        "securityContext": {**security_context(options), "runAsUser": options.uids.prover},
        "serviceAccountName": names.WITNESS_ACCOUNT,
        "terminationGracePeriodSeconds": options.stop_grace_seconds,
        "topologySpreadConstraints": [
            {
                "labelSelector": {"matchLabels": labels.witness_selector()},
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
            }
        ],
    }


def _container(options: IsolationOptions) -> Json:
    """Ready when the control port answers; started again when the deny port does not.

    Silence on the deny port must come from policies, never from the witness.
    """
    config = programs.WitnessConfig(control_port=options.control_port, deny_port=options.deny_port)
    command, args = programs.pod_command("witness", config)
    return {
        "args": args,
        "command": command,
        "image": options.trusted_image,
        "livenessProbe": {"failureThreshold": 3, "periodSeconds": 5, "tcpSocket": {"port": options.deny_port}},
        "name": names.WITNESS,
        "ports": [
            {"containerPort": options.control_port, "name": "control", "protocol": "TCP"},
            {"containerPort": options.deny_port, "name": "deny", "protocol": "TCP"},
            {"containerPort": options.deny_port, "name": "deny-udp", "protocol": "UDP"},
        ],
        "readinessProbe": {"failureThreshold": 2, "periodSeconds": 2, "tcpSocket": {"port": options.control_port}},
        "resources": _RESOURCES,
        "securityContext": confinement(None),
    }
