"""How one setting's text becomes its value. A TOML file gives most values as they are; its texts are read likewise."""

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any

from launcher.settings_table import Setting

_TARGET = re.compile(
    r"^(?:\[(?P<six>[^\]]+)\]|(?P<four>[^\[\]:/=]+)):(?P<port>\d{1,5})(?:/(?P<protocol>tcp|udp))?(?:=(?P<name>.+))?$"
)
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,62}$")


class Unusable(ValueError):
    """The text says no value of this kind. The message is for a person and says what is wrong."""


def interpret(setting: Setting, raw: Any) -> tuple[Any, ...]:
    """Return one value for each of the setting's places. Raises Unusable; ranges are left to the model."""
    match setting.kind:
        case "text":
            return (raw,)
        case "optional":
            return (raw or None,)
        case "path":
            return (_path(raw),)
        case "whole":
            return (_number(raw, int),)
        case "number":
            return (_number(raw, float),)
        case "ports":
            return _ports(raw)
        case "targets":
            return (_targets(raw),)
        case "profiles":
            return (_profiles(_structure(raw, dict)),)
        case "allowances":
            return (_structure(raw, list),)


def _path(raw: Any) -> Any:
    if raw == "":
        return None
    if not isinstance(raw, str):
        raise Unusable("not a path")
    return raw


def _number(raw: Any, kind: type[int] | type[float]) -> int | float:
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
        raise Unusable("not a number")
    try:
        number = float(raw)
    except ValueError:
        raise Unusable("not a number") from None
    if not -1e15 < number < 1e15:  # noqa: PLR2004 -- also refuses inf and nan, which no bound may be
        raise Unusable("not a number that can be")
    if kind is float:
        return number
    if number != int(number):
        raise Unusable("not a whole number")
    return int(number)


def _ports(raw: Any) -> tuple[int, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or len(parts) != 2:  # noqa: PLR2004 -- control and deny
        raise Unusable("not two ports")
    control, deny = (int(_number(part, int)) for part in parts)
    if control == deny:
        raise Unusable("the two ports must differ")
    return control, deny


def _targets(raw: Any) -> list[dict[str, Any]]:
    texts = re.split(r"[,\s]+", raw.strip()) if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Unusable("not a list of texts")
    targets = [_target(text) for text in texts if text]
    names = [target["name"] for target in targets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise Unusable(f"two targets are named {twice}")
    return targets


def _target(text: str) -> dict[str, Any]:
    match = _TARGET.match(text)
    if match is None:
        raise Unusable(f"{text!r} is not IP:PORT[/udp][=NAME]")
    try:
        ip = ipaddress.IPv6Address(match["six"]) if match["six"] else ipaddress.IPv4Address(match["four"])
    except ValueError:
        raise Unusable(f"{text!r} does not begin with an IP address (IPv6 in brackets)") from None
    name = match["name"] or text
    if match["name"] and not _NAME.match(name):
        raise Unusable(f"{name!r} is not a name of letters, digits and _.:-")
    return {"ip": str(ip), "port": int(match["port"]), "protocol": match["protocol"] or "tcp", "name": name}


def _structure(raw: Any, kind: type) -> Any:
    if isinstance(raw, str):
        try:
            raw = json.loads(raw or ("{}" if kind is dict else "[]"))
        except ValueError as error:
            raise Unusable(f"not JSON: {error}") from None
    if not isinstance(raw, kind):
        raise Unusable("not a table of profiles" if kind is dict else "not a list")
    return raw


_SPELLINGS = {"hostAliases": "host_aliases", "podSelector": "pod_selector", "namespaceSelector": "namespace_selector"}
"""Kubernetes's own spelling of these fields is understood, too."""


def _profiles(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read each profile; a plain list is its rules. ``none`` is always there and opens nothing."""
    profiles = {name: _profile(profile) for name, profile in raw.items()}
    if any(profiles.get("none", {}).values()):
        raise Unusable("the profile none opens nothing and cannot be changed")
    return {"none": {}} | profiles


def _profile(raw: Any) -> dict[str, Any]:
    if isinstance(raw, list):
        raw = {"rules": raw}
    if not isinstance(raw, dict):
        raise Unusable("a profile is a table or a list of rules")
    profile = _spelled(raw)
    if isinstance(profile.get("rules"), list):
        profile["rules"] = [_spelled(rule) if isinstance(rule, dict) else rule for rule in profile["rules"]]
    return profile


def _spelled(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_SPELLINGS.get(key, key): value for key, value in fields.items()}
