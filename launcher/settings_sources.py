"""Where settings come from: environment ``PODGATE_<UPPER_SNAKE>``, then a TOML file, then flags; later wins.

Unknown keys of the file are errors, since there they can only be mistakes. Unknown ``PODGATE_*`` variables are not:
Kubernetes itself puts ``PODGATE_WITNESS_PORT…`` into pods beside the witness.
"""

import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from launcher.errors import PodgateError
from launcher.settings import Settings
from launcher.settings_parse import Unusable, interpret
from launcher.settings_table import FLAGS, SETTINGS, Setting

CONFIG_LIMIT = 1 << 20
"""Bytes of a settings file; a larger one is a mistake."""

_FEW = 3
_SHOWN = 80
"""Characters of a refused value that an error repeats."""


@dataclass(frozen=True)
class Given:
    """A value for a setting and where it was said, in words for a person."""

    setting: Setting
    value: Any
    source: str


def load_settings(
    environ: Mapping[str, str], *, config: Path | None = None, flags: Mapping[str, str] | None = None
) -> Settings:
    """Read all sources and return the settings. Raises PodgateError ``setting_invalid``, which lists every fault."""
    return build(gather(environ, config=config, flags=flags))


def gather(
    environ: Mapping[str, str], *, config: Path | None = None, flags: Mapping[str, str] | None = None
) -> dict[str, Given]:
    """Return what was said for each setting by its strongest source. Raises PodgateError ``setting_invalid``."""
    if config is None and environ.get("PODGATE_CONFIG"):
        config = Path(environ["PODGATE_CONFIG"])
    said: dict[str, Given] = {}
    for given in (*_from_environment(environ), *_from_file(config), *_from_flags(flags or {})):
        said[given.setting.name] = given
    return said


def build(said: Mapping[str, Given]) -> Settings:
    """Make the settings of what was said. Raises PodgateError ``setting_invalid``, which lists every fault."""
    tree: dict[str, Any] = {"isolation": {}}
    faults = []
    for given in said.values():
        try:
            values = interpret(given.setting, given.value)
        except Unusable as unusable:
            faults.append(_fault(given, str(unusable)))
            continue
        for path, value in zip(given.setting.paths, itertools.cycle(values), strict=False):
            _put(tree, path, value)
    if faults:
        raise _refusal(faults)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise _refusal(_faults_of(error, said)) from error


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    for setting in SETTINGS.values():
        if setting.env in environ:
            yield Given(setting, environ[setting.env], f"the environment variable {setting.env}")


def _from_file(config: Path | None) -> Iterator[Given]:
    if config is None:
        return
    for key, value in _read_toml(config).items():
        if key not in SETTINGS:
            raise _refusal(
                [{"path": key, "source": f"the file {config}", "message": f"no such setting{_similar(key)}"}]
            )
        yield Given(SETTINGS[key], value, f"the file {config}")


def _from_flags(flags: Mapping[str, str]) -> Iterator[Given]:
    for name, value in flags.items():
        if name not in SETTINGS:
            raise _refusal([{"path": name, "source": "the flag --set", "message": f"no such setting{_similar(name)}"}])
        yield Given(SETTINGS[name], value, f"the flag {FLAGS.get(name, '--set')}")


def _read_toml(config: Path) -> dict[str, Any]:
    try:
        with config.open("rb") as file:
            text = file.read(CONFIG_LIMIT + 1)
        if len(text) > CONFIG_LIMIT:
            raise _unreadable(config, f"it is larger than {CONFIG_LIMIT} bytes")
        return tomllib.loads(text.decode("utf-8"))
    except OSError as error:
        raise _unreadable(config, error.strerror or type(error).__name__) from error
    except ValueError as error:  # TOML and UTF-8 errors both
        raise _unreadable(config, str(error)) from error


def _unreadable(config: Path, why: str) -> PodgateError:
    return _refusal([{"path": "config", "source": f"the file {config}", "message": f"cannot be read as TOML: {why}"}])


def _similar(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), SETTINGS, n=1)
    return f"; did you mean {close[0]}?" if close else "; podgate settings lists them"


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, leaf = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[leaf] = value


def _faults_of(error: ValidationError, said: Mapping[str, Given]) -> list[dict[str, str]]:
    return [_fault_at(".".join(str(part) for part in e["loc"]), e["type"], e["msg"], said) for e in error.errors()]


def _fault_at(location: str, kind: str, message: str, said: Mapping[str, Given]) -> dict[str, str]:
    setting = _setting_at(location)
    if setting is None:
        return _fault_of_several(location, message, said)
    if kind == "missing" and setting.name not in said:
        hint = f"is required: set {setting.env}, or {setting.name} in the file, or {FLAGS.get(setting.name, '--set')}"
        return {"path": setting.name, "source": "no source", "message": f"{hint}; allowed: {setting.allowed}"}
    inner = next((location.removeprefix(p).lstrip(".") for p in setting.paths if location.startswith(p)), "")
    text = message.removeprefix("Value error, ")
    return _fault(said[setting.name], f"{inner}: {text}" if inner else text)


def _fault_of_several(location: str, message: str, said: Mapping[str, Given]) -> dict[str, str]:
    """A rule over several settings: name those that were said, when they are few; the message says more."""
    below = [s.name for s in SETTINGS.values() if s.name in said and any(p.startswith(f"{location}.") for p in s.paths)]
    path = ", ".join(below) if 0 < len(below) <= _FEW else "settings"
    return {"path": path, "source": "the settings together", "message": message.removeprefix("Value error, ")}


def _setting_at(location: str) -> Setting | None:
    for setting in SETTINGS.values():
        if any(location == path or location.startswith(path + ".") for path in setting.paths):
            return setting
    return None


def _fault(given: Given, message: str) -> dict[str, str]:
    shown = str(given.value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"
    return {
        "path": given.setting.name,
        "source": given.source,
        "message": f"{shown!r} is not allowed ({message}); allowed: {given.setting.allowed}",
    }


def _refusal(faults: list[dict[str, str]]) -> PodgateError:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"{first['path']}, from {first['source']}: {first['message']}{more}"
    return PodgateError("setting_invalid", message, stage="settings", violations=faults)
