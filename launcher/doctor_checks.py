"""What the doctor's facts mean, and what to do about each. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isolation import names
from isolation.attest import Violation, attest, differences
from isolation.options import IsolationOptions
from launcher.cluster.port import Json
from launcher.doctor import DryRun, Facts, Unknown, witness_ips
from launcher.settings import Settings

Mark = Literal["ok", "note", "warning", "failed"]

LEAST_VERSION = (1, 29)
"""Native sidecars, on which the prover rests, are on by default from here on."""

_INSTALL = "podgate manifests | kubectl apply -f -"
_ENFORCE = "pod-security.kubernetes.io/enforce"
_SHOWN = 60
"""Characters of a stored value that an allowance repeats."""


@dataclass(frozen=True)
class Finding:
    """One check: what was found, and what to do about it. Only ``failed`` makes the doctor exit with 1."""

    outcome: Mark
    check: str
    detail: str
    remedy: str = ""


def healthy(findings: tuple[Finding, ...]) -> bool:
    """True when no check failed."""
    return all(finding.outcome != "failed" for finding in findings)


def decide(facts: Facts, settings: Settings) -> tuple[Finding, ...]:
    """Return the findings in the order in which they are best mended."""
    options = settings.isolation
    return (
        _version(facts),
        *_rights(facts),
        _namespace(facts, options),
        _default_deny(facts),
        _witness(facts, options),
        _witness_pods(facts, options),
        *_dry_run("pod", facts.pod, options),
        *_dry_run("policy", facts.policy, options),
        _runtime_class(options),
    )


def _version(facts: Facts) -> Finding:
    if isinstance(facts.version, Unknown):
        return Finding("failed", "version", facts.version.why, "the API server, the network, the kubeconfig")
    text = "Kubernetes {}.{}".format(*facts.version)
    if facts.version < LEAST_VERSION:
        return Finding("failed", "version", f"{text} has no native sidecars", "upgrade to 1.29 or later")
    return Finding("ok", "version", text)


def _rights(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.rights, Unknown):
        yield Finding(
            "failed", "rights", facts.rights.why, "allow selfsubjectaccessreviews (every account has it by default)"
        )
        return
    missing = [right for right in facts.rights if not right.allowed]
    if not missing:
        yield Finding("ok", "rights", f"all {len(facts.rights)} of the launcher's rights")
    for right in missing:
        yield Finding(
            "failed",
            "rights",
            f"may not {right}",
            f"bind this account to the Role {names.LAUNCHER_ACCOUNT}: {_INSTALL}",
        )


def _namespace(facts: Facts, options: IsolationOptions) -> Finding:
    found = facts.namespace
    if isinstance(found, Unknown):
        return _not_seen("namespace", found, f"kubectl get namespace {options.namespace} --show-labels")
    if found is None:
        return Finding("failed", "namespace", f"{options.namespace} is not there", _INSTALL)
    level = found.get("metadata", {}).get("labels", {}).get(_ENFORCE)
    if level == "restricted":
        return Finding("ok", "namespace", f"{options.namespace} enforces PodSecurity restricted")
    return Finding(
        "warning", "namespace", f"{options.namespace} enforces PodSecurity {level or 'nothing'}",
        f"kubectl label namespace {options.namespace} {_ENFORCE}=restricted --overwrite",
    )  # fmt: skip


def _not_seen(check: str, unknown: Unknown, instead: str) -> Finding:
    """A launcher's account may not look at everything, and need not: that is a note. Any other silence is a failure."""
    if unknown.forbidden:
        return Finding("note", check, "this account may not look at it", f"with another account: {instead}")
    return Finding("failed", check, unknown.why, instead)


def _default_deny(facts: Facts) -> Finding:
    found = facts.default_deny
    if isinstance(found, Unknown):
        return _not_seen("default deny", found, f"kubectl get networkpolicy {names.DEFAULT_DENY}")
    if found is None:
        return Finding(
            "failed",
            "default deny",
            f"no policy {names.DEFAULT_DENY}: nothing guards a pod whose policy is gone",
            _INSTALL,
        )
    if _denies_all(found.get("spec", {})):
        return Finding("ok", "default deny", f"{names.DEFAULT_DENY} selects all pods, both directions")
    return Finding("failed", "default deny", f"{names.DEFAULT_DENY} is there and does not deny everything", _INSTALL)


