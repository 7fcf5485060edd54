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
from launcher.cluster.errors import ClusterError, Refused
from launcher.cluster.port import Json, Kind
from launcher.cluster.views import PodView
from launcher.context import Context
from launcher.decide.preflight import final_line
from launcher.decide.waiting import waiting
from launcher.errors import PodgateError
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
    stored = await context.cluster.create(Kind.POD, context.namespace, sent)
    try:
        yield await _policed(context, suffix, kind, sent, stored)
    finally:
        await _removed(context, stored)


async def _policed(context: Context, suffix: str, kind: CanaryKind, sent: Json, stored: Json) -> "Canary":
    name, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
    policy = build_canary_policy(
        context.settings.isolation, suffix=suffix, kind=kind, pod=Owner("v1", "Pod", name, uid)
    )
    stored_policy = await context.cluster.create(Kind.NETWORK_POLICY, context.namespace, policy)
    _attested(context, (sent, stored), (policy, stored_policy))
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


async def _removed(context: Context, pod: Json) -> None:
    """Delete the pod; its policy follows it. Bounded, and finished also while we are being cancelled."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    deleting = asyncio.ensure_future(
        context.cluster.delete(Kind.POD, context.namespace, name, uid=uid, grace_seconds=GRACE_SECONDS)
    )
    done, _ = await asyncio.wait({deleting}, timeout=CLEAN_UP_SECONDS)
    if not done:
        deleting.cancel()
        _log.warning("canary_left", pod=name, why="the deletion took too long; the reaper takes it")
    elif (error := deleting.exception()) is not None:
        _log.warning("canary_left", pod=name, why=str(error))


class Canary:
    """One canary's pod."""

    def __init__(self, context: Context, pod: Json) -> None:
        self._context = context
        self._pod = pod
        self._name = str(pod["metadata"]["name"])
        self._feed = PodFeed(
            context.cluster, context.namespace, self._name, pod["metadata"]["uid"], sleep=context.sleep
        )

    async def running(self) -> tuple[str, ...]:
        """Wait until it runs; return its addresses. Raises ``pod_start_failed`` for what cannot heal."""
        return await run_beside(self._feed.until(_addresses), self._feed.run(self._pod))

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
        except Refused as error:  # its container does not run yet
            _log.debug("canary_log_refused", pod=self._name, error=str(error))
        except ClusterError as error:
            if not error.transient:
                raise
        return None


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
