"""Attestation: whether what the API server stored is what was sent.

Raw JSON against raw JSON, whole objects, deny by default: what ``normalize.py`` does not name is a difference. Typed
models have no part in this; a field that they do not know would vanish, and with it an escape.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from isolation import paths, quantity
from isolation.hints import hint
from isolation.normalize import BY_CONTENT, MERGE_KEYS, Keys, comparable, filled_by_server, is_quantity
from isolation.options import Allowance
from isolation.profile import PLATFORMS, Platform, PlatformName

Kind = Literal["missing", "unexpected", "different"]


@dataclass(frozen=True)
class Violation:
    """One place where the stored object is not the one that was sent. Values are never repeated: they are not ours.

    ``missing``: sent, and not there. ``unexpected``: there, and not sent. ``different``: both,
    and they differ; for a list it means that its elements stand in another order.
    """

    path: str
    kind: Kind
    hint: str | None = None

    def as_json(self) -> dict[str, str]:
        """Return the violation as one JSON object."""
        body = {"path": self.path, "kind": self.kind}
        return body if self.hint is None else {**body, "hint": self.hint}


@dataclass(frozen=True)
class Place:
    """Where in the document: its path, its member names, the last name, and the path above."""

    path: str = paths.ROOT
    keys: Keys = ()
    name: str = ""
    parent: str = ""

    def member(self, name: str) -> "Place":
        """Return the place of a member of the object here."""
        return Place(paths.member(self.path, name), (*self.keys, name), name, self.path)

    def element(self, name: str) -> "Place":
        """Return the place of a named element of the list here."""
        return Place(paths.element(self.path, name), (*self.keys, "*"), name, self.path)

    def index(self, position: int) -> "Place":
        """Return the place of an element of the list here that has no name."""
        return Place(paths.index(self.path, position), (*self.keys, "*"), "", self.path)


@dataclass(frozen=True)
class Difference:
    """A violation with what it is made of, for allowances and for the doctor's advice.

    ``sent`` and ``stored`` are None when absent; for a list in another order they are the names of its elements.
    """

    place: Place
    kind: Kind
    sent: Any
    stored: Any

    @property
    def path(self) -> str:
        """Return the path as violations and allowances write it."""
        return self.place.path


def attest(
    sent: Mapping[str, Any],
    stored: Mapping[str, Any],
    *,
    allowances: Sequence[Allowance] = (),
    platform: PlatformName = "generic",
    generation: int | None = 1,
    uid: str | None = None,
) -> tuple[Violation, ...]:
    """Compare what was read back with what was sent; empty when they are the same object.

    ``generation``: the one that the stored object must have; it rises with every change of the spec. None looks away;
    servers that keep none for pods are not blamed for it. ``uid``: likewise, when given.
    """
    found = differences(sent, stored)
    left = [d for d in found if not _allowed(d, allowances) and not _forgiven(d, sent, PLATFORMS[platform])]
    violations = [Violation(d.path, d.kind, hint(d.kind, d.place.keys, d.place.name, d.sent, d.stored)) for d in left]
    return (*violations, *_identity(stored, generation, uid))


def differences(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Everything in which the stored object differs from the sent one beyond what the server itself does."""
    return tuple(
        difference
        for difference in _compare(comparable(sent), comparable(stored), Place())
        if not (difference.kind == "unexpected" and filled_by_server(sent, difference.place.keys, difference.stored))
    )


def _identity(stored: Mapping[str, Any], generation: int | None, uid: str | None) -> Iterator[Violation]:
    metadata = stored.get("metadata")
    found: Mapping[str, Any] = metadata if isinstance(metadata, dict) else {}
    if generation is not None and not _same(found.get("generation", generation), generation):
        yield Violation("$.metadata.generation", "different", "the spec was changed after it was created")
    if uid is not None and not _same(found.get("uid"), uid):
        yield Violation("$.metadata.uid", "different", "another object took the place of the one that was created")


def _allowed(difference: Difference, allowances: Sequence[Allowance]) -> bool:
    """What is missing can never be allowed: it is a restriction of ours more often than not."""
    return difference.kind != "missing" and any(
        allowance.path == difference.path and _matches(allowance, difference) for allowance in allowances
    )


def _matches(allowance: Allowance, difference: Difference) -> bool:
    if allowance.prefix is None:
        return _same(allowance.value, difference.stored)
    if not isinstance(difference.stored, str) or not difference.stored.startswith(allowance.prefix):
        return False
    return difference.place.name != "image" or _same_digest(difference.sent, difference.stored)


