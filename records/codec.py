"""Between a record and the ConfigMap that holds it: strict when reading, canonical and bounded when writing."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from records.canonical import artifact_problem, canonical
from records.errors import RecordInvalid, RecordTooNew
from records.model import SCHEMA_VERSION, Phase, Record
from records.ports import Json, Naming

KEY = "record.json"
RUN_ID_ANNOTATION = "podgate.dev/run-id"
LABELS = {"app.kubernetes.io/managed-by": "podgate", "podgate.dev/component": "run-record"}

SIZE_LIMIT = 256 * 1024
"""Bytes of the stored object. etcd refuses 1.5 MiB; a quarter of a MiB keeps reading thousands of records cheap."""

RECORD_LIMIT = SIZE_LIMIT - 16 * 1024
"""Bytes of ``record.json``: the rest is for the object's metadata, which the server adds to."""


@dataclass(frozen=True)
class Stored:
    """A record as the API server gave it back: ``uid`` of its object, ``resource_version`` for the next replace."""

    record: Record
    uid: str
    resource_version: str


# What a record that would be too large loses, in this order, one at a time until it fits: what only explains, then what
# the caller put on for itself, then what collect can do without, last the outcome's words. Never the outcome.
_Drop = tuple[str, Callable[[Record], Record]]
DROPS: tuple[_Drop, ...] = (
    ("evidence.violations", lambda r: r.evolve(evidence=r.evidence.evolve(violations=()))),
    ("evidence.gateMessage", lambda r: r.evolve(evidence=r.evidence.evolve(gate_message=None))),
    ("evidence.warnings", lambda r: r.evolve(evidence=r.evidence.evolve(warnings=()))),
    ("evidence.nodeExposure", lambda r: r.evolve(evidence=r.evidence.evolve(node_exposure=None))),
    ("labels", lambda r: r.evolve(labels={})),
    ("collectExclude", lambda r: r.evolve(collect_exclude=())),
    (
        "result.resultArtifact",
        lambda r: r.evolve(result=r.result and r.result.evolve(result_artifact=None, artifacts="invalid")),
    ),
    ("evidence.imageIds", lambda r: r.evolve(evidence=r.evidence.evolve(image_ids={}))),
    ("result.message", lambda r: r.evolve(result=r.result and r.result.evolve(message=None, diagnostic=None))),
)


def encode(record: Record) -> bytes:
    """Return the record as canonical JSON of at most :data:`RECORD_LIMIT` bytes, less optional parts where need be."""
    record = _without_bad_artifact(record)
    data = _dump(record)
    for _, drop in DROPS:
        if len(data) <= RECORD_LIMIT:
            break
        record = drop(record)
        data = _dump(record)
    return data


def decode(data: str, *, name: str = "record") -> Record:
    """Read canonical JSON strictly. Raises RecordTooNew for a newer schema, RecordInvalid for all else."""
    _check_version(_parse(data, name), name)
    try:
        record = Record.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise RecordInvalid(name, _first_problem(error)) from None
    problem = _inconsistency(record)
    if problem:
        raise RecordInvalid(name, problem)
    return record


def to_object(record: Record, naming: Naming, *, replacing: Stored | None = None) -> Json:
    """Return the ConfigMap of a record; with ``replacing``, under that one's uid and resourceVersion."""
    metadata: Json = {"name": naming.name_of(record.token), "labels": dict(LABELS)}
    if record.run_id is not None:
        metadata["annotations"] = {RUN_ID_ANNOTATION: record.run_id}
    if replacing is not None:
        metadata |= {"uid": replacing.uid, "resourceVersion": replacing.resource_version}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {KEY: encode(record).decode("utf-8")},
    }


def from_object(body: Json, naming: Naming) -> Stored:
    """Read a record from its ConfigMap; name, labels and run id must agree. Raises RecordInvalid, RecordTooNew."""
    metadata = body.get("metadata")
    name = str(metadata.get("name")) if isinstance(metadata, dict) else "record"
    if not isinstance(metadata, dict):
        raise RecordInvalid(name, "no metadata")
    data = body.get("data")
    text = data.get(KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise RecordInvalid(name, f"no {KEY}")
    record = decode(text, name=name)
    _check_identity(record, metadata, naming, name)
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if not isinstance(uid, str) or not isinstance(version, str):
        raise RecordInvalid(name, "no uid or resourceVersion")
    return Stored(record, uid, version)


def _check_identity(record: Record, metadata: Json, naming: Naming, name: str) -> None:
    """A record copied to another name, or given another run id, must not pass for that run's."""
    if naming.name_of(record.token) != name:
        raise RecordInvalid(name, "holds the record of another token")
    if record.run_id is not None and naming.token_of(record.run_id) != record.token:
        raise RecordInvalid(name, "runId does not yield the token")
    labels = metadata.get("labels")
    if not isinstance(labels, dict) or any(labels.get(key) != value for key, value in LABELS.items()):
        raise RecordInvalid(name, "not labelled as a run record")
    annotations = metadata.get("annotations")
    annotated = annotations.get(RUN_ID_ANNOTATION) if isinstance(annotations, dict) else None
    if annotated != record.run_id:
        raise RecordInvalid(name, f"annotation {RUN_ID_ANNOTATION} differs from runId")


def _dump(record: Record) -> bytes:
    return canonical(record.model_dump(mode="json", by_alias=True))


def _without_bad_artifact(record: Record) -> Record:
    """Leave out an artifact that cannot be kept: the write that ends a run must not fail for what a worker left."""
    result = record.result
    if result is None or result.result_artifact is None or artifact_problem(result.result_artifact) is None:
        return record
    return record.evolve(result=result.evolve(result_artifact=None, artifacts="invalid"))


def _parse(data: str, name: str) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RecordInvalid(name, f"not JSON: {type(error).__name__}") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key occurs twice"
        raise ValueError(msg)
    return found


def _no_constant(constant: str) -> Any:
    raise ValueError(constant)


def _check_version(parsed: Any, name: str) -> None:
    version = parsed.get("schemaVersion") if isinstance(parsed, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RecordInvalid(name, "no schemaVersion")
    if version > SCHEMA_VERSION:
        raise RecordTooNew(name, version)


def _inconsistency(record: Record) -> str | None:
    if (record.run_id is None) != (record.spec_hash is None):
        return "only one of runId and specHash"
    if record.run_id is None and record.phase not in (Phase.STOPPED, Phase.REMOVED):
        return f"no runId in {record.phase}"
    if record.phase.terminal and record.phase is not Phase.REMOVED and record.result is None:
        return f"no result in {record.phase}"
    artifact = record.result.result_artifact if record.result else None
    return artifact_problem(artifact) if artifact is not None else None


def _first_problem(error: ValidationError) -> str:
    """Name the field, never its value: a record's content is not for error messages."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'record'}: {first['type']}"
