"""What the adapter asks of a server, and what it makes of odd answers."""

import asyncio
import traceback

import pytest
from aiohttp import web
from loopback import SECRET, event, serving, status, streamed

from launcher.cluster.errors import ClusterError, ExecFailed, Gone, NotFound, Refused, Throttled, Unreachable
from launcher.cluster.kube import path_of
from launcher.cluster.port import Kind

pytestmark = pytest.mark.anyio

POD = {"kind": "Pod", "metadata": {"name": "p"}}


async def test_a_create_asks_for_strictness_and_says_who_we_are() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(await request.json(), status=201)

    async with serving(answer) as it:
        assert await it.cluster.create(Kind.POD, "ns", POD, dry_run=True) == POD
    request = it.requests[0]
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ns/pods")
    assert dict(request.query) == {"fieldValidation": "Strict", "dryRun": "All"}
    assert (request.headers["Authorization"], request.headers["User-Agent"]) == (SECRET, "podgate")


async def test_a_delete_says_grace_and_uid() -> None:
    body = {}

    async def answer(request: web.Request) -> web.Response:
        body.update(await request.json())
        return web.json_response({"kind": "Status", "status": "Success"})

    async with serving(answer) as it:
        assert await it.cluster.delete(Kind.POD, "ns", "p", uid="u", grace_seconds=0)
    assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": "u"}, 0)


@pytest.mark.parametrize(
    ("kind", "namespace", "name", "path"),
    [
        (Kind.NETWORK_POLICY, "ns", "n", "/apis/networking.k8s.io/v1/namespaces/ns/networkpolicies/n"),
        (Kind.NAMESPACE, None, "ns", "/api/v1/namespaces/ns"),
        (Kind.POD, "ns", "a/b", "/api/v1/namespaces/ns/pods/a%2Fb"),
    ],
)
def test_paths(kind: Kind, namespace: str | None, name: str, path: str) -> None:
    assert path_of(kind, namespace, name) == path


def test_an_empty_name_is_never_the_whole_collection() -> None:
    with pytest.raises(ValueError, match="name"):
        path_of(Kind.POD, "ns", "")
    with pytest.raises(ValueError, match="namespace"):
        path_of(Kind.POD, None, "p")


async def test_a_refused_token_is_renewed_once() -> None:
    async def answer(_: web.Request) -> web.Response:
        return status(401, "Unauthorized")

    async with serving(answer) as it:
        with pytest.raises(Refused):
            await it.cluster.get(Kind.POD, "ns", "p")
    assert (len(it.requests), len(it.renewed)) == (2, 1)


async def test_a_server_that_does_not_answer_is_unreachable_within_the_bound() -> None:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.json_response({})

    async with serving(answer) as it, asyncio.timeout(5):
        with pytest.raises(Unreachable) as error:
            await it.cluster.get(Kind.POD, "ns", "p")
    assert error.value.sent


async def test_a_server_that_is_not_there_got_nothing() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({})

    async with serving(answer) as it:
        await it.cluster.get(Kind.POD, "ns", "p")
        it.cluster._transport.access.configuration.host = "http://127.0.0.1:9"
        with pytest.raises(Unreachable) as error:
            await it.cluster.get(Kind.POD, "ns", "p")
    assert not error.value.sent


@pytest.mark.parametrize("body", [b"<html>", b"[]", b""])
async def test_an_answer_that_is_no_object_is_no_success(body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body)

    async with serving(answer) as it:
        with pytest.raises(Unreachable):
            await it.cluster.get(Kind.POD, "ns", "p")


async def test_a_throttled_request_says_for_how_long() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "4"})

    async with serving(answer) as it:
        with pytest.raises(Throttled) as error:
            await it.cluster.get(Kind.POD, "ns", "p")
    assert error.value.retry_after == 4


async def test_a_list_goes_through_all_pages() -> None:
    async def answer(request: web.Request) -> web.Response:
        last = "continue" in request.query
        items = [{"metadata": {"name": "b" if last else "a"}}]
        return web.json_response({"items": items, "metadata": {} if last else {"continue": "more"}})

    async with serving(answer) as it:
        found = await it.cluster.list(Kind.POD, "ns", labels={"b": "2", "a": "1"})
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [("Pod", "a"), ("Pod", "b")]
    assert it.requests[0].query["labelSelector"] == "a=1,b=2"


async def test_a_list_whose_continuation_expired_begins_anew() -> None:
    async def answer(request: web.Request) -> web.Response:
        if "continue" in request.query:
            return status(410, "Expired")
        return web.json_response({"items": [], "metadata": {"continue": "more"} if len(it.requests) < 3 else {}})

    async with serving(answer) as it:
        assert await it.cluster.list(Kind.POD, "ns") == []
    assert len(it.requests) == 3


async def test_events_come_whole_out_of_any_pieces() -> None:
    body = event("ADDED", metadata={"name": "ä😀" * 50}) + event("DELETED", metadata={})

    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, *[body[at : at + 7] for at in range(0, len(body), 7)])

    async with serving(answer) as it, it.cluster.watch(Kind.POD, "ns", "p") as events:
        found = [one async for one in events]
    assert [one.type for one in found] == ["ADDED", "DELETED"]
    assert found[0].object["metadata"]["name"] == "ä😀" * 50
    assert it.requests[0].query["fieldSelector"] == "metadata.name=p"