def _denies_all(spec: Mapping[str, Any]) -> bool:
    selects_all = not any((spec.get("podSelector") or {}).values())
    both = set(spec.get("policyTypes") or ()) == {"Ingress", "Egress"}
    return selects_all and both and not spec.get("ingress") and not spec.get("egress")


def _witness(facts: Facts, options: IsolationOptions) -> Finding:
    found = facts.witness
    if isinstance(found, Unknown):
        return Finding("failed", "witness", found.why, _INSTALL)
    if found is None:
        return Finding("failed", "witness", f"no Service {options.witness}", _INSTALL)
    ips = witness_ips(found)
    absent = _absent_ports(found, options)
    if absent:
        return Finding("failed", "witness", f"Service {options.witness} does not serve {', '.join(absent)}", _INSTALL)
    if not ips:
        return Finding(
            "failed", "witness", f"Service {options.witness} has no ClusterIP", "it must not be headless: " + _INSTALL
        )
    return _families(ips, options)


def _families(ips: Mapping[str, str], options: IsolationOptions) -> Finding:
    text = f"{options.witness}: " + ", ".join(f"IPv{family} {ip}" for family, ip in sorted(ips.items()))
    if len(ips) == 1:
        other = "6" if "4" in ips else "4"
        return Finding(
            "note",
            "witness",
            text,
            f"where pods get IPv{other}, too: ipFamilyPolicy PreferDualStack, or each run is refused",
        )
    return Finding("ok", "witness", text)


def _absent_ports(service: Json, options: IsolationOptions) -> list[str]:
    wanted = [(options.control_port, "TCP"), (options.deny_port, "TCP"), (options.deny_port, "UDP")]
    served = {(port.get("port"), port.get("protocol", "TCP")) for port in service.get("spec", {}).get("ports", [])}
    return [f"{port}/{protocol}" for port, protocol in wanted if (port, protocol) not in served]


def _witness_pods(facts: Facts, options: IsolationOptions) -> Finding:
    found = facts.witness_deployment
    look = f"kubectl get deployment {options.witness}"
    if isinstance(found, Unknown):
        return _not_seen("witness pods", found, look)
    if found is None:
        return Finding(
            "warning",
            "witness pods",
            f"no Deployment {options.witness}",
            f"{_INSTALL}, unless something else runs the witness",
        )
    ready, wanted = found.get("status", {}).get("readyReplicas", 0), found.get("spec", {}).get("replicas", 1)
    if not ready:
        return Finding(
            "failed", "witness pods", f"none of {wanted} is ready", f"kubectl describe deployment {options.witness}"
        )
    if ready < wanted:
        return Finding("warning", "witness pods", f"{ready} of {wanted} are ready", look)
    return Finding("ok", "witness pods", f"{ready} of {wanted} are ready")


def _dry_run(what: str, tried: DryRun | Unknown, options: IsolationOptions) -> Iterator[Finding]:
    check = f"dry-run {what}"
    if isinstance(tried, Unknown):
        yield Finding("failed", check, tried.why, _INSTALL)
        return
    if isinstance(tried.stored, Unknown):
        yield Finding(
            "failed",
            check,
            f"the API server would refuse it: {tried.stored.why}",
            "admission, PodSecurity, quota, LimitRange",
        )
        return
    violations = attest(tried.sent, tried.stored, allowances=options.allowances, platform=options.platform)
    if not violations:
        yield Finding("ok", check, "the cluster would store it as it is sent")
    values = {found.path: found.stored for found in differences(tried.sent, tried.stored)}
    for violation in violations:
        detail = f"{violation.path} {violation.kind}" + (f": {violation.hint}" if violation.hint else "")
        yield Finding("failed", check, detail, allowance(violation, values))


def allowance(violation: Violation, values: Mapping[str, Any]) -> str:
    """Say what would let this difference through, for a person to review; never applied by us."""
    if violation.kind == "missing" or violation.path not in values:
        return "stop what removes or reorders it; no allowance can stand for that"
    value = json.dumps(values[violation.path], ensure_ascii=False)
    value = value if len(value) <= _SHOWN else "…"
    path = json.dumps(violation.path)
    return f'stop what changes it; or, once reviewed, allow {{"path": {path}, "value": {value}, "reason": "…"}}'


def _runtime_class(options: IsolationOptions) -> Finding:
    if options.runtime_class:
        return Finding("ok", "runtime class", options.runtime_class)
    return Finding(
        "warning", "runtime class", "none: workers share the node's kernel without a sandbox", "PODGATE_RUNTIME_CLASS"
    )
