"""Where symbolic links lead, decided on paper before one of them exists."""

from collections import deque
from collections.abc import Mapping

from launcher.extract.rules import LINK_HOPS, Parts, folded


class Links:
    """The links of a tree. Names are compared folded, so that an alias on a case-insensitive disk is no way out."""

    def __init__(self) -> None:
        self._targets: dict[bytes, bytes] = {}
        self.bytes = 0

    def add(self, path: bytes, target: bytes) -> None:
        """Note one link."""
        self._targets[folded(path)] = target
        self.bytes += len(path) + len(target)

    def first_above(self, parts: Parts) -> bytes | None:
        """Return the first link among the directories above an entry; None when there is none."""
        if not self._targets:
            return None
        for count in range(1, len(parts)):
            above = b"/".join(parts[:count])
            if folded(above) in self._targets:
                return above
        return None

    def fault(self, path: bytes) -> str | None:
        """Return why a link may not be; None when it resolves below the root within the hops that Linux follows."""
        return _fault(path, self._targets)


def _fault(path: bytes, targets: Mapping[bytes, bytes]) -> str | None:
    here: list[bytes] = []
    ahead = deque(path.split(b"/"))
    hops = 0
    while ahead:
        part = ahead.popleft()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not here:
                return "leads outside"
            here.pop()
            continue
        here.append(part)
        target = targets.get(folded(b"/".join(here)))
        if target is None:
            continue
        hops += 1
        if not target or target.startswith(b"/") or b"\0" in target:
            return "is empty or absolute"
        if hops > LINK_HOPS:
            return f"does not resolve within {LINK_HOPS} links"
        here.pop()
        ahead.extendleft(reversed(target.split(b"/")))
    return None
