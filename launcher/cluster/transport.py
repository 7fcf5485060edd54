"""Requests over the official client's configuration and REST client: authentication, deadlines, the clock, our errors.

Two REST clients: one for requests that end soon, and one without a limit of connections for what stays open (watches,
logs, execs), so that many followed runs never keep an ordinary request waiting.
"""

import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from yarl import URL

from launcher.cluster.errors import ClusterError, Unreachable
from launcher.cluster.serverclock import ServerClock
from launcher.cluster.translate import error_for

USER_AGENT = "podgate"

LARGEST_ANSWER = 64 << 20
"""Bytes. A page of 500 objects of 100 KiB each fits; anything larger is not ours."""

LARGEST_ERROR = 256 << 10
"""Bytes read of an answer that is an error; a Status object has a few hundred, unless admission echoes an object."""


@dataclass(frozen=True)
class Limits:
    """How long a request may take, in seconds."""

    connect: float = 10.0
    """TCP and TLS. A server that does not take a connection within this is as good as away."""
    total: float = 30.0
    """A whole ordinary request; the API server itself gives up on most after 60, and ours are small."""
    watch: float = 60.0
    """Asked of the server as ``timeoutSeconds``: it ends the watch then, so that a dead connection cannot look like a
    quiet object."""
    watch_slack: float = 10.0
    """Silence beyond ``watch`` after which the connection counts as dead."""
    log_idle: float = 120.0
    """Silence in a followed log after which its connection counts as dead; the follower then resumes."""
    exec_open: float = 30.0
    """Until an exec's websocket is up; eight at once take 0.4 s on two cores, a loaded API server takes seconds."""


async def nothing() -> None:
    """What there is to do for credentials that do not rotate."""


@dataclass(frozen=True)
class Access:
    """Where the API server is and as whom we speak to it.

    ``refresh`` is awaited before every request and puts credentials that rotate into the configuration; ``renew`` is
    awaited after a 401, so that the next refresh reads them anew. ``headers`` carries impersonation.
    """

    configuration: Configuration
    refresh: Callable[[], Awaitable[None]] = nothing
    renew: Callable[[], Awaitable[None]] = nothing
    headers: Mapping[str, str] = field(default_factory=dict)


class _Rest(RESTClientObject):
    """The official REST client with TCP keep-alive, so that the kernel finds out about peers that vanished."""

    def __init__(self, configuration: Configuration, *, connections: int) -> None:
        super().__init__(configuration)
        self._connections = connections

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=self._connections, ssl=self.ssl_context, socket_factory=_keepalive_socket)

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        # The official session buffers 4 MiB a stream for the sake of long lines; our reader takes lines of any length.
        return aiohttp.ClientSession(
            connector=self._create_connector(), trust_env=True, cookie_jar=aiohttp.DummyCookieJar()
        )

    def session(self) -> aiohttp.ClientSession:
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        return self.pool_manager


@dataclass(frozen=True)
class _Request:
    operation: str
    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    timeout: aiohttp.ClientTimeout


