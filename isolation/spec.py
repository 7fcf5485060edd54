"""What a caller asks for: one run. All of it is checked before anything is created; bad input is never partly accepted.

The wire form is JSON or YAML with camelCase names; files may say ``apiVersion: podgate.dev/v1`` and ``kind: Job``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from isolation import checks, limits, paths

API_VERSION = "podgate.dev/v1"
KIND = "Job"


class SpecInvalid(ValueError):
    """The spec cannot be run as it stands; nothing was created.

    ``violations`` names every place that is wrong, as ``{"path", "message"}``; values are never repeated in it.
    """

    def __init__(self, violations: list[dict[str, str]]) -> None:
        self.violations = violations
        super().__init__("; ".join(f"{v['path']}: {v['message']}" for v in violations))


class JobSpec(BaseModel):
    """One run of untrusted code. Frozen; every limit is in ``isolation/limits.py`` with its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    run_id: Annotated[str, BeforeValidator(checks.run_id)]
    """Names the run for ever: handle, record and pod are derived from it."""
    image: Annotated[str, BeforeValidator(checks.image)]
    """``repository@sha256:<64 hex>``; a tag could name other bytes tomorrow."""
    command: Annotated[tuple[str, ...], BeforeValidator(checks.command)] = ()
    """Replaces the image's entrypoint; empty means the image's own."""
    args: Annotated[tuple[str, ...], BeforeValidator(checks.arguments)] = ()
    """Replaces the image's arguments; empty means the image's own, or none when ``command`` is given."""
    env: Annotated[dict[str, str], BeforeValidator(checks.environment)] = Field(default_factory=dict)
    cpus: Annotated[float, BeforeValidator(checks.cpus)] = 1.0
    """Processors, in whole millicores."""
    memory_mb: Annotated[StrictInt, Field(ge=limits.MEMORY_MB.least, le=limits.MEMORY_MB.most)] = 1024
    """MiB."""
    disk_mb: Annotated[StrictInt, Field(ge=limits.DISK_MB.least, le=limits.DISK_MB.most)] = 2048
    """MiB of workspace, input and output together."""
    timeout_seconds: Annotated[StrictInt, Field(ge=limits.TIMEOUT_SECONDS.least, le=limits.TIMEOUT_SECONDS.most)] = 900
    """Seconds from the worker's start."""
    workspace: Annotated[Path | None, BeforeValidator(checks.host_path)] = None
    """A directory on the launcher's host that the run starts from."""
    input: Annotated[Path | None, BeforeValidator(checks.host_path)] = None
    """A JSON file on the launcher's host that the worker may read."""
    egress: Annotated[str, BeforeValidator(checks.egress)] = "none"
    """Name of an egress profile of the operator's settings."""
    capability: Annotated[str | None, BeforeValidator(checks.capability)] = None
    """Name of a capability, never its value."""
    collect_exclude: Annotated[tuple[str, ...], BeforeValidator(checks.relative_paths)] = ()
    require_result: StrictBool = False
    labels: Annotated[dict[str, str], BeforeValidator(checks.labels)] = Field(default_factory=dict)
    """The caller's own words about the run; they stand on the record only, never on the pod."""

    @property
    def millicores(self) -> int:
        """Processors in thousandths, exactly."""
        return checks.millicores(self.cpus)


_FIELDS = {to_camel(name): name for name in JobSpec.model_fields}


def parse_spec(value: object) -> JobSpec:
    """Read a spec from its wire form. Raises SpecInvalid with all violations, and nothing else."""
    if isinstance(value, JobSpec):
        return value
    if not isinstance(value, Mapping):
        raise SpecInvalid([_violation(paths.ROOT, "must be an object")])
    violations = [*_header(value), *_unknown(value)]
    known = {name: item for name, item in value.items() if isinstance(name, str) and name in _FIELDS}
    try:
        spec = JobSpec.model_validate(known, by_alias=True, by_name=False)
    except ValidationError as error:
        raise SpecInvalid(_from_pydantic(error) + violations) from None
    if violations:
        raise SpecInvalid(violations)
    return spec


def _violation(path: str, message: str) -> dict[str, str]:
    return {"path": path, "message": message}


def _header(value: Mapping[Any, Any]) -> list[dict[str, str]]:
    expected = {"apiVersion": API_VERSION, "kind": KIND}
    return [
        _violation(paths.member(paths.ROOT, name), f"must be {wanted} when given")
        for name, wanted in expected.items()
        if name in value and not (isinstance(value[name], str) and value[name] == wanted)
    ]


def _unknown(value: Mapping[Any, Any]) -> list[dict[str, str]]:
    allowed = {*_FIELDS, "apiVersion", "kind"}
    return [
        _violation(paths.member(paths.ROOT, checks.shown(name)), "unknown field")
        for name in value
        if not (isinstance(name, str) and name in allowed)
    ]


_SENTENCES = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
}


def _from_pydantic(error: ValidationError) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for one in error.errors(include_url=False, include_input=False):
        path = paths.member(paths.ROOT, str(one["loc"][0]))
        context = one.get("ctx", {})
        problems = context.get("problems")
        if problems is not None:
            found.extend(_violation(path + below, message) for below, message in problems)
        else:
            found.append(_violation(path, _SENTENCES.get(one["type"], one["msg"]).format(**context)))
    return found