def _same_digest(sent: Any, stored: str) -> bool:
    """A mirror may hold an image under another name, but never another image."""
    digest = stored.partition("@")[2]
    return isinstance(sent, str) and bool(digest) and sent.partition("@")[2] == digest


def _forgiven(difference: Difference, sent: Mapping[str, Any], platform: Platform) -> bool:
    if difference.kind != "unexpected" or sent.get("kind") != "Pod":
        return False
    place = difference.place
    for added in platform.adds:
        if added.prefix is not None:
            if place.parent == added.parent and place.name.startswith(added.prefix):
                return True
        elif added.parent in {place.path, place.parent} and _same(dict(added.value), difference.stored):
            return True
    return False


def _compare(sent: Any, stored: Any, place: Place) -> Iterator[Difference]:
    if isinstance(sent, dict) and isinstance(stored, dict):
        yield from _objects(sent, stored, place)
    elif isinstance(sent, list) and isinstance(stored, list):
        yield from _lists(sent, stored, place)
    elif not (_same(sent, stored) or (is_quantity(place.keys) and quantity.equal(sent, stored))):
        yield Difference(place, "different", sent, stored)


def _objects(sent: dict[str, Any], stored: dict[str, Any], place: Place) -> Iterator[Difference]:
    for name, value in sent.items():
        if name in stored:
            yield from _compare(value, stored[name], place.member(name))
        else:
            yield Difference(place.member(name), "missing", value, None)
    for name, value in stored.items():
        if name not in sent:
            yield Difference(place.member(name), "unexpected", None, value)


def _lists(sent: list[Any], stored: list[Any], place: Place) -> Iterator[Difference]:
    key = MERGE_KEYS.get(place.keys[-1]) if place.keys else None
    if place.keys and place.keys[-1] in BY_CONTENT:
        yield from _by_content(sent, stored, place)
    elif key is not None and _has_names(sent, key) and _has_names(stored, key):
        yield from _by_name({item[key]: item for item in sent}, {item[key]: item for item in stored}, place)
    else:
        yield from _by_position(sent, stored, place)


def _has_names(items: list[Any], key: str) -> bool:
    """True when every element has a name of its own; one that occurs twice (``env`` may do so) names nothing."""
    found = [item.get(key) if isinstance(item, dict) else None for item in items]
    return all(isinstance(name, str) for name in found) and len(set(found)) == len(found)


def _by_name(sent: dict[str, Any], stored: dict[str, Any], place: Place) -> Iterator[Difference]:
    for name, item in sent.items():
        if name in stored:
            yield from _compare(item, stored[name], place.element(name))
        else:
            yield Difference(place.element(name), "missing", item, None)
    added = [name for name in stored if name not in sent]
    for name in added:
        yield Difference(place.element(name), "unexpected", None, stored[name])
    # Where an element stands matters: an init container before the gate runs before any proof.
    if list(stored) != [name for name in sent if name in stored] + added:
        yield Difference(place, "different", list(sent), list(stored))


def _by_position(sent: list[Any], stored: list[Any], place: Place) -> Iterator[Difference]:
    for position, (one, other) in enumerate(zip(sent, stored, strict=False)):
        yield from _compare(one, other, place.index(position))
    for position in range(len(stored), len(sent)):
        yield Difference(place.index(position), "missing", sent[position], None)
    for position in range(len(sent), len(stored)):
        yield Difference(place.index(position), "unexpected", None, stored[position])


def _by_content(sent: list[Any], stored: list[Any], place: Place) -> Iterator[Difference]:
    ours, theirs = [_spelling(item) for item in sent], [_spelling(item) for item in stored]
    common = Counter(ours) & Counter(theirs)
    yield from (Difference(place.index(at), "missing", sent[at], None) for at in _surplus(ours, common))
    yield from (Difference(place.index(at), "unexpected", None, stored[at]) for at in _surplus(theirs, common))
    if _kept(ours, common) != _kept(theirs, common):
        yield Difference(place, "different", sent, stored)


def _surplus(spellings: list[str], common: Counter[str]) -> list[int]:
    """Positions of the elements that the other list does not have."""
    left = Counter(common)
    surplus = []
    for at, spelling in enumerate(spellings):
        left[spelling] -= 1
        if left[spelling] < 0:
            surplus.append(at)
    return surplus


def _kept(spellings: list[str], common: Counter[str]) -> list[str]:
    """The elements that both lists have, in this one's order."""
    surplus = set(_surplus(spellings, common))
    return [spelling for at, spelling in enumerate(spellings) if at not in surplus]


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1, and 1.0 is not 1."""
    return _spelling(one) == _spelling(other)


def _spelling(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
