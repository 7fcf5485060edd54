"""The controlled experiment before any launch, made once for all replicas: its result is shared in one ConfigMap.

An unpoliced canary must reach both ports of the witness, a policed one only the control port. A success holds for ten
minutes, a failure for fifteen seconds: a cluster may be mended, or broken, at any time, and every launch is proven
anyway.
"""

import asyncio
import hashlib

import structlog

from isolation import names
from isolation.digest import canonical_json, sha256_hex
from isolation.inpod import source
from launcher.canaries import STAGE, canary
from launcher.cluster.errors import Refused
from launcher.context import Context
from launcher.decide.preflight import Finding, PreflightReport, judge_open, judge_policed
from launcher.errors import PodgateError
from launcher.preflight_shared import SPREAD_SECONDS, Shared, SharedResult
from launcher.translate import from_cluster
from launcher.witness import read_witness
from records.model import format_time

__all__ = ["Preflight", "PreflightReport"]

_log = structlog.get_logger()

OLDEST = (1, 29)
"""The first Kubernetes whose native sidecars are on by default."""

LOOK_SECONDS = 0.5
"""Between two looks at an experiment that another replica makes."""

HASH_LENGTH = 16

START_MARGIN_SECONDS = 1.0
"""A canary that does not start is given up so long before the bound, with its own reason instead of the bound's."""


class Preflight:
    """The preflight of one replica."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bounds = context.settings.bounds
        self._shared = SharedResult(context, names.preflight_name(_settings_hash(context)))

    async def ensure(self, *, force: bool = False) -> PreflightReport:
        """Return a success that still holds (one request), or make the experiment.

        Raises PodgateError with the result's code and ``stage="preflight"``, and ClusterError as :meth:`run_report`.
        """
        report = await self.run_report(force=force)
        if not report.ok:
            raise PodgateError(
                report.code or "probe_unusable",
                report.message or "The preflight failed.",
                stage=STAGE,
                violations=report.violations,
            )
        return report

    async def run_report(self, *, force: bool) -> PreflightReport:
        """Return the shared result, or make it; a failure is in the report.

        ``force``: only a result counts that ended after this call began. Bounded by twice ``bounds.preflight`` and a
        few seconds. Raises ClusterError when the shared result cannot be read, or the API server goes away.
        """
        asked = self._context.cluster.now() if force else None
        deadline = self._context.monotonic() + 2 * (self._bounds.preflight + SPREAD_SECONDS)
        while self._context.monotonic() < deadline:
            shared = await self._shared.read()
            if (report := self._shared.report(shared, since=asked)) is not None:
                return report
            if not self._shared.under_way(shared) and (held := await self._shared.take(shared)) is not None:
                return await self._make(held)
            await self._context.sleep(LOOK_SECONDS)
        return PreflightReport(
            ok=False, code="probe_unusable", message="Other replicas' preflights did not end in time."
        )

    async def _make(self, held: Shared) -> PreflightReport:
        try:
            report = await self._experiment()
        except BaseException:  # cancelled, or the API server went away: nobody should wait for us
            await self._shared.give_back(held)
            raise
        await self._shared.publish(held, report)
        return report

    async def _experiment(self) -> PreflightReport:
        try:
            async with asyncio.timeout(self._bounds.preflight):
                report = await self._canaries()
        except TimeoutError:
            report = _of_error(_too_long(self._bounds.preflight))
        except PodgateError as error:
            report = _of_error(error)
        except Refused as error:
            report = _of_error(from_cluster(error, STAGE))
        done = _dated(report, self._context)
        _log.info("preflight", ok=done.ok, code=done.code)
        return done

    async def _canaries(self) -> PreflightReport:
        context = self._context
        started_by = context.monotonic() + self._bounds.preflight - START_MARGIN_SECONDS
        await self._new_enough()
        witness_ips = await read_witness(context.cluster, context.namespace, context.settings.isolation, stage=STAGE)
        async with canary(context, "open", witness_ips) as unpoliced:
            addresses = await unpoliced.running(by=started_by)
            before = judge_open(await unpoliced.answer())
            if not before.ok:
                return before
            async with canary(context, "policed", witness_ips, latency_targets=addresses) as policed:
                await policed.running(by=started_by)
                return judge_policed(
                    await policed.answer(), before=before, node_exposure=context.settings.node_exposure
                )

    async def _new_enough(self) -> None:
        version = await self._context.cluster.server_version()
        if version < OLDEST:
            raise PodgateError(
                "cluster_too_old", f"The API server is {version[0]}.{version[1]}; 1.29 is needed.", stage=STAGE
            )


def _settings_hash(context: Context) -> str:
    """What a result depends on: all that shapes objects, the exposure rule, the bounds, and the programs."""
    settings = context.settings
    body = {
        "isolation": settings.isolation.model_dump(mode="json"),
        "nodeExposure": settings.node_exposure,
        "firstProof": settings.bounds.first_proof,
        "preflight": settings.bounds.preflight,
        "programs": [hashlib.sha256(source(program).encode()).hexdigest() for program in ("canary", "witness")],
    }
    return sha256_hex(canonical_json(body))[:HASH_LENGTH]


def _too_long(bound: float) -> PodgateError:
    return PodgateError("probe_unusable", f"The experiment took longer than {bound:g} s.", stage=STAGE)


def _of_error(error: PodgateError) -> PreflightReport:
    finding = Finding("experiment", ok=False, detail=error.message)
    return PreflightReport(
        ok=False, code=error.code, message=error.message, findings=(finding,), violations=error.violations
    )


def _dated(report: PreflightReport, context: Context) -> PreflightReport:
    return PreflightReport.of({**report.as_json(), "at": format_time(context.cluster.now())})
