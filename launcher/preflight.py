"""The controlled experiment before any launch, made once for all replicas: its result is shared in one ConfigMap.

An unpoliced canary must reach both ports of the witness, a policed one only the control port. A success holds for ten
minutes, a failure for fifteen seconds: a cluster may be mended, or broken, at any time, and every launch is proven
anyway.
"""

import asyncio
import hashlib
import json
from datetime import datetime, timedelta

import structlog

from isolation import labels, names
from isolation.digest import canonical_json, sha256_hex
from isolation.inpod import source
from launcher.canaries import STAGE, canary
from launcher.cluster.errors import AlreadyExists, ClusterError, Conflict, NotFound, Refused
from launcher.cluster.port import Json, Kind
from launcher.context import Context
from launcher.decide.preflight import Finding, PreflightReport, judge_open, judge_policed
from launcher.errors import PodgateError
from launcher.translate import from_cluster
from launcher.witness import read_witness
from records.model import format_time

__all__ = ["Preflight", "PreflightReport"]

_log = structlog.get_logger()

OLDEST = (1, 29)
"""The first Kubernetes whose native sidecars are on by default."""

KEY = "preflight.json"
LOOK_SECONDS = 0.5
"""Between two looks at an experiment that another replica makes."""

HASH_LENGTH = 16
SPREAD_SECONDS = 5.0
"""How much longer than the experiment's bound its maker is waited for: clean-up and one write."""


class Preflight:
    """The preflight of one replica."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._bounds = context.settings.bounds
        self._name = names.preflight_name(_settings_hash(context))

    async def ensure(self) -> PreflightReport:
        """Return a success that still holds, or make the experiment. Raises PodgateError with its code."""
        report = await self.run_report(force=False)
        if not report.ok:
            raise PodgateError(
                report.code or "probe_unusable",
                report.message or "The preflight failed.",
                stage=STAGE,
                violations=report.violations,
            )
        return report

    async def run_report(self, *, force: bool) -> PreflightReport:
        """Return the shared result, or make it; a failure is in the report. ``force``: only a new one counts.

        Raises ClusterError when the shared result cannot be read or written.
        """
        asked = self._context.cluster.now()
        deadline = self._context.monotonic() + 2 * (self._bounds.preflight + SPREAD_SECONDS)
        while self._context.monotonic() < deadline:
            stored = await self._context.cluster.get(Kind.CONFIG_MAP, self._context.namespace, self._name)
            state = _state(stored)
            if (report := self._valid(state, since=asked if force else None)) is not None:
                return report
            if self._under_way(state):
                await self._context.sleep(LOOK_SECONDS)
            elif (held := await self._take(stored)) is not None:
                return await self._make(held)
        return PreflightReport(
            ok=False, code="probe_unusable", message="Other replicas' preflights did not end in time."
        )

    def _valid(self, state: Json, *, since: datetime | None) -> PreflightReport | None:
        try:
            report = PreflightReport.of(state["report"])
            at = datetime.fromisoformat(report.at)
        except (KeyError, TypeError, ValueError):
            return None
        kept = self._bounds.preflight_success_kept if report.ok else self._bounds.preflight_failure_kept
        fresh = self._context.cluster.now() < at + timedelta(seconds=kept)
        return report if fresh and (since is None or at >= since) else None

    def _under_way(self, state: Json) -> bool:
        try:
            return self._context.cluster.now() < datetime.fromisoformat(state["expiresAt"])
        except (KeyError, TypeError, ValueError):
            return False

    async def _take(self, stored: Json | None) -> Json | None:
        """Take the experiment on us; None when another replica was quicker."""
        until = self._context.cluster.now() + timedelta(seconds=self._bounds.preflight + SPREAD_SECONDS)
        return await self._write(stored, {"holder": self._context.holder, "expiresAt": format_time(until)})

    async def _make(self, held: Json) -> PreflightReport:
        try:
            report = await self._experiment()
        except BaseException:  # cancelled, or a bug: nobody should wait for us
            await asyncio.shield(self._write(held, {}))
            raise
        await self._write(held, {"report": report.as_json()})
        return report

    async def _write(self, stored: Json | None, state: Json) -> Json | None:
        body = {
            "apiVersion": "v1",
            "data": {KEY: canonical_json(state).decode()},
            "kind": "ConfigMap",
            "metadata": {
                "labels": labels.managed("preflight"),
                "name": self._name,
                "namespace": self._context.namespace,
            },
        }
        try:
            if stored is None:
                return await self._context.cluster.create(Kind.CONFIG_MAP, self._context.namespace, body)
            body["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]  # type: ignore[index]
            return await self._context.cluster.replace(Kind.CONFIG_MAP, self._context.namespace, self._name, body)
        except (AlreadyExists, Conflict, NotFound):
            return None

    async def _experiment(self) -> PreflightReport:
        try:
            async with asyncio.timeout(self._bounds.preflight):
                report = await self._canaries()
        except TimeoutError:
            report = PreflightReport(
                ok=False,
                code="pod_start_timeout",
                message=f"The canaries took longer than {self._bounds.preflight:g} s.",
            )
        except PodgateError as error:
            report = _of_error(error)
        except ClusterError as error:
            if not isinstance(error, Refused):
                raise
            report = _of_error(from_cluster(error, STAGE))
        done = _dated(report, self._context.cluster.now())
        _log.info("preflight", ok=done.ok, code=done.code)
        return done

    async def _canaries(self) -> PreflightReport:
        context = self._context
        version = await context.cluster.server_version()
        if version < OLDEST:
            raise PodgateError(
                "cluster_too_old", f"The API server is {version[0]}.{version[1]}; 1.29 is needed.", stage=STAGE
            )
        witness_ips = await read_witness(context.cluster, context.namespace, context.settings.isolation, stage=STAGE)
        async with canary(context, "open", witness_ips) as unpoliced:
            addresses = await unpoliced.running()
            before = judge_open(await unpoliced.answer())
            if not before.ok:
                return before
            async with canary(context, "policed", witness_ips, latency_targets=addresses) as policed:
                await policed.running()
                return judge_policed(
                    await policed.answer(), before=before, node_exposure=context.settings.node_exposure
                )


def _state(stored: Json | None) -> Json:
    try:
        state = json.loads((stored or {})["data"][KEY])
    except (KeyError, TypeError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _settings_hash(context: Context) -> str:
    """What a result depends on: all that shapes objects, the exposure rule, the proof's bound, and the programs."""
    settings = context.settings
    body = {
        "isolation": settings.isolation.model_dump(mode="json"),
        "nodeExposure": settings.node_exposure,
        "firstProof": settings.bounds.first_proof,
        "programs": [hashlib.sha256(source(program).encode()).hexdigest() for program in ("canary", "witness")],
    }
    return sha256_hex(canonical_json(body))[:HASH_LENGTH]


def _of_error(error: PodgateError) -> PreflightReport:
    finding = Finding("canary", ok=False, detail=error.message)
    return PreflightReport(
        ok=False, code=error.code, message=error.message, findings=(finding,), violations=error.violations
    )


def _dated(report: PreflightReport, at: datetime) -> PreflightReport:
    return PreflightReport.of({**report.as_json(), "at": format_time(at)})
