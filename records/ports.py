"""What the record store needs from outside: four methods over ConfigMaps, and how records are named."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]


class ConfigMapsPort(Protocol):
    """ConfigMaps of one namespace, as the API server's own JSON.

    Besides the errors named here, whatever an implementation raises goes through the store untouched.
    """

    async def get(self, name: str) -> Json | None:
        """Read one; None when it is absent."""

    async def create(self, body: Json) -> Json:
        """Create and return what was stored. Raises NameTaken, Stale (nothing created, try again), OutcomeUnknown."""

    async def replace(self, name: str, body: Json) -> Json:
        """Replace under the resourceVersion that ``body`` carries. Raises Stale, NotThere, OutcomeUnknown."""

    async def delete(self, name: str, *, uid: str) -> bool:
        """Delete the object with that uid; False when it was absent. Raises Stale when another has the name now."""


@dataclass(frozen=True)
class Naming:
    """How records are named. Handed in by whoever knows how runs are named, because this package does not."""

    token_of: Callable[[str], str]
    """Run id → token."""
    name_of: Callable[[str], str]
    """Token → name of the ConfigMap. Must be one-to-one."""
