"""A TCP proxy on loopback that can cut, freeze, refuse, and, for Kafka, hold or lose single requests and responses.

It reads of Kafka's protocol what every request begins with (https://kafka.apache.org/protocol.html), big-endian:

    request   int32 size · int16 api key · int16 version · int32 correlation id · …
    response  int32 size · int32 correlation id · …
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, Self

PRODUCE: Final = 0
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS: Final = 24
END_TXN: Final = 26

_BUFFER: Final = 1 << 20
_POLL_S: Final = 0.02
_DELIVERED_S: Final = 1.0
"""A held request whose sender is gone: how long the connection stays up behind it, so that the server reads it."""


class Trap:
    """For the next Kafka message of a kind: held until `release`, then passed on; or lost, its connection with it.

    `seen` is called when it comes, before anything is done with it.
    """

    def __init__(
        self,
        api_key: int,
        side: Literal["request", "response"],
        *,
        lose: bool = False,
        hold: bool = False,
        seen: Callable[[], None] = lambda: None,
    ) -> None:
        self.api_key, self.side, self.lose = api_key, side, lose
        self.seen = seen
        self.sprung = threading.Event()
        self._released = threading.Event()
        if not hold:
            self._released.set()

    def release(self) -> None:
        """Let what is held go on."""
        self._released.set()

    async def spring(self) -> None:
        self.seen()
        self.sprung.set()
        while not self._released.is_set():  # noqa: ASYNC110 - released from another thread
            await asyncio.sleep(_POLL_S)


class Proxy:
    """One port in front of one server's, on a thread of its own. All methods may be called from any thread."""

    def __init__(self, *, kafka: bool) -> None:
        self._kafka = kafka
        self._target = 0
        self._traps: list[Trap] = []
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._refusing = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen())
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lead_to(self, port: int) -> None:
        """Where new connections go."""
        self._target = port

    def cut(self) -> int:
        """End all connections at once, as a firewall's reset does; give how many there were."""
        return self._call(self._cut())

    def freeze(self) -> None:
        """Pass nothing on and close nothing: to both ends the other is silent."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def thaw(self) -> None:
        """Pass on again, first what was kept back."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def refuse(self, refusing: bool) -> None:
        """Reset new connections, or take them again."""
        self._refusing = refusing

    def arm(self, trap: Trap) -> Trap:
        """Set a trap for the next message of its kind on any connection."""
        self._traps.append(trap)
        return trap

    def disarm(self, trap: Trap) -> None:
        """Take a trap away that has not sprung, and release what it holds."""
        with contextlib.suppress(ValueError):
            self._traps.remove(trap)
        trap.release()

    def heal(self) -> None:
        """Be a proxy that does nothing."""
        for trap in list(self._traps):
            self.disarm(trap)
        self.refuse(False)
        self.thaw()

    def close(self) -> None:
        """End everything; safe to call twice."""
        if self._loop.is_closed():
            return
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, doing: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(30)

    async def _listen(self) -> asyncio.Server:
        self._passing.set()
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_BUFFER)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self._refusing:
                await self._passing.wait()
                there = await asyncio.open_connection("127.0.0.1", self._target, limit=_BUFFER)
                link = _Link(self, (reader, writer), there)
                self._links.add(link)
                try:
                    await link.run()
                finally:
                    self._links.discard(link)
        except (OSError, asyncio.CancelledError):
            pass  # nobody there, or the proxy is closed: the client is told by the reset
        finally:
            writer.transport.abort()

    async def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.abort()
        return len(links)

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close in the loop's next round

    async def passing(self) -> None:
        await self._passing.wait()

    def trap(self, side: str, api_key: int) -> Trap | None:
        for trap in self._traps:
            if (trap.side, trap.api_key) == (side, api_key):
                self._traps.remove(trap)
                return trap
        return None

    @property
    def reads_kafka(self) -> bool:
        return self._kafka


_End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and ours to the server."""

    def __init__(self, proxy: Proxy, here: _End, there: _End) -> None:
        self._proxy = proxy
        self._here, self._there = here, there
        self._asked: dict[int, int] = {}
        self._held = False

    async def run(self) -> None:
        (client_in, client_out), (server_in, server_out) = self._here, self._there
        if self._proxy.reads_kafka:
            ways = (self._requests(client_in, server_out), self._responses(server_in, client_out))
        else:
            ways = (self._bytes(client_in, server_out), self._bytes(server_in, client_out))
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._proxy.passing()
            if self._held:
                await asyncio.sleep(_DELIVERED_S)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.abort()

    def abort(self) -> None:
        for _, writer in (self._here, self._there):
            writer.transport.abort()

    async def _bytes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BUFFER):
            await self._pass(writer, data)

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _frame(reader)
            api_key, _version, correlation = struct.unpack_from(">hhi", frame, 4)
            self._asked[correlation] = api_key
            trap = self._proxy.trap("request", api_key)
            if trap is not None:
                await trap.spring()
                self._held = True
                if trap.lose:
                    return
            await self._pass(writer, frame)

    async def _responses(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = struct.unpack_from(">i", frame, 4)
            trap = self._proxy.trap("response", self._asked.pop(correlation, -1))
            if trap is not None:
                await trap.spring()
                if trap.lose:
                    return
            await self._pass(writer, frame)

    async def _pass(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._proxy.passing()
        writer.write(data)
        await writer.drain()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))