class Transport:
    """Sends requests, raises our errors, and keeps the server's clock."""

    def __init__(
        self, access: Access, *, limits: Limits | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.access = access
        self.limits = limits or Limits()
        self._monotonic = monotonic
        self.clock = ServerClock(monotonic)
        self._certificate = access.configuration.cert_file
        self._short = _Rest(access.configuration, connections=64)
        self._long = _Rest(access.configuration, connections=0)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._short.close()
        await self._long.close()

    async def headers(self) -> dict[str, str]:
        """Headers of every request, with the credentials that hold now."""
        await self.access.refresh()
        self._use_certificate()
        found = {"User-Agent": USER_AGENT, "Accept": "application/json", **self.access.headers}
        settings: dict[str, Any] = dict(await self.access.configuration.auth_settings())
        for setting in settings.values():
            found[setting["key"]] = setting["value"]
        return found

    def _use_certificate(self) -> None:
        """Show a client certificate that has changed on connections made from now on."""
        configuration = self.access.configuration
        if configuration.cert_file != self._certificate and configuration.cert_file:
            for rest in (self._short, self._long):
                rest.ssl_context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
        self._certificate = configuration.cert_file

    async def json(
        self, operation: str, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Any:
        """Send an ordinary request and return the parsed answer."""
        timeout = self._timeout(total=self.limits.total)
        async with self._answer(self._short, _Request(operation, method, path, query or {}, body, timeout)) as response:
            return _parsed(await _whole(response, operation), operation)

    @asynccontextmanager
    async def stream(
        self, operation: str, path: str, *, query: Mapping[str, str], idle: float | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a long answer and yield its pieces as they come.

        Raises Unreachable when it is cut, or silent for ``idle`` seconds.
        """
        timeout = self._timeout(sock_read=idle)
        request = _Request(operation, "GET", path, query, None, timeout)
        async with self._answer(self._long, request) as response, aclosing(_pieces(response, operation)) as pieces:
            yield pieces

    def _timeout(self, *, total: float | None = None, sock_read: float | None = None) -> aiohttp.ClientTimeout:
        connect = self.limits.connect
        return aiohttp.ClientTimeout(total=total, connect=connect, sock_connect=connect, sock_read=sock_read)

    @asynccontextmanager
    async def _answer(self, rest: _Rest, request: _Request) -> AsyncIterator[aiohttp.ClientResponse]:
        response = await self._send(rest, request)
        try:
            if response.status == HTTPStatus.UNAUTHORIZED:
                # The token may have been rotated between our reading it and the server's looking at it.
                response.close()
                await self.access.renew()
                response = await self._send(rest, request)
            if response.status >= HTTPStatus.MULTIPLE_CHOICES:
                raise await _refusal(request.operation, response)
            yield response
        finally:
            # An answer read to its end is back in the pool by now; any other connection must not be used again.
            response.close()

    async def _send(self, rest: _Rest, request: _Request) -> aiohttp.ClientResponse:
        headers = await self.headers()
        rest.session()
        sent = self._monotonic()
        with failures(request.operation):
            answer = await rest.request(  # type: ignore[no-untyped-call]  # inherited: the exclusion misses it
                request.method,
                str(self.url(request.path, request.query)),
                headers=headers,
                body=request.body,
                _request_timeout=request.timeout,
            )
        response: aiohttp.ClientResponse = answer.response
        self.clock.observe(response.headers.get("Date"), sent=sent, received=self._monotonic())
        return response

    def url(self, path: str, query: Mapping[str, str] | list[tuple[str, str]]) -> URL:
        """Return the whole address of a path whose parts are quoted already."""
        text = f"{self.access.configuration.host}{path}"
        return URL(f"{text}?{urlencode(query, quote_via=quote)}" if query else text, encoded=True)

    async def websocket(
        self, path: str, query: list[tuple[str, str]], protocols: tuple[str, ...]
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a websocket.

        Raises aiohttp's own errors: whoever catches them must not let them out, for they carry the token.
        """
        configuration = self.access.configuration
        wanted: dict[str, Any] = {"server_hostname": configuration.tls_server_name, "proxy": configuration.proxy}
        opened: aiohttp.ClientWebSocketResponse = await self._long.session().ws_connect(
            self.url(path, query),
            headers=await self.headers(),
            protocols=protocols,
            max_msg_size=0,
            **{name: value for name, value in wanted.items() if value},
        )
        return opened


async def _refusal(operation: str, response: aiohttp.ClientResponse) -> ClusterError:
    with failures(operation):
        body = await response.content.read(LARGEST_ERROR)
    return error_for(operation, response.status, body, response.headers)


async def _whole(response: aiohttp.ClientResponse, operation: str) -> bytes:
    body = bytearray()
    with failures(operation):
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > LARGEST_ANSWER:
                raise Unreachable(operation, status=response.status, reason="AnswerTooLarge")
    return bytes(body)


def _parsed(body: bytes, operation: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise Unreachable(operation, reason="NotJson") from error


async def _pieces(response: aiohttp.ClientResponse, operation: str) -> AsyncGenerator[bytes, None]:
    while True:
        with failures(operation):
            piece = await response.content.readany()
        if not piece:
            return
        yield piece


@contextmanager
def failures(operation: str) -> Iterator[None]:
    """Turn what the HTTP client raises into Unreachable. Only the client's own calls may stand inside."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise Unreachable(operation, reason=type(error).__name__, sent=False) from error
    except (aiohttp.ClientError, OSError, EOFError) as error:
        raise Unreachable(operation, reason=type(error).__name__) from harmless(error)


def harmless(error: BaseException) -> BaseException:
    """Return the error, or a stand-in for one whose ``repr`` holds the request's headers, and so the token."""
    if isinstance(error, aiohttp.ClientResponseError):
        return RuntimeError(f"{type(error).__name__}: HTTP status {error.status}")
    return error


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket whose dead peer the kernel notices after 15 + 3 x 5 seconds without any answer."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
