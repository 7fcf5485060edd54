"""The run's NetworkPolicy: nothing comes in; out it goes to the witness's control port and what the profile opens.

Both policy types are always said: without them an empty egress list is stored as a policy for ingress only, and leaves
the way out open. An empty ingress list is left out, as the server does; the type alone closes that direction.
"""

from typing import Any, Literal

from isolation import labels, names
from isolation.digest import canonical_json, sha256_hex
from isolation.objects.owner import Owner
from isolation.options import EgressProfile, EgressRule, IsolationOptions
from isolation.profile import egress_profile
from isolation.spec import JobSpec

Json = dict[str, Any]

_DNS_PORT = 53
_CLUSTER_DNS: Json = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
}


def build_policy(spec: JobSpec, options: IsolationOptions, *, pod: Owner | None) -> Json:
    """The policy that guards a run: its own, owned by its pod, or (scope ``shared``) that of all runs with its profile.

    A shared one is owned by nobody. Raises SpecInvalid when the egress profile is unknown, ValueError when scope
    ``run`` has no pod.
    """
    profile = egress_profile(spec, options)
    body = deny_all_but(selector(spec, options), egress_rules(profile, options))
    if options.network_policy_scope == "shared":
        return policy(policy_name(spec, options), options.namespace, body, component="egress")
    if pod is None:
        raise ValueError("a run's own policy is owned by its pod")
    built = policy(policy_name(spec, options), options.namespace, body, component="run", owner=pod)
    built["metadata"]["annotations"] = {labels.RUN_ID: spec.run_id}
    return built


def policy_name(spec: JobSpec, options: IsolationOptions) -> str:
    """Name of the policy that guards the run."""
    if options.network_policy_scope == "shared":
        return names.egress_policy_name(egress_hash(egress_profile(spec, options), options))
    return names.policy_name(names.token(spec.run_id))


def selector(spec: JobSpec, options: IsolationOptions) -> dict[str, str]:
    """The label by which the run's policy selects its pod."""
    if options.network_policy_scope == "shared":
        return labels.egress_selector(egress_hash(egress_profile(spec, options), options))
    return labels.run_selector(names.token(spec.run_id))


def egress_hash(profile: EgressProfile, options: IsolationOptions) -> str:
    """Names what a profile opens by its content: two operators' different ideas of one name never share a policy."""
    return sha256_hex(canonical_json(egress_rules(profile, options)))[: names.EGRESS_HASH_LENGTH]


def policy(
    name: str,
    namespace: str,
    spec: Json,
    *,
    component: labels.Component,
    owner: Owner | None = None,
) -> Json:
    """A NetworkPolicy around its spec."""
    metadata: Json = {"labels": dict(labels.managed(component)), "name": name, "namespace": namespace}
    if owner is not None:
        metadata["ownerReferences"] = [owner.reference()]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def deny_all_but(selected: dict[str, str], egress: list[Json], ingress: list[Json] | None = None) -> Json:
    """Spec of a policy in both directions, closed but for the rules given."""
    spec: Json = {
        "podSelector": {"matchLabels": dict(selected)} if selected else {},
        "policyTypes": ["Ingress", "Egress"],
    }
    rules = {"ingress": ingress, "egress": egress}
    return {**spec, **{direction: listed for direction, listed in rules.items() if listed}}


def egress_rules(profile: EgressProfile, options: IsolationOptions) -> list[Json]:
    """What a run may reach: the witness's control port, the profile's rules in order, cluster DNS where allowed."""
    witness: Json = {"podSelector": {"matchLabels": labels.witness_selector()}}
    rules = [_rule(witness, options.control_port)]
    rules.extend(_rule(_destination(rule), rule.port, rule.protocol) for rule in profile.rules)
    if profile.dns:
        rules.append({"ports": [port(_DNS_PORT, "UDP"), port(_DNS_PORT, "TCP")], "to": [_CLUSTER_DNS]})
    return rules


def port(number: int, protocol: Literal["TCP", "UDP"] = "TCP") -> Json:
    """One port of a rule."""
    return {"port": number, "protocol": protocol}


def _rule(destination: Json, number: int, protocol: Literal["TCP", "UDP"] = "TCP") -> Json:
    return {"ports": [port(number, protocol)], "to": [destination]}


def _destination(rule: EgressRule) -> Json:
    if rule.cidr is not None:
        return {"ipBlock": {"cidr": rule.cidr}}
    selectors = {"podSelector": rule.pod_selector, "namespaceSelector": rule.namespace_selector}
    return {key: _matching(wanted) for key, wanted in selectors.items() if wanted is not None}


def _matching(wanted: dict[str, str]) -> Json:
    return {"matchLabels": dict(wanted)} if wanted else {}
