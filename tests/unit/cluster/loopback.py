"""An API server of a few lines on this machine's loopback: says what a test tells it to say."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from kubernetes.aio.client import Configuration

from launcher.cluster.kube import KubeCluster
from launcher.cluster.transport import Access, Limits, Transport

SECRET = "Bearer very-secret"
QUICK = Limits(connect=2, total=1, watch=1, watch_slack=0.2, log_idle=0.5, exec_open=1)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Loopback:
    """The server's requests so far, and the adapter that speaks to it."""

    cluster: KubeCluster
    requests: list[web.Request] = field(default_factory=list)
    renewed: list[None] = field(default_factory=list)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Loopback]:
    """Serve every request by ``answer``."""
    seen: list[web.Request] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append(request)
        return await answer(request)

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    configuration = Configuration(host=f"http://{host}:{port}")
    configuration.api_key["BearerToken"] = SECRET
    renewed: list[None] = []

    async def renew() -> None:
        renewed.append(None)

    transport = Transport(Access(configuration, renew=renew), limits=QUICK)
    try:
        yield Loopback(KubeCluster(transport), seen, renewed)
    finally:
        await transport.aclose()
        await runner.cleanup()


def status(code: int, reason: str, **more: object) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, **more}, status=code)


async def streamed(request: web.Request, *pieces: bytes, cut: bool = False, hang: bool = False) -> web.StreamResponse:
    """Answer piece by piece; then end, cut the connection, or say nothing more."""
    response = web.StreamResponse()
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.01)
    if cut and request.transport is not None:
        request.transport.abort()
    if hang:
        await asyncio.sleep(10)
    return response


def event(kind: str, /, **found: object) -> bytes:
    return json.dumps({"type": kind, "object": found}, ensure_ascii=False).encode() + b"\n"
