"""How a person names a run: by its handle ``NAMESPACE/TOKEN``, or by the run id that it was launched under."""

import re
from dataclasses import dataclass

from isolation import names
from launcher.contract import JobHandle
from launcher.errors import PodgateError

BACKEND = "kubernetes"

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Named:
    """What was said on the command line. The namespace of a handle wins over the settings' own."""

    namespace: str | None
    token: str

    def handle(self, namespace: str) -> JobHandle:
        """Return the handle, in this namespace unless the person named one."""
        return JobHandle(BACKEND, f"{self.namespace or namespace}/{self.token}")


def named(handle: str | None, run_id: str | None, *, namespace: str | None = None) -> Named:
    """Read what was said. Raises PodgateError ``usage_invalid``: neither, both, no handle, or two namespaces."""
    if (handle is None) == (run_id is None):
        raise PodgateError("usage_invalid", "Give either a handle NAMESPACE/TOKEN or --run-id ID.")
    if handle is None:
        return Named(None, names.token(run_id or ""))
    space, slash, token = handle.partition("/")
    if not slash or not names.is_token(token) or not _NAMESPACE.fullmatch(space):
        raise PodgateError(
            "usage_invalid", f"{handle[:120]!r} is not a handle NAMESPACE/TOKEN; for a run id use --run-id."
        )
    if namespace is not None and namespace != space:
        raise PodgateError("usage_invalid", f"The handle is in namespace {space}, and --namespace says {namespace}.")
    return Named(space, token)
