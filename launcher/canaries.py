"""Making the preflight's two pods, reading what they say, and never leaving them behind."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from isolation import names
from isolation.attest import attest
from isolation.names import CanaryKind
from isolation.objects.canary import build_canary, build_canary_policy
from isolation.objects.owner import Owner
from launcher.cluster.errors import AlreadyExists, ClusterError, NotFound, Refused, Unreachable
from launcher.cluster.port import Json, Kind
from launcher.cluster.views import PodView
from launcher.context import Context
from launcher.decide.preflight import final_line
from launcher.decide.waiting import waiting
from launcher.errors import PodgateError
from launcher.lastrequest import carried_out
from launcher.podfeed import PodFeed
from launcher.tasks import run_beside

_log = structlog.get_logger()

STAGE = "preflight"

LINE_LIMIT = 64 * 1024
"""Bytes of one line of a canary's log; its answer is below 8 KiB."""

GRACE_SECONDS = 1
"""Canaries end at once on SIGTERM; deletion is never forced."""

CLEAN_UP_SECONDS = 15.0

ANSWER_MARGIN_SECONDS = 10.0
"""Beyond the canary's own bound, for the last attempts to be watched and the log to arrive."""


@asynccontextmanager
async def canary(
    context: Context, kind: CanaryKind, witness_ips: dict[str, str], *, latency_targets: tuple[str, ...] = ()
) -> AsyncIterator["Canary"]:
    """Yield a canary whose pod and policy stand and are attested; both go at the end, also when we are cancelled."""
    suffix = secrets.token_hex(4)
    options = context.settings.isolation
    sent = build_canary(
        options,
        suffix=suffix,
        kind=kind,
        witness_ips=witness_ips,
        latency_targets=latency_targets,
        bound_seconds=context.settings.bounds.first_proof,
        idle_seconds=context.settings.bounds.preflight,
    )
    stored = await _pod(context, sent)
    try:
        yield await _policed(context, suffix, kind, sent, stored)
    finally:
        await _removed(context, stored["metadata"]["name"], uid=stored["metadata"]["uid"])


async def _pod(context: Context, sent: Json) -> Json:
    """Create the pod. When nobody can say whether it was created, it is deleted by its name, which is ours alone."""
    try:
        return await _made(context, Kind.POD, sent)
    except (asyncio.CancelledError, Unreachable):
        await _removed(context, sent["metadata"]["name"], uid=None)
        raise


async def _made(context: Context, kind: Kind, sent: Json) -> Json:
    """Create an object. One of its name that is there is our own, whose create was repeated after a lost answer."""
    try:
        return await context.cluster.create(kind, context.namespace, sent)
    except AlreadyExists:
        stored = await context.cluster.get(kind, context.namespace, sent["metadata"]["name"])
        if stored is None:
            raise
        return stored


async def _policed(context: Context, suffix: str, kind: CanaryKind, sent: Json, stored: Json) -> "Canary":
    name, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
    policy = build_canary_policy(
        context.settings.isolation, suffix=suffix, kind=kind, pod=Owner("v1", "Pod", name, uid)
    )
    _attested(context, (sent, stored), (policy, await _made(context, Kind.NETWORK_POLICY, policy)))
    return Canary(context, stored)


def _attested(context: Context, *pairs: tuple[Json, Json]) -> None:
    options = context.settings.isolation
    found = [
        {"object": str(sent["kind"]).lower(), **violation.as_json()}
        for sent, stored in pairs
        for violation in attest(sent, stored, allowances=options.allowances, platform=options.platform)
    ]
    if found:
        paths = "; ".join(f"{v['path']} {v['kind']}" + (f" ({v['hint']})" if "hint" in v else "") for v in found[:5])
        raise PodgateError(
            "attestation_failed",
            f"The cluster stored another canary than was sent: {paths}.",
            stage=STAGE,
            violations=found,
        )


async def _removed(context: Context, name: str, *, uid: str | None) -> None:
    """Delete the pod; its policy follows it. Bounded, and finished also while we are being cancelled."""
    deleting = context.cluster.delete(Kind.POD, context.namespace, name, uid=uid, grace_seconds=GRACE_SECONDS)
    if (why := await carried_out(deleting, within=CLEAN_UP_SECONDS)) is not None:
        _log.warning("canary_left", pod=name, why=f"{why}; the reaper takes it")


class Canary:
    """One canary's pod."""

    def __init__(self, context: Context, pod: Json) -> None:
        self._context = context
        self._pod = pod
        self._name = str(pod["metadata"]["name"])
        self._feed = PodFeed(
            context.cluster, context.namespace, self._name, pod["metadata"]["uid"], sleep=context.sleep
        )

    async def running(self, *, by: float) -> tuple[str, ...]:
        """Wait until it runs, until ``by`` of the monotonic clock; return its addresses.

        Raises ``pod_start_failed`` at once for what hardly heals, and what held it up once the time is over.
        """
        try:
            async with asyncio.timeout(max(0.0, by - self._context.monotonic())):
                return await run_beside(self._feed.until(_addresses), self._feed.run(self._pod))
        except TimeoutError:
            raise _not_started(self._feed.view) from None

    async def answer(self) -> Json:
        """Wait for what it found. Raises ``probe_unusable`` when it says nothing within its bound."""
        bound = self._context.settings.bounds.first_proof + ANSWER_MARGIN_SECONDS
        try:
            async with asyncio.timeout(bound):
                while (said := await self._read()) is None:
                    await self._context.sleep(0.5)
        except TimeoutError:
            raise PodgateError("probe_unusable", f"{self._name} gave no answer in {bound:g} s.", stage=STAGE) from None
        return said

    async def _read(self) -> Json | None:
        """Read its log until the answer comes or the stream ends, which a busy API server may do at any time."""
        try:
            async with self._context.cluster.log(
                self._context.namespace, self._name, names.CANARY, follow=True
            ) as pieces:
                kept = b""
                async for piece in pieces:
                    *lines, kept = (kept + piece)[-LINE_LIMIT:].split(b"\n")
                    for line in lines:
                        if (said := final_line(line)) is not None:
                            return said
        except NotFound as error:
            raise PodgateError(
                "probe_unusable", f"{self._name} was deleted before it answered.", stage=STAGE
            ) from error
        except Refused as error:  # its container does not run yet
            _log.debug("canary_log_refused", pod=self._name, error=str(error))
        except ClusterError as error:
            if not error.transient:
                raise
        return None


def _not_started(pod: PodView | None) -> PodgateError:
    wait = waiting(pod) if pod is not None else None
    if wait is not None:
        return PodgateError(wait.code, f"The canary did not start: {wait.message}", stage=STAGE)
    return PodgateError("pod_start_timeout", "The canary did not start within the preflight's bound.", stage=STAGE)


def _addresses(pod: PodView | None) -> tuple[str, ...] | None:
    if pod is None:
        raise PodgateError("pod_start_failed", "The canary's pod is gone.", stage=STAGE)
    container = pod.container(names.CANARY)
    if container is not None and container.terminated is not None:
        raise PodgateError("pod_start_failed", f"The canary ended with {container.terminated.exit_code}.", stage=STAGE)
    wait = waiting(pod)
    if wait is not None and wait.code == "pod_start_failed":
        raise PodgateError("pod_start_failed", wait.message, stage=STAGE)
    return pod.ips if pod.ips and container is not None and container.running is not None else None
