"""A way to the API server on which connections break: TCP on loopback, cut after so many bytes in one direction."""

import asyncio
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Direction = Literal["out", "in"]
"""From the launcher to the server, or back."""
Manner = Literal["reset", "closed", "stalled"]
"""RST at once, FIN after what was passed on, or nothing more although the connection stays."""

PIECE = 16 << 10


@dataclass
class CuttingProxy:
    """Cuts the first ``times`` connections that carry more than ``after`` bytes in a direction; ``cut`` counts them."""

    server: tuple[str, int]
    direction: Direction
    after: int
    times: int
    manner: Manner = "reset"
    cut: int = 0
    port: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Pass one connection on, both ways, until either side ends."""
        with suppress(OSError):
            server, to_server = await asyncio.open_connection(*self.server, limit=PIECE)
            pair = (to_client, to_server)
            self._open.update(pair)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass(client, to_server, "out", pair))
                    both.create_task(self._pass(server, to_client, "in", pair))
            except* OSError:
                pass
            finally:
                self._open.difference_update(pair)
                for writer in pair:
                    writer.transport.abort()

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        direction: Direction,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        passed = 0
        while piece := await source.read(PIECE):
            passed += len(piece)
            if direction == self.direction and passed > self.after and self.cut < self.times:
                self.cut += 1
                await self._break(pair)
                return
            sink.write(piece)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    async def _break(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        if self.manner == "stalled":
            await asyncio.Event().wait()
        for writer in pair:
            if self.manner == "reset":
                at_once = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
                writer.transport.abort()
            writer.close()


@contextmanager
def running(proxy: CuttingProxy) -> Iterator[None]:
    """Serve in a thread with a loop of its own; what is still open at the end is cut."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=PIECE)
        proxy.port = listener.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        listener.close()
        ours = asyncio.current_task()
        serving = [task for task in asyncio.all_tasks() if task is not ours]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="cutting-proxy")
    thread.start()
    try:
        assert ready.wait(10), "the proxy does not listen"
        yield
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def server_of(kubeconfig: Path) -> tuple[str, int]:
    """Return where a kubeconfig's API server is."""
    address = urlsplit(json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
    assert address.hostname, address
    return address.hostname, address.port or 443


def kubeconfig_through(proxy: CuttingProxy, kubeconfig: Path, copy: Path) -> Path:
    """Write a kubeconfig whose way to the server leads through the proxy; TLS is still the server's own."""
    config = json.loads(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster |= {"server": f"https://127.0.0.1:{proxy.port}", "tls-server-name": proxy.server[0]}
    copy.write_text(json.dumps(config))
    return copy
