"""What execs and logs do."""

import asyncio
import hashlib
from datetime import timedelta

import pytest
from worlds import ECHO, FAILING, MISSING, World

from launcher.cluster.errors import ExecFailed, NotFound, Refused
from launcher.cluster.port import ExecStream, Kind

pytestmark = pytest.mark.anyio

PIECE = bytes(range(256)) * 512
"""128 KiB with every byte value."""

ENOUGH = 256 << 20
"""Bytes that no path holds. Between us and a process lie three TCP connections, there and back, and the kernel lets
each grow by its own limits (32 MiB to receive, 4 to send, where this was measured): 29 to 56 MB were taken in four
tries, and once more than 64 MiB. A reader that were not held up would take any amount.
"""


async def received(stream: ExecStream) -> bytes:
    body = bytearray()
    async with asyncio.timeout(60):
        while (piece := await stream.receive()) is not None:
            body += piece
    return bytes(body)


async def test_five_mebibytes_come_back_as_they_went(world: World) -> None:
    await world.running("p")
    async with world.cluster.exec(world.namespace, "p", "main", ECHO) as stream:
        reading = asyncio.create_task(received(stream))
        for _ in range(40):
            await stream.send(PIECE)
        await stream.close_stdin()
        body = await reading
    assert hashlib.sha256(body).digest() == hashlib.sha256(PIECE * 40).digest()


async def test_an_exit_code_and_stderr_come_back(world: World) -> None:
    await world.running("p")
    async with world.cluster.exec(world.namespace, "p", "main", FAILING) as stream:
        assert await received(stream) == b""
        assert stream.status is not None
        assert (stream.status.success, stream.status.exit_code, stream.stderr) == (False, 3, b"why")


async def test_a_process_that_ends_well_says_so(world: World) -> None:
    await world.running("p")
    async with world.cluster.exec(world.namespace, "p", "main", ECHO) as stream:
        await stream.close_stdin()
        assert await received(stream) == b""
        assert stream.status is not None
        assert stream.status.success


async def test_a_missing_command_never_started(world: World) -> None:
    await world.running("p")
    with pytest.raises(ExecFailed) as failed:
        await _exec(world, "p", "main", MISSING)
    assert not failed.value.started


async def test_an_exec_into_an_absent_pod_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await _exec(world, "absent", "main", ECHO)


async def test_an_exec_into_a_container_that_the_pod_does_not_have_is_refused(world: World) -> None:
    await world.running("p")
    with pytest.raises(Refused):
        await _exec(world, "p", "other", ECHO)


async def test_a_slow_reader_holds_the_writer_up(world: World) -> None:
    await world.running("p")
    async with world.cluster.exec(world.namespace, "p", "main", ECHO) as stream:
        sent = await _send_until_stuck(stream)
        assert sent < ENOUGH
        assert await stream.receive()


async def test_leaving_an_exec_ends_it_at_once(world: World) -> None:
    await world.running("p")
    async with asyncio.timeout(5), world.cluster.exec(world.namespace, "p", "main", ECHO) as stream:
        await stream.send(b"something")
        assert await stream.receive() == b"something"


async def test_a_log_is_what_was_written(world: World) -> None:
    await world.running("p")
    assert await _log(world, b"three\n") == b"one\ntwo\nthree\n"


async def test_a_followed_log_shows_lines_as_they_come(world: World) -> None:
    await world.running("p")
    async with (
        asyncio.timeout(30),
        world.cluster.log(world.namespace, "p", "main", follow=True, timestamps=True) as pieces,
    ):
        body = await _until(pieces, b"three\n")
    assert [line.split(b" ", 1)[1] for line in body.splitlines()] == [b"one", b"two", b"three"]


async def test_a_followed_log_ends_with_its_container(world: World) -> None:
    await world.running("p")
    async with asyncio.timeout(30), world.cluster.log(world.namespace, "p", "main", follow=True) as pieces:
        await world.cluster.delete(Kind.POD, world.namespace, "p", grace_seconds=3)
        body = b"".join([piece async for piece in pieces])
    assert body == b"one\ntwo\nthree\n"


async def test_a_log_can_be_cut_to_its_last_lines_and_first_bytes(world: World) -> None:
    await world.running("p")
    await _log(world, b"three\n")
    async with world.cluster.log(world.namespace, "p", "main", tail_lines=2, limit_bytes=5) as pieces:
        assert b"".join([piece async for piece in pieces]) == b"two\nt"


async def test_a_log_since_later_is_empty(world: World) -> None:
    await world.running("p")
    await _log(world, b"three\n")
    later = world.cluster.now() + timedelta(minutes=5)
    async with world.cluster.log(world.namespace, "p", "main", since=later) as pieces:
        assert [piece async for piece in pieces] == []


async def test_a_log_of_an_absent_pod_is_not_found(world: World) -> None:
    with pytest.raises(NotFound):
        await _open_log(world, "absent", "main")


async def test_a_log_of_an_absent_container_is_refused(world: World) -> None:
    await world.running("p")
    with pytest.raises(Refused):
        await _open_log(world, "p", "other")


async def _exec(world: World, pod: str, container: str, argv: tuple[str, ...]) -> None:
    async with asyncio.timeout(30), world.cluster.exec(world.namespace, pod, container, argv) as stream:
        await stream.receive()


async def _send_until_stuck(stream: ExecStream) -> int:
    """Send without reading until nothing moves for two seconds."""
    sent = 0
    while sent < ENOUGH:
        try:
            async with asyncio.timeout(2):
                await stream.send(PIECE)
        except TimeoutError:
            break
        sent += len(PIECE)
    return sent


async def _open_log(world: World, pod: str, container: str) -> None:
    async with world.cluster.log(world.namespace, pod, container):
        pass


async def _until(pieces, ending: bytes) -> bytes:
    body = b""
    async for piece in pieces:
        body += piece
        if body.endswith(ending):
            break
    return body


async def _log(world: World, ending: bytes) -> bytes:
    """Read the log again and again until it is complete."""
    async with asyncio.timeout(30):
        while True:
            async with world.cluster.log(world.namespace, "p", "main") as pieces:
                body = b"".join([piece async for piece in pieces])
            if body.endswith(ending):
                return body
            await asyncio.sleep(0.1)
