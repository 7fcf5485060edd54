"""Who owns an object: when the owner is gone, the garbage collector deletes what it owned."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Owner:
    """A stored object that owns others. The uid makes the reference one to this very object, not to its name."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self, *, controller: bool = False) -> dict[str, Any]:
        """Return the entry for ``metadata.ownerReferences``.

        It never blocks the owner's deletion: that would need a right on the owner's finalizers. ``controller`` makes a
        pod a managed one in the eyes of drains and autoscalers.
        """
        reference: dict[str, Any] = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
        }
        return {**reference, "blockOwnerDeletion": False, "controller": True} if controller else reference
