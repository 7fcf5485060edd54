"""The preflight's pods: one without and one with a run's policy, so that a block is known to come from the policy."""

from collections.abc import Sequence
from typing import Any

from isolation import labels, names
from isolation.names import CanaryKind
from isolation.objects import programs
from isolation.objects.container import container, from_pod
from isolation.objects.owner import Owner
from isolation.objects.pod import WitnessIps, by_family, programs_targets
from isolation.objects.podspec import pod_spec
from isolation.objects.policy import deny_all_but, egress_rules, policy
from isolation.options import EgressProfile, IsolationOptions
from isolation.profile import PLATFORMS
from isolation.resources import PROVER

Json = dict[str, Any]

LISTEN_PORT = 8789
"""Where the open canary can be reached: no policy but the policed canary's own stands in that way."""

_BACKSTOP_SECONDS = 60
"""Scheduling and the image's pull, beyond the program's own bounds."""


def build_canary(
    options: IsolationOptions,
    *,
    suffix: str,
    kind: CanaryKind,
    witness_ips: WitnessIps,
    targets: Sequence[programs.Target] | None = None,
    latency_targets: Sequence[str] = (),
    owner: Owner | None = None,
    bound_seconds: float = 60,
    idle_seconds: float = 300,
) -> Json:
    """One canary.

    ``targets`` are the addresses that must be closed (the operator's, unless given); ``latency_targets`` the open
    canary's addresses, for the policed one; ``owner`` the preflight's ConfigMap.
    """
    config = programs.CanaryConfig(
        mode=kind,
        witness=by_family(witness_ips),
        control_port=options.control_port,
        deny_port=options.deny_port,
        listen_port=LISTEN_PORT,
        targets=programs_targets(options) if targets is None else tuple(targets),
        latency_targets=tuple(programs.Address(ip=ip, port=LISTEN_PORT) for ip in latency_targets),
        bound_seconds=bound_seconds,
        idle_seconds=idle_seconds,
    )
    deadline = int(bound_seconds + idle_seconds) + _BACKSTOP_SECONDS
    body = pod_spec(options, EgressProfile(), deadline_seconds=deadline)
    body["containers"] = [_container(options, config)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(options, suffix, kind, owner), "spec": body}


def build_canary_policy(options: IsolationOptions, *, suffix: str, kind: CanaryKind, pod: Owner) -> Json:
    """The canary's own policy, owned by it.

    A run's for the policed one; all open for the other, so that it works in a namespace that denies by default.
    """
    selected = labels.canary_selector(suffix, kind)
    if kind == "open":
        body = deny_all_but(selected, egress=[{}], ingress=[{}])
    else:
        body = deny_all_but(selected, egress=egress_rules(EgressProfile(), options))
    return policy(names.canary_name(suffix, kind), options.namespace, body, component="canary", owner=pod)


def _metadata(options: IsolationOptions, suffix: str, kind: CanaryKind, owner: Owner | None) -> Json:
    metadata: Json = {
        "labels": labels.canary_pod(suffix, kind),
        "name": names.canary_name(suffix, kind),
        "namespace": options.namespace,
    }
    return metadata if owner is None else {**metadata, "ownerReferences": [owner.reference(controller=True)]}


def _container(options: IsolationOptions, config: programs.CanaryConfig) -> Json:
    command, args = programs.pod_command("canary", config)
    env = [
        from_pod(programs.POD_IPS_ENV, "status.podIPs"),
        from_pod(programs.HOST_IPS_ENV, "status.hostIPs"),
    ]
    return container(
        names.CANARY,
        options.trusted_image,
        PLATFORMS[options.platform].conform(PROVER),
        command=command,
        args=args,
        env=env,
        uid=options.uids.prover,
    )
