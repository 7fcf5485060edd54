"""The ConfigMap in which replicas share a preflight: its result, or the lease of the one that is making it."""

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from isolation import labels
from isolation.digest import canonical_json
from launcher.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unreachable
from launcher.cluster.port import Json, Kind
from launcher.context import Context
from launcher.decide.preflight import PreflightReport
from launcher.lastrequest import carried_out
from records.model import format_time

_log = structlog.get_logger()

KEY = "preflight.json"

SPREAD_SECONDS = 5.0
"""How much longer than the experiment's bound its maker is waited for: clean-up and one write."""

CLOCKS_APART_SECONDS = 60.0
"""How far two API servers' clocks may differ. What is dated later was written before a clock was set, and is void."""

GIVE_BACK_SECONDS = 5.0
WRITES = 3


@dataclass(frozen=True)
class Shared:
    """What was read: the object as stored, None when absent, and its content, empty when it is none of ours."""

    stored: Json | None
    state: Json

    @property
    def attempt(self) -> object:
        """The lease's own mark, by which its maker knows it again; None for a result."""
        return self.state.get("attempt")


class SharedResult:
    """Reads and writes that ConfigMap."""

    def __init__(self, context: Context, name: str) -> None:
        self._context = context
        self._bounds = context.settings.bounds
        self._name = name

    async def read(self) -> Shared:
        """Read it. Raises ClusterError."""
        stored = await self._context.cluster.get(Kind.CONFIG_MAP, self._context.namespace, self._name)
        return Shared(stored, _state(stored))

    def report(self, shared: Shared, *, since: datetime | None) -> PreflightReport | None:
        """Return the result while it holds; ``since``: only one that ended then or later."""
        try:
            report = PreflightReport.of(shared.state["report"])
            at = _moment(report.at)
        except (KeyError, TypeError, ValueError):
            return None
        kept = self._bounds.preflight_success_kept if report.ok else self._bounds.preflight_failure_kept
        now = self._context.cluster.now()
        holds = at - timedelta(seconds=CLOCKS_APART_SECONDS) <= now < at + timedelta(seconds=kept)
        return report if holds and (since is None or at >= since) else None

    def under_way(self, shared: Shared) -> bool:
        """Say whether another's lease still runs."""
        try:
            left = _moment(shared.state["expiresAt"]) - self._context.cluster.now()
        except (KeyError, TypeError, ValueError):
            return False
        longest = self._bounds.preflight + SPREAD_SECONDS + CLOCKS_APART_SECONDS
        return timedelta(0) < left <= timedelta(seconds=longest)

    async def take(self, shared: Shared) -> Shared | None:
        """Take the experiment on us; None when another replica was quicker. Raises ClusterError."""
        until = self._context.cluster.now() + timedelta(seconds=self._bounds.preflight + SPREAD_SECONDS)
        attempt = secrets.token_hex(8)
        lease = {"attempt": attempt, "expiresAt": format_time(until), "holder": self._context.holder}
        try:
            return Shared(await self._write(shared.stored, lease), lease)
        except (AlreadyExists, Conflict, Unreachable):  # another's, or ours whose answer was lost
            found = await self.read()
            return found if found.attempt == attempt else None
        except NotFound:
            if shared.stored is None:  # it is the namespace that is missing
                raise
            return None

    async def publish(self, held: Shared, report: PreflightReport) -> None:
        """Put the result where the lease was. The experiment counts for us also when it cannot be shared."""
        try:
            await self._put(held, {"report": report.as_json()})
        except ClusterError as error:
            _log.warning("preflight_not_shared", error=str(error))

    async def give_back(self, held: Shared) -> None:
        """End the lease without a result, so that nobody waits for it; also while we are being cancelled."""
        if (why := await carried_out(self._put(held, {}), within=GIVE_BACK_SECONDS)) is not None:
            _log.warning("preflight_lease_left", why=why)

    async def _put(self, held: Shared, state: Json) -> None:
        """Write in place of our lease; a lost answer is looked after. Another's lease stays: ours had run out."""
        for _ in range(WRITES):
            try:
                await self._write(held.stored, state)
            except Unreachable:
                found = await self.read()
                if found.attempt != held.attempt:
                    return
                held = found
            except (AlreadyExists, Conflict, NotFound):
                return
            else:
                return

    async def _write(self, stored: Json | None, state: Json) -> Json:
        metadata: Json = {
            "labels": labels.managed("preflight"),
            "name": self._name,
            "namespace": self._context.namespace,
        }
        body: Json = {
            "apiVersion": "v1",
            "data": {KEY: canonical_json(state).decode()},
            "kind": "ConfigMap",
            "metadata": metadata,
        }
        if stored is None:
            return await self._context.cluster.create(Kind.CONFIG_MAP, self._context.namespace, body)
        metadata["resourceVersion"] = stored["metadata"]["resourceVersion"]
        return await self._context.cluster.replace(Kind.CONFIG_MAP, self._context.namespace, self._name, body)


def _moment(text: str) -> datetime:
    """Read an RFC 3339 time. Raises ValueError, also for one without a zone."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(text)
    return at


def _state(stored: Json | None) -> Json:
    try:
        state = json.loads((stored or {})["data"][KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}
