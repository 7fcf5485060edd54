"""How a place inside a JSON document is written: one stable syntax for attestation, specs and allowances.

::

    $                                   the whole document
    $.spec.nodeName                     a member whose name is plain: a letter or ``_``, then also digits, ``-``
    $.metadata.labels["podgate.dev/run"]   any other member, quoted as JSON
    $.spec.containers[worker].image     an element of a list whose elements have names (see normalize.MERGE_KEYS)
    $.spec.tolerations[0]               an element of any other list, by its index

An element's name stands bare when it is made of letters, digits and ``_ . / -`` and is no number; otherwise it is
quoted as JSON.
"""

import json
import re

ROOT = "$"

_PLAIN_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_PLAIN_ELEMENT = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z_./-][A-Za-z0-9_./-]*")


def member(parent: str, name: str) -> str:
    """Path of an object's member."""
    return f"{parent}.{name}" if _PLAIN_MEMBER.fullmatch(name) else f"{parent}[{json.dumps(name)}]"


def element(parent: str, name: str) -> str:
    """Path of a list's element that is known by its name."""
    return f"{parent}[{name if _PLAIN_ELEMENT.fullmatch(name) else json.dumps(name)}]"


def index(parent: str, position: int) -> str:
    """Path of a list's element that is known by its position, counted from 0."""
    return f"{parent}[{position}]"
