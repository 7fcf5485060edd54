"""Exec over a websocket: both directions as bytes, bounded, with an honest end.

The API server multiplexes the streams of a process over one websocket, the first byte of each message naming the
channel. What it says about the end (channel 3) explains failures and proves nothing; the programs that we run tell
their verdict in-band.

Memory is bounded both ways: aiohttp stops reading from the socket when a few dozen KiB wait here unread, and sending
waits while the socket is full. There is no heartbeat: a process that does not read for a while is not dead, but pings
queue up behind its data.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp

from launcher.cluster.errors import ClusterError, ExecFailed, Refused, Throttled
from launcher.cluster.errors import NotFound as PodNotFound
from launcher.cluster.port import ExecStatus
from launcher.cluster.translate import MESSAGE_LIMIT, error_for_status
from launcher.cluster.transport import Transport, harmless

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

LARGEST_FRAME = 128 << 10
"""Bytes a call of ``send``: as fast as any larger frame, and far below the 32 MiB at which servers hang up."""

STDERR_KEPT = 4 << 10

CLOSING_SECONDS = 5.0
"""How long the end may follow its status. The server closes at once; one that does not must not hold us."""

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255

_NEVER_STARTED = (
    "container not found",
    "unable to upgrade connection",
    "failed to start exec",
    "unable to start container process",
    "executable file not found",
    "no such file or directory",
)
"""What servers and runtimes say when no process came to be. Anything else may have begun."""


@asynccontextmanager
async def open_exec(
    transport: Transport, operation: str, path: str, container: str, argv: Sequence[str]
) -> AsyncIterator["WebsocketExec"]:
    """Run argv in a container; leaving the context cuts the connection.

    Cutting and not closing: after a clean close the server drains a process that goes on writing, for minutes.
    """
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", argument) for argument in argv]
    stream = WebsocketExec(operation, await _opened(transport, operation, path, query))
    try:
        yield stream
    finally:
        stream.abort()


async def _opened(
    transport: Transport, operation: str, path: str, query: list[tuple[str, str]]
) -> aiohttp.ClientWebSocketResponse:
    websocket = await _attempt(transport, operation, path, query)
    if isinstance(websocket, ClusterError) and websocket.status == HTTPStatus.UNAUTHORIZED:
        await transport.access.renew()
        websocket = await _attempt(transport, operation, path, query)
    if isinstance(websocket, ClusterError):
        raise websocket
    return websocket


async def _attempt(
    transport: Transport, operation: str, path: str, query: list[tuple[str, str]]
) -> "aiohttp.ClientWebSocketResponse | ClusterError":
    """Open the websocket, or return why not.

    The reason is returned and not raised, so that the client's own error, which holds the request's headers, is
    neither its cause nor its context.
    """
    try:
        async with asyncio.timeout(transport.limits.exec_open):
            return await transport.websocket(path, query, PROTOCOLS)
    except aiohttp.WSServerHandshakeError as error:
        return _handshake_refused(operation, error)
    except (aiohttp.ClientError, OSError) as error:
        failed = ExecFailed(operation, reason=type(error).__name__, started=False)
        failed.__cause__ = harmless(error)
        return failed


def _handshake_refused(operation: str, error: aiohttp.WSServerHandshakeError) -> ClusterError:
    # The body of a refused handshake is not to be had; the status says enough.
    said = {"kind": "Status", "reason": "NotFound"} if error.status == HTTPStatus.NOT_FOUND else None
    refused = error_for_status(operation, error.status, said, error.headers or {})
    if not isinstance(refused, PodNotFound | Refused | Throttled):
        refused = ExecFailed(operation, status=error.status, reason="HandshakeRefused", started=False)
    refused.__cause__ = harmless(error)
    return refused


class WebsocketExec:
    """One exec. Implements ``ExecStream``."""

    def __init__(self, operation: str, websocket: aiohttp.ClientWebSocketResponse) -> None:
        self._operation = operation
        self._websocket = websocket
        self._half_closes = websocket.protocol == PROTOCOLS[0]
        self._stdin_open = True
        self._stderr = bytearray()
        self._status: ExecStatus | None = None
        self._failure: ExecFailed | None = None
        self._heard = False

    @property
    def stderr(self) -> bytes:
        """The last 4 KiB of the process's stderr, as far as ``receive`` has come across it."""
        return bytes(self._stderr)

    @property
    def status(self) -> ExecStatus | None:
        """What the server said about the end, as far as ``receive`` has come across it."""
        return self._status

    async def send(self, data: bytes) -> None:
        """Write to the process's stdin; waits while the socket is full."""
        if len(data) > LARGEST_FRAME:
            raise ValueError(f"at most {LARGEST_FRAME} bytes a call")
        if data:
            await self._write(b"\x00" + data)

    async def close_stdin(self) -> None:
        """Half-close stdin where the server can; otherwise nothing."""
        if self._half_closes and self._stdin_open:
            self._stdin_open = False
            await self._write(bytes((_CLOSE, _STDIN)))

    async def receive(self) -> bytes | None:
        """Return the next piece of stdout; None at the end."""
        while True:
            message = await self._message()
            if message is None:
                break
            if (data := self._took(message)) is not None:
                return data
        if self._failure is not None:
            raise self._failure
        return None

    def abort(self) -> None:
        """Cut the connection at once; what is still queued is dropped."""
        # The client has no public way to cut a websocket without a closing handshake.
        response = self._websocket._response  # noqa: SLF001 - see above
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()
        response.close()

    async def _write(self, frame: bytes) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            await self._websocket.send_bytes(frame)
        except (aiohttp.ClientError, OSError) as error:
            raise ExecFailed(self._operation, reason=type(error).__name__, started=True) from harmless(error)

    async def _message(self) -> bytes | None:
        """Return the next message, or None when there will be no more.

        That is: closed, cut, or idle for a while after the status had come.
        """
        try:
            async with asyncio.timeout(None if self._status is None else CLOSING_SECONDS):
                message = await self._websocket.receive()
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None
        if message.type is aiohttp.WSMsgType.TEXT:
            return str(message.data).encode()
        return message.data if message.type is aiohttp.WSMsgType.BINARY else None

    def _took(self, message: bytes) -> bytes | None:
        """Sort one message by its channel; returns what is stdout."""
        channel, data = message[:1], message[1:]
        if not data:
            return None
        if channel == bytes((_STATUS,)):
            self._end(data)
            return None
        self._heard = True
        if channel == bytes((_STDERR,)):
            self._stderr += data
            del self._stderr[:-STDERR_KEPT]
            return None
        return data if channel == bytes((_STDOUT,)) else None

    def _end(self, said: bytes) -> None:
        status, code = parse_status(said)
        self._status = status
        if not status.success and status.exit_code is None:
            text = status.message or ""
            started = self._heard or not any(phrase in text for phrase in _NEVER_STARTED)
            self._failure = ExecFailed(self._operation, status=code, reason=status.reason, started=started)


def parse_status(said: bytes) -> tuple[ExecStatus, int | None]:
    """Read what came on channel 3: the status, and the HTTP code it names."""
    try:
        body: Any = json.loads(said)
    except ValueError:
        body = None
    if not isinstance(body, Mapping):
        return ExecStatus(success=False, reason="MalformedStatus"), None
    if body.get("status") == "Success":
        return ExecStatus(success=True, exit_code=0), None
    code = body.get("code")
    message = body.get("message")
    status = ExecStatus(
        success=False,
        exit_code=_exit_code(body.get("details")),
        reason=body.get("reason"),
        message=message[:MESSAGE_LIMIT] if isinstance(message, str) else None,
    )
    return status, code if isinstance(code, int) else None


def _exit_code(details: object) -> int | None:
    causes = details.get("causes") if isinstance(details, Mapping) else None
    for cause in causes or ():
        if isinstance(cause, Mapping) and cause.get("reason") == "ExitCode" and str(cause.get("message")).isdigit():
            return int(str(cause["message"]))
    return None
