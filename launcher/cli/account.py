"""A run's evidence in words: two questions, answered from the record alone. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime

from launcher.cli.output import size
from launcher.errors import CODES
from records.model import Evidence, Record, format_time

_LOST = {
    "open": "the deny port could be reached",
    "intercepted": "something that is not the witness answered on the deny port",
    "leak": "a target that must be closed could be reached",
}

_UNSEEN = {
    "blind": "the witness did not answer the prover",
    "unusable": "the prover could not open connections of its own",
}

_BY = {"drop": "packets to it were dropped", "refusal": "connections to it were refused"}


def account(record: Record) -> list[str]:
    """Return the lines: what the run is, the answers to both questions, what was noted and what happened when."""
    return [
        *_headline(record),
        "",
        "Why was it allowed to start?",
        *(f"  {line}" for line in _start(record)),
        "",
        "Was it isolated to its end?",
        *(f"  {line}" for line in _end(record)),
        *_listed("Warnings", [_warning(w) for w in record.evidence.warnings]),
        *_listed("Differences found by attestation", record.evidence.violations),
        *_listed("What happened", [f"{format_time(t.at)}  {t.phase}" for t in record.timeline]),
    ]


def _headline(record: Record) -> Iterator[str]:
    yield f"Run {record.run_id or '(unknown id)'}, token {record.token}: {record.phase}"
    if record.result is not None:
        yield f"  {record.result.reason}, exit code {record.result.exit_code}" + _after(record.result.message)
    if record.stop is not None:
        yield f"  stop requested at {format_time(record.stop.requested_at)}" + _after(record.stop.reason)


def _after(text: str | None) -> str:
    return f": {text}" if text else ""


def released(record: Record) -> bool:
    """True when the gate opened: it said so itself, or the worker was seen to start."""
    return record.evidence.gate_exit == 0 or record.started_at is not None


def _start(record: Record) -> Iterator[str]:
    if not released(record):
        yield from _held(record)
    else:
        yield "Both keys were there: the launcher's marker, and the pod's own standing proof."
    yield from _attested(record.evidence)
    yield from _proved(record.evidence)
    yield from _received(record.evidence)


def _held(record: Record) -> Iterator[str]:
    if record.phase.terminal:
        yield "It was not: the gate never opened, and nothing untrusted ran."
    else:
        yield "It was not, so far: the gate has not opened."
    if record.evidence.gate_message:
        yield f"The gate said: {record.evidence.gate_message}"


def _attested(evidence: Evidence) -> Iterator[str]:
    if evidence.pod_digest:
        yield f"Pod {evidence.pod_uid} as stored is the one that was sent (sha256 {evidence.pod_digest})."
    if evidence.policy_digest:
        yield f"Policy {evidence.policy_name} {evidence.policy_uid} likewise (sha256 {evidence.policy_digest})."
    for container, image in sorted(evidence.image_ids.items()):
        yield f"Container {container} runs {image}."


def _proved(evidence: Evidence) -> Iterator[str]:
    rounds = evidence.rounds
    if rounds is None:
        yield "No round of the proof was recorded."
        return
    yield f"Proof: {rounds.proven} of {rounds.count} rounds proven" + _after(_BY.get(evidence.by or "")) + "."
    if rounds.standing_since is not None:
        yield f"It stood from {_unix(rounds.standing_since)} on (prover {evidence.start_id})."
    if evidence.policy_latency_seconds is not None:
        yield f"The policy came into force {evidence.policy_latency_seconds:.1f} s after the first round."
    if evidence.witness_backends:
        yield "Witness: " + ", ".join(f"IPv{f} {ip}" for f, ip in sorted(evidence.witness_backends.items())) + "."


def _received(evidence: Evidence) -> Iterator[str]:
    if evidence.seed_sha256:
        yield f"Seed: {size(evidence.seed_bytes or 0)}, sha256 {evidence.seed_sha256}."


def _end(record: Record) -> Iterator[str]:
    evidence = record.evidence
    if not released(record):
        yield "Nothing ran that would have had to be isolated." if record.phase.terminal else "Nothing has run yet."
    elif evidence.end in _LOST:
        yield f"No: {_LOST[evidence.end]}."
    elif not record.phase.terminal:
        yield "The run has not ended."
    elif evidence.end in _UNSEEN:
        yield _unseen(record, _UNSEEN[evidence.end])
    elif evidence.end in {"standing", "timeout"}:
        yield "Yes: the prover measured to the end and never found it open."
    else:
        yield "Not known: the prover's last words could not be read."
    if evidence.blind_since is not None:
        yield f"The prover could not see since {_unix(evidence.blind_since)} (the witness did not answer)."
    yield from _exposed(evidence)


def _unseen(record: Record, why: str) -> str:
    """Blindness beyond the limit ended the run; a moment of it at the worker's end only leaves that moment open."""
    if record.result is not None and record.result.reason == "isolation_unproven":
        return f"No: {why} for longer than the limit."
    return f"Not known to the last moment: {why} when the worker ended. Before that it was never found open."


def _exposed(evidence: Evidence) -> Iterator[str]:
    if evidence.node_exposure:
        yield "Beside the policy's promise, the pod could reach: " + ", ".join(evidence.node_exposure) + "."
    elif evidence.node_exposure is not None:
        yield "The pod could reach neither its node's kubelet nor the API server."


def _warning(code: str) -> str:
    known = CODES.get(code)
    return f"{code}: {known.meaning}" if known else code


def _listed(title: str, lines: tuple[str, ...] | list[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in lines)] if lines else []


def _unix(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
