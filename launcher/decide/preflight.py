"""What the canaries' answers mean for this cluster. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launcher.decide.proof import CODE_OF_ROUND


@dataclass(frozen=True)
class Finding:
    """One thing that was tried, and how it went."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class PreflightReport:
    """The controlled experiment's result. ``at`` is when it ended, RFC 3339 by the API server's clock.

    ``policy_latency_seconds``: how long after its start the policed pod could still connect; None when not measured.
    ``node_exposure``: addresses of the node and the API server that a policed pod can reach.
    """

    ok: bool
    code: str | None = None
    message: str | None = None
    findings: tuple[Finding, ...] = ()
    policy_latency_seconds: float | None = None
    node_exposure: tuple[str, ...] = ()
    violations: tuple[Mapping[str, Any], ...] = ()
    at: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the report in the command's spelling."""
        return {
            "ok": self.ok,
            "code": self.code,
            "message": self.message,
            "findings": [asdict(finding) for finding in self.findings],
            "policyLatencySeconds": self.policy_latency_seconds,
            "nodeExposure": list(self.node_exposure),
            "violations": [dict(violation) for violation in self.violations],
            "at": self.at,
        }

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "PreflightReport":
        """Read what :meth:`as_json` said. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(
            ok=body["ok"] is True,
            code=body["code"],
            message=body["message"],
            findings=tuple(Finding(**finding) for finding in body["findings"]),
            policy_latency_seconds=body["policyLatencySeconds"],
            node_exposure=tuple(body["nodeExposure"]),
            violations=tuple(body["violations"]),
            at=str(body["at"]),
        )


def judge_open(answer: Mapping[str, Any]) -> PreflightReport:
    """Without a policy both ports must answer: only then does silence behind a policy mean the policy."""
    families: Mapping[str, Any] = answer.get("families") or {}
    findings = tuple(
        Finding(f"unpoliced, IPv{family}", bool(seen.get("allOpen")), _seen(seen)) for family, seen in families.items()
    )
    if answer.get("missingFamilies"):
        return _failed("witness_family_missing", _missing(answer), findings)
    if answer.get("ok") is True and findings and all(finding.ok for finding in findings):
        return PreflightReport(ok=True, findings=findings)
    served = all(seen.get("control") == "up" for seen in families.values()) and bool(families)
    code = "witness_unserved" if served else "witness_unavailable"
    detail = "; ".join(f"{finding.name}: {finding.detail}" for finding in findings if not finding.ok)
    return _failed(code, f"A pod without a policy cannot reach the witness's ports: {detail or 'no answer'}.", findings)


def judge_policed(answer: Mapping[str, Any], *, before: PreflightReport, node_exposure: str) -> PreflightReport:
    """With a run's policy only the control port may answer, and none of the closed targets."""
    families: Mapping[str, Any] = answer.get("families") or {}
    findings = (
        *before.findings,
        *(
            Finding(f"policed, IPv{family}", bool(seen.get("standing")), _seen(seen))
            for family, seen in families.items()
        ),
    )
    latency = _latency(answer)
    exposure = tuple(answer.get("nodeExposure") or ())
    code, message = _refusal(answer, families)
    if code is None and exposure and node_exposure == "refuse":
        code, message = "node_reachable", f"A policed pod can reach {', '.join(exposure)}."
    return PreflightReport(
        ok=code is None,
        code=code,
        message=message,
        findings=findings,
        policy_latency_seconds=latency,
        node_exposure=exposure,
    )


def _refusal(answer: Mapping[str, Any], families: Mapping[str, Any]) -> tuple[str | None, str | None]:
    if answer.get("missingFamilies"):
        return "witness_family_missing", _missing(answer)
    if leaks := answer.get("leaks"):
        return "policy_leak", f"A policed pod can reach {', '.join(leaks)}."
    for family, seen in families.items():
        if not seen.get("standing"):
            code = CODE_OF_ROUND.get(str(seen.get("verdict")), "probe_unusable")
            return code, f"No proof came to stand in IPv{family} within the bound; the last round: {_seen(seen)}."
    if not families or answer.get("ok") is not True:
        return str(answer.get("code") or "probe_unusable"), str(answer.get("message") or "The canary did not answer.")
    return None, None


def _latency(answer: Mapping[str, Any]) -> float | None:
    measured = [each.get("seconds") for each in answer.get("latency") or ()]
    known = [float(seconds) for seconds in measured if seconds is not None]
    return max(known) if known and len(known) == len(measured) else None


def _seen(seen: Mapping[str, Any]) -> str:
    said = [str(seen.get("verdict") or "no round"), str(seen.get("detail") or "")]
    if seen.get("by"):
        said.append(f"by {seen['by']}")
    said.append(f"control {seen.get('control')}, deny {seen.get('deny')}")
    return ", ".join(part for part in said if part)[:200]


def _missing(answer: Mapping[str, Any]) -> str:
    families = " and ".join(f"IPv{family}" for family in answer["missingFamilies"])
    return f"Pods have an {families} address, and the witness's Service has none of that family."


def _failed(code: str, message: str, findings: tuple[Finding, ...]) -> PreflightReport:
    return PreflightReport(ok=False, code=code, message=message, findings=findings)


def final_line(line: bytes) -> dict[str, Any] | None:
    """Return the canary's answer when this line of its log is it."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("final") is True else None
