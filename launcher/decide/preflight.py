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
    families = _families(answer)
    findings = tuple(
        Finding(f"unpoliced, IPv{family}", seen.get("allOpen") is True, _seen(seen))
        for family, seen in families.items()
    )
    if answer.get("missingFamilies"):
        return _failed("witness_family_missing", _missing(answer), findings)
    closed = {family: seen for family, seen in families.items() if seen.get("allOpen") is not True}
    if closed:
        family, code = _worst({family: _unpoliced(seen) for family, seen in closed.items()})
        return _failed(
            code, f"A pod without a policy cannot reach both ports in IPv{family}: {_seen(closed[family])}.", findings
        )
    if not families or answer.get("ok") is not True:
        return _failed(*_own_words(answer), findings)
    return PreflightReport(ok=True, findings=findings)


def _unpoliced(seen: Mapping[str, Any]) -> str:
    """Name what keeps an unpoliced pod from the deny port. What is reachable otherwise is no leak: nothing forbids it.

    ``control`` is "up" when the witness says that its deny port is served, "banner" when it says that it is not.
    """
    verdict = seen.get("verdict")
    if verdict in ("intercepted", "unusable", "unavailable"):
        return CODE_OF_ROUND[verdict]
    if verdict is None:
        return "probe_unusable"
    return "witness_unserved" if seen.get("control") in ("up", "banner") else "witness_unavailable"


def judge_policed(answer: Mapping[str, Any], *, before: PreflightReport, node_exposure: str) -> PreflightReport:
    """With a run's policy only the control port may answer, and none of the closed targets."""
    families = _families(answer)
    findings = tuple(
        Finding(f"policed, IPv{family}", seen.get("standing") is True, _seen(seen)) for family, seen in families.items()
    )
    exposure = tuple(answer.get("nodeExposure") or ())
    code, message = _refusal(answer, families)
    if code is None and exposure and node_exposure == "refuse":
        code, message = "node_reachable", f"A policed pod can reach {', '.join(exposure)}."
    return PreflightReport(
        ok=code is None,
        code=code,
        message=message,
        findings=(*before.findings, *findings),
        policy_latency_seconds=_latency(answer),
        node_exposure=exposure,
    )


def _refusal(answer: Mapping[str, Any], families: Mapping[str, Mapping[str, Any]]) -> tuple[str | None, str | None]:
    if answer.get("missingFamilies"):
        return "witness_family_missing", _missing(answer)
    fallen = {family: seen for family, seen in families.items() if seen.get("standing") is not True}
    if fallen:
        family, code = _worst({family: _policed(seen, answer) for family, seen in fallen.items()})
        return code, f"No proof came to stand in IPv{family} within the bound: {_seen(fallen[family])}."
    if leaks := answer.get("leaks"):
        return "policy_leak", f"A policed pod can reach {', '.join(leaks)}."
    return (None, None) if families and answer.get("ok") is True else _own_words(answer)


def _policed(seen: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    """Name why a family does not stand; a last round that was good came too late, and the canary knows what for."""
    verdict = seen.get("verdict")
    if verdict == "proven":
        return str(answer.get("code") or "probe_unusable")
    return CODE_OF_ROUND.get(str(verdict), "probe_unusable")


def _worst(codes: Mapping[str, str]) -> tuple[str, str]:
    """Return (family, code) of the most alarming; the order is that in which one round is judged."""
    order = list(CODE_OF_ROUND.values())
    return min(codes.items(), key=lambda each: order.index(each[1]) if each[1] in order else len(order))


def _own_words(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Return the canary's own code and sentence."""
    code = answer.get("code")
    known = code if code in CODE_OF_ROUND.values() or code == "witness_family_missing" else "probe_unusable"
    return str(known), str(answer.get("message") or "The canary gave no usable answer.")


def _families(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    families = answer.get("families")
    if not isinstance(families, Mapping):
        return {}
    return {str(family): seen for family, seen in families.items() if isinstance(seen, Mapping)}


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
