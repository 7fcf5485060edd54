"""Following the prover through one exec in the gate, whose stdin also carries the marker."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import structlog

from isolation.digest import canonical_json
from isolation.names import GATE
from isolation.objects.programs import FollowConfig, argv
from launcher.cluster.errors import ClusterError
from launcher.cluster.port import ExecStream
from launcher.context import Context
from launcher.decide.proof import ProofVerdict, ProverState, Refuse, Stands, judge
from launcher.errors import PodgateError

_log = structlog.get_logger()

REFOLLOW_SECONDS = 0.5
"""Pause before a broken exec is opened again. Each refused try costs the API server a connection to the kubelet."""

SILENCE_SECONDS = 5.0
"""Without a line for so long, what was heard last is no word on how the prover fares now: it speaks every second."""

LINE_LIMIT = 64 * 1024
"""Bytes of one state line; the prover's are below 4 KiB."""


class Follower:
    """Knows the prover's newest state while :meth:`run` runs, and carries the marker.

    ``gate_alive`` says whether opening another exec makes sense; a gate that has ended answers by its exit code.
    """

    def __init__(self, context: Context, pod: str, *, gate_alive: Callable[[], bool]) -> None:
        self._context = context
        self._pod = pod
        self._gate_alive = gate_alive
        self._changed = asyncio.Condition()
        self._stream: ExecStream | None = None
        self._heard_at = float("-inf")
        self._marked = False
        self.state: ProverState | None = None
        self.first_stood: ProverState | None = None
        """The first state of this launch in which the proof stood."""

    async def run(self) -> None:
        """Follow until the gate has ended. Raises PodgateError as soon as a proof that stood has fallen."""
        while self._gate_alive():
            try:
                await self._follow()
            except ClusterError as error:
                _log.debug("follow_broken", pod=self._pod, error=str(error))
            await self._notify(stream=None)
            await self._context.sleep(REFOLLOW_SECONDS)

    async def standing(self, *, within: float) -> ProverState:
        """Wait until the proof stands, at most ``within`` seconds; else the last round's own code is raised.

        The bound is the prover's, not the API server's: while nothing is heard of the prover, its verdict is waited
        for, as long as the caller's own bound allows.
        """
        try:
            async with asyncio.timeout(within):
                return await self._stands()
        except TimeoutError:
            async with self._changed:
                await self._changed.wait_for(self._heard_lately)
            verdict = self._verdict(bound_over=True)
            if isinstance(verdict, Stands):
                return verdict.state
            raise _refused(verdict) from None

    async def _stands(self) -> ProverState:
        async with self._changed:
            while True:
                verdict = self._verdict(bound_over=False)
                if isinstance(verdict, Stands):
                    return verdict.state
                await self._changed.wait()

    async def mark(self, marker: dict[str, Any]) -> None:
        """Send the marker whenever a stream is open, until cancelled: sending it twice is harmless.

        From the first sending on, the gate's exit code is the word that counts; a fall of the proof is its to judge.
        """
        line = canonical_json(marker) + b"\n"
        sent_to: ExecStream | None = None
        while True:
            async with self._changed:
                while self._stream is None or self._stream is sent_to:
                    await self._changed.wait()
                sent_to = self._stream
            self._marked = True
            try:
                await sent_to.send(line)
            except ClusterError as error:
                _log.debug("marker_not_sent", pod=self._pod, error=str(error))

    async def _follow(self) -> None:
        command = argv("follow", FollowConfig(health_port=self._context.settings.isolation.health_port))
        async with self._context.cluster.exec(self._context.namespace, self._pod, GATE, command) as stream:
            await self._notify(stream=stream)
            kept = b""
            while (piece := await stream.receive()) is not None:
                *lines, kept = (kept + piece).split(b"\n")
                for line in lines:
                    await self._take(line)
                if len(kept) > LINE_LIMIT:
                    raise PodgateError(
                        "probe_unusable", "The prover's state is longer than any of ours.", stage="proof"
                    )

    async def _take(self, line: bytes) -> None:
        state = _parsed(line)
        async with self._changed:
            self._heard_at = self._context.monotonic()
            if state is not None:
                self.state = state
                if self.first_stood is None and state.standing:
                    self.first_stood = state
            self._changed.notify_all()
        verdict = self._verdict(bound_over=False)
        if isinstance(verdict, Refuse) and not self._marked:
            raise _refused(verdict)

    def _verdict(self, *, bound_over: bool) -> ProofVerdict:
        return judge(self.first_stood, self.state, bound_over=bound_over)

    def _heard_lately(self) -> bool:
        return self._context.monotonic() - self._heard_at < SILENCE_SECONDS

    async def _notify(self, *, stream: ExecStream | None) -> None:
        async with self._changed:
            self._stream = stream
            self._changed.notify_all()


def _parsed(line: bytes) -> ProverState | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return ProverState.of(said) if isinstance(said, dict) else None


def _refused(verdict: ProofVerdict) -> PodgateError:
    if not isinstance(verdict, Refuse):
        raise TypeError("only a refusal is an error")
    return PodgateError(verdict.code, verdict.message, stage="proof")
