"""From a spec file and flags to one spec. Flags win; paths in flags may lie anywhere, paths in a file may not.

The person at the terminal chose what the flags name. A file may have come from someone else, so what it names has to
lie in the workspace root, as for every spec that comes through the API.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from isolation.spec import JobSpec, SpecInvalid, parse_spec
from launcher.errors import PodgateError

SPEC_LIMIT = 1 << 20
"""Bytes of a spec file. A spec's own limits keep it far below."""

_ALIASES = 50
"""YAML aliases a spec may use; nested ones grow exponentially."""

_PATHS = {"workspace": "workspace_invalid", "input": "input_invalid"}


@dataclass(frozen=True)
class Flags:
    """What the command line says about the spec; None and empty mean nothing was said."""

    fields: Mapping[str, Any]
    env: Mapping[str, str]
    labels: Mapping[str, str]
    paths: Mapping[str, Path]
    command: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Wanted:
    """A valid spec, and whether its paths are bound to the workspace root (they are, unless flags chose them)."""

    spec: JobSpec
    bound: bool


def wanted(file: str | None, flags: Flags, *, workspace_root: Path | None) -> Wanted:
    """Return the spec. Raises PodgateError ``job_spec_invalid``, ``workspace_invalid`` or ``input_invalid``."""
    fields = dict(_read(file)) if file is not None else {}
    if flags.paths:
        _confine(fields, flags.paths, workspace_root)
    fields.update(flags.fields)
    fields.update({name: os.path.abspath(path) for name, path in flags.paths.items()})  # noqa: PTH100 -- links stay
    for name, given in (("env", flags.env), ("labels", flags.labels)):
        if given:
            fields[name] = {**_mapping(fields.get(name)), **given}
    if flags.command is not None:
        fields |= {"command": list(flags.command), "args": []}
    fields.setdefault("runId", f"run-{secrets.token_hex(6)}")
    try:
        return Wanted(parse_spec(fields), bound=not flags.paths)
    except SpecInvalid as invalid:
        count = len(invalid.violations)
        message = f"The spec is not valid in {count} place{'s' if count > 1 else ''}; nothing was created."
        raise PodgateError("job_spec_invalid", message, stage="spec", violations=invalid.violations) from invalid


def pairs(texts: tuple[str, ...], flag: str, *, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read ``K=V`` texts; a bare ``K`` takes its value from ``environ``, when there is one."""
    return dict(_pair(text, flag, environ) for text in texts)


def _pair(text: str, flag: str, environ: Mapping[str, str] | None) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals and name:
        return name, value
    if environ is not None and name in environ:
        return name, environ[name]
    where = ", and the environment has no such variable" if environ is not None and name else ""
    raise click.UsageError(f"{flag} {name!r}: not NAME=VALUE{where}")


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def _confine(fields: Mapping[str, Any], flagged: Mapping[str, Path], root: Path | None) -> None:
    """The launcher binds all paths or none; when flags free one, what the file says of the other is bound here."""
    for name, code in _PATHS.items():
        said = fields.get(name)
        if said is None or name in flagged or not isinstance(said, str):
            continue
        if root is None:
            raise PodgateError(
                code,
                f"The spec file names a {name}, and no workspace_root is set; --{name} may name any.",
                stage="spec",
            )
        if not Path(os.path.realpath(said)).is_relative_to(os.path.realpath(root)):
            raise PodgateError(
                code, f"The {name} of the spec file is outside the workspace root; --{name} may name any.", stage="spec"
            )


def _read(file: str) -> Mapping[str, Any]:
    text = _bytes(file)
    try:
        spec = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 -- a SafeLoader that refuses more
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"{file} is neither JSON nor YAML: {_one_line(error)}") from error
    if not isinstance(spec, dict):
        raise _invalid(f"{file} does not hold an object")
    return spec


def _bytes(file: str) -> bytes:
    try:
        if file == "-":
            text = sys.stdin.buffer.read(SPEC_LIMIT + 1)
        else:
            with Path(file).open("rb") as stream:
                text = stream.read(SPEC_LIMIT + 1)
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error
    if len(text) > SPEC_LIMIT:
        raise _invalid(f"{file} is larger than {SPEC_LIMIT} bytes")
    return text


def _invalid(message: str) -> PodgateError:
    return PodgateError("job_spec_invalid", message, stage="spec", violations=[{"path": "$", "message": message}])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


class _StrictLoader(yaml.SafeLoader):
    """YAML without surprises: a key said twice is an error, and aliases are few."""

    aliases = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > _ALIASES:
                raise yaml.YAMLError(f"more than {_ALIASES} aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 -- PyYAML's
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice!r} is there twice{node.start_mark}")
        return super().construct_mapping(node, deep=deep)
