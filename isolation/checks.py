"""What each field of a spec must be: a check takes what the caller gave, and returns it or says all that is wrong.

Problems are gathered, not raised one by one, so that a caller sees all of them at once. Messages never repeat a value.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from isolation import limits, paths

Problem = tuple[str, str]
"""Path below the field (``""``, ``[3]``, ``.NAME``), and what is wrong there."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_COMPONENT = re.compile(r"[a-z0-9]+((\.|__?|-+)[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
"""Control characters but tab, line feed and carriage return: none has a place in a command, and NUL would end it."""
_ANY_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

SHOWN = 64
"""Characters of a caller's own name that an error repeats."""


def shown(name: object) -> str:
    """A name that the caller made up, short enough and clean enough to be repeated in an error."""
    text = name if isinstance(name, str) else f"<{type(name).__name__}>"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:SHOWN]


def _refuse(problems: Iterable[Problem]) -> None:
    listed = list(problems)
    if listed:
        raise PydanticCustomError("podgate", "{summary}", {"summary": listed[0][1], "problems": listed})


def _one(message: str | None) -> list[Problem]:
    return [] if message is None else [("", message)]


def _text(value: object, *, control: re.Pattern[str] = _ANY_CONTROL) -> str | None:
    """What is wrong with a value that must be text; None when nothing is."""
    if not isinstance(value, str):
        return "must be a string"
    if control.search(value):
        return "holds a control character"
    return None if _encodable(value) else "is not valid Unicode"


def _encodable(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _size(*texts: str) -> int:
    return sum(len(text.encode("utf-8")) for text in texts)


def _named(value: object, pattern: re.Pattern[str], length: int, rule: str) -> Any:
    if not isinstance(value, str):
        _refuse([("", "must be a string")])
    elif len(value) > length or not pattern.fullmatch(value):
        _refuse([("", rule)])
    return value


def run_id(value: object) -> Any:
    """1 to 200 of letters, digits, ``_ . : -``; first a letter or digit."""
    rule = (
        f"must be 1 to {limits.RUN_ID_LENGTH} of letters, digits, '_', '.', ':', '-', and begin with a letter or digit"
    )
    return _named(value, _RUN_ID, limits.RUN_ID_LENGTH, rule)


def egress(value: object) -> Any:
    """The name of an egress profile; whether there is such a profile is the settings' business."""
    return _named(
        value, _DNS_LABEL, limits.NAME_LENGTH, "must be the name of an egress profile: lower-case letters, digits, '-'"
    )


def capability(value: object) -> Any:
    """The name of a capability, or None."""
    if value is None:
        return None
    rule = "must be the name of a capability: letters, digits, '_', '.', ':', '-', and begin with a letter or digit"
    return _named(value, _RUN_ID, limits.CAPABILITY_NAME_LENGTH, rule)


def image(value: object) -> Any:
    """``repository@sha256:<64 hex>``, without a tag."""
    _refuse(_one(_image_problem(value)))
    return value


def _image_problem(value: object) -> str | None:
    wanted = "must be repository@sha256:<64 lower-case hex digits>"
    if not isinstance(value, str):
        return wanted
    repository, at, digest = value.partition("@")
    if not at or not _DIGEST.fullmatch(digest):
        return wanted
    if ":" in repository.rpartition("/")[2]:
        return wanted + ", without a tag"
    return (
        None if _is_repository(repository) else wanted + ", and the repository's name is not one that registries know"
    )


def _is_repository(name: str) -> bool:
    first, slash, rest = name.partition("/")
    host_then_path = bool(slash) and bool(_HOST.fullmatch(first)) and _is_path(rest)
    return len(name) <= limits.REPOSITORY_LENGTH and (host_then_path or _is_path(name))


def _is_path(name: str) -> bool:
    return all(_COMPONENT.fullmatch(part) for part in name.split("/"))


def _words(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        _refuse([("", "must be a list of strings")])
        return ()
    problems = [
        (paths.index("", at), problem) for at, word in enumerate(value) if (problem := _text(word, control=_CONTROL))
    ]
    if len(value) > limits.WORDS:
        problems.append(("", f"has more than {limits.WORDS} items"))
    if not problems and _size(*value) > limits.WORDS_BYTES:
        problems.append(("", f"is longer than {limits.WORDS_BYTES // limits.KIB} KiB"))
    _refuse(problems)
    return tuple(value)


arguments = _words
"""A list of strings; each may be empty."""


def command(value: object) -> tuple[str, ...]:
    """A list of strings, the first of which names a program."""
    words = _words(value)
    if words and not words[0]:
        _refuse([("[0]", "must name a program")])
    return words


def environment(value: object) -> dict[str, str]:
    """A map of names that a shell knows to strings, without reserved names."""
    return _strings(value, _env_problem, limits.ENV_ENTRIES, limits.ENV_BYTES)


def _env_problem(name: str, value: object) -> str | None:
    if len(name) > limits.ENV_NAME_LENGTH or not _ENV_NAME.fullmatch(name):
        return "the name must be letters, digits and '_', and not begin with a digit"
    if name.startswith(limits.ENV_RESERVED):
        return "the name is reserved: " + ", ".join(f"{prefix}*" for prefix in limits.ENV_RESERVED)
    return _text(value, control=_CONTROL)


def labels(value: object) -> dict[str, str]:
    """A map of strings, for the caller."""
    return _strings(value, _label_problem, limits.LABELS, limits.LABELS_BYTES)


def _label_problem(name: str, value: object) -> str | None:
    if not name or len(name) > limits.LABEL_NAME_LENGTH or _text(name):
        return f"the name must be 1 to {limits.LABEL_NAME_LENGTH} characters of text"
    problem = _text(value)
    if problem is None and isinstance(value, str) and len(value) > limits.LABEL_VALUE_LENGTH:
        return f"is longer than {limits.LABEL_VALUE_LENGTH} characters"
    return problem


def _strings(value: object, check: Callable[[str, object], str | None], most: int, size: int) -> dict[str, str]:
    if not isinstance(value, Mapping):
        _refuse([("", "must be a map of strings")])
        return {}
    problems: list[Problem] = []
    for name, item in value.items():
        problem = check(name, item) if isinstance(name, str) else "the name must be a string"
        if problem:
            problems.append((paths.member("", shown(name)), problem))
    if len(value) > most:
        problems.append(("", f"has more than {most} entries"))
    if not problems and _size(*value.keys(), *value.values()) > size:
        problems.append(("", f"is larger than {size // limits.KIB} KiB"))
    _refuse(problems)
    return dict(value)


def host_path(value: object) -> Path | None:
    """A path on the launcher's host, or None. Whether it may be used is the launcher's business."""
    if value is None:
        return None
    if not isinstance(value, (str, Path)):
        _refuse([("", "must be a path")])
    text = str(value)
    if not text or "\0" in text or len(os.fsencode(text)) > limits.HOST_PATH_BYTES:
        _refuse([("", "must be a path of 1 to 4,096 bytes without NUL")])
    return Path(text)


def relative_paths(value: object) -> tuple[str, ...]:
    """Paths inside the workspace; a slash at the end is dropped, so that ``dist/`` and ``dist`` are the same."""
    if not isinstance(value, (list, tuple)):
        _refuse([("", "must be a list of relative paths")])
        return ()
    problems = [(paths.index("", at), problem) for at, item in enumerate(value) if (problem := _relative_problem(item))]
    if len(value) > limits.EXCLUDES:
        problems.append(("", f"has more than {limits.EXCLUDES} items"))
    if not problems and _size(*value) > limits.EXCLUDES_BYTES:
        problems.append(("", f"is longer than {limits.EXCLUDES_BYTES // limits.KIB} KiB"))
    _refuse(problems)
    return tuple(item.removesuffix("/") for item in value)


def _relative_problem(value: object) -> str | None:
    problem = _text(value)
    if problem is None and isinstance(value, str) and not _is_relative(value.removesuffix("/")):
        return "must be a relative path without empty parts, '.' and '..'"
    return problem


def _is_relative(path: str) -> bool:
    return all(part not in {"", ".", ".."} for part in path.split("/"))


def millicores(value: float | Decimal) -> int:
    """Thousandths of a processor, by the number's shortest decimal form: 0.1 is 100, exactly."""
    return int(Decimal(str(value)) * 1000)


def cpus(value: object) -> float:
    """A number of processors in whole millicores."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        _refuse([("", "must be a number")])
        return 0.0
    least, most = limits.CPUS
    number = Decimal(str(value)) if not isinstance(value, int) else Decimal(value)
    if not number.is_finite() or not least <= number <= most:
        _refuse([("", f"must be between {least} and {most}")])
    if number * 1000 % 1:
        _refuse([("", "must be whole millicores: at most three digits after the point")])
    return float(number)
