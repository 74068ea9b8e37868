"""A relay between a client and a server: late, or encrypted on the client's side."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def relaying(
    port: int,
    target: str,
    delay_s: float = 0.0,
    context: ssl.SSLContext | None = None,
    seen: list[bytes] | None = None,
) -> Iterator[None]:
    """Passes bytes of every connection to `port` on to `target`; at once, or from `delay_s` on.

    `seen` collects what the clients send.
    """
    host, _, target_port = target.rpartition(":")
    loop, listens = asyncio.new_event_loop(), threading.Event()

    async def pump(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copies: list[bytes]
    ) -> None:
        with suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                copies.append(data)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(target_port))
        sent = [] if seen is None else seen
        await asyncio.gather(pump(reader, inner_writer, sent), pump(inner_reader, writer, []))

    async def serve() -> None:
        await asyncio.sleep(delay_s)
        await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
        listens.set()

    async def end() -> None:
        """Leave nothing to the garbage collector: it would speak up in whatever runs then."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)

    def run() -> None:
        task = loop.create_task(serve())
        loop.run_forever()
        del task
        loop.run_until_complete(end())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not delay_s:
        assert listens.wait(10.0)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=5)