async def test_gone_inside_a_watch_is_gone() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, event("ERROR", kind="Status", code=410, reason="Expired"))

    async with serving(answer) as it, it.cluster.watch(Kind.POD, "ns", "p", resource_version="1") as events:
        with pytest.raises(Gone):
            await anext(events)


async def test_a_watch_that_is_cut_says_so() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, event("ADDED", metadata={}), cut=True)

    async with serving(answer) as it, it.cluster.watch(Kind.POD, "ns", "p") as events:
        with pytest.raises(Unreachable):
            _ = [one async for one in events]


async def test_a_watch_on_a_dead_connection_does_not_wait_for_ever() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, event("ADDED", metadata={}), hang=True)

    async with serving(answer) as it, asyncio.timeout(5), it.cluster.watch(Kind.POD, "ns", "p") as events:
        with pytest.raises(Unreachable):
            _ = [one async for one in events]


@pytest.mark.parametrize(
    "line", [b"{\n", b"[]\n", b'{"type": "NEW", "object": {}}\n', b'{"type": "ERROR", "object": 1}\n']
)
async def test_a_malformed_event_ends_the_watch(line: bytes) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, line)

    async with serving(answer) as it, it.cluster.watch(Kind.POD, "ns", "p") as events:
        with pytest.raises(Unreachable):
            await anext(events)


async def test_a_silent_followed_log_is_unreachable_after_its_idle_time() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await streamed(request, b"one\n", hang=True)

    async with serving(answer) as it, asyncio.timeout(5), it.cluster.log("ns", "p", "c", follow=True) as pieces:
        assert await anext(pieces) == b"one\n"
        with pytest.raises(Unreachable):
            await anext(pieces)


@pytest.mark.parametrize(("code", "kind"), [(404, NotFound), (403, Refused), (429, Throttled), (500, ExecFailed)])
async def test_a_refused_exec_says_why_and_never_the_token(code: int, kind: type[ClusterError]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return status(code, "Some")

    async with serving(answer) as it:
        with pytest.raises(kind) as error:
            async with it.cluster.exec("ns", "p", "c", ["python3", "-c", "program"]):
                pass
    chain = [error.value, error.value.__cause__, error.value.__context__]
    assert not any("very-secret" in repr(one) or "program" in repr(one) for one in chain)
    assert "very-secret" not in "".join(traceback.format_exception(error.value))


async def test_an_exec_sends_each_word_of_its_command_and_offers_both_protocols() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        await socket.send_bytes(b"\x01")
        await socket.send_bytes(b"\x01out")
        await socket.send_bytes(b"\x02" + b"e" * 5000)
        await socket.send_bytes(b'\x03{"status":"Success"}')
        await socket.close()
        return socket

    async with serving(answer) as it, it.cluster.exec("ns", "p", "c", ["a b", "ä&c=d", "+"]) as stream:
        assert [await stream.receive(), await stream.receive()] == [b"out", None]
        assert len(stream.stderr) == 4096
    assert it.requests[0].query.getall("command") == ["a b", "ä&c=d", "+"]
    assert it.requests[0].headers["Sec-WebSocket-Protocol"].replace(" ", "") == "v5.channel.k8s.io,v4.channel.k8s.io"


async def test_half_closing_is_left_out_where_the_server_cannot() -> None:
    received = []

    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        async for message in socket:
            received.append(message.data)
            await socket.send_bytes(b"\x01more")
        return socket

    async with serving(answer) as it, it.cluster.exec("ns", "p", "c", ["cat"]) as stream:
        await stream.close_stdin()
        await stream.send(b"data")
        assert await stream.receive() == b"more"
    assert received == [b"\x00data"]


async def test_a_cut_exec_ends_without_a_status() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        await socket.send_bytes(b"\x01half")
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return socket

    async with serving(answer) as it, it.cluster.exec("ns", "p", "c", ["cat"]) as stream:
        assert [await stream.receive(), await stream.receive()] == [b"half", None]
        assert stream.status is None
        with pytest.raises(ExecFailed) as error:
            await stream.send(b"more")
    assert error.value.started


async def test_what_nobody_receives_is_not_taken_from_the_server() -> None:
    sent, stuck, enough = [0], asyncio.Event(), 256 << 20

    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        try:
            while sent[0] < enough:
                async with asyncio.timeout(1):
                    await socket.send_bytes(b"\x01" + bytes(1 << 17))
                sent[0] += 1 << 17
        except TimeoutError:
            pass
        stuck.set()
        return socket

    async with serving(answer) as it, it.cluster.exec("ns", "p", "c", ["cat"]) as stream:
        await stuck.wait()
        assert await stream.receive()
    assert sent[0] < enough


async def test_the_servers_clock_comes_from_its_answers() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(POD, headers={"Date": "Thu, 01 Jan 2099 00:00:00 GMT"})

    async with serving(answer) as it:
        await it.cluster.get(Kind.POD, "ns", "p")
        assert it.cluster.now().year in (2098, 2099)
