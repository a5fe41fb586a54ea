"""A capability of a served environment as an address on this machine: each connection is tunnelled."""

import asyncio
import logging
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from upcycle.environment.channel import frames
from upcycle.environment.channel.frames import ChannelClosed, ChannelError
from upcycle.environment.channel.lines import LineProtocol

OPEN_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class Forwarder:
    """Listens on a loopback port and splices each connection to one capability of the environment
    at `url`.
    """

    def __init__(self, url: str, capability: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname or "127.0.0.1", where.port or 0
        self._capability = capability
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        class Accepted(LineProtocol):
            def connection_made(accepted, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                task = loop.create_task(self._tunnel(accepted))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

        self._server = await loop.create_server(Accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def local(self, url: str) -> str:
        """The binding's URL with this forwarder's host and port: scheme, path and user stay."""
        assert self._server is not None  # noqa: S101 - used inside `async with`
        port = self._server.sockets[0].getsockname()[1]
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    async def _tunnel(self, near: LineProtocol) -> None:
        try:
            far = await self._open_tunnel()
            far.splice(near)
            near.splice(far)
            await near.closed
        except (ChannelError, ChannelClosed, OSError, TimeoutError) as error:
            log.warning("tunnel_refused", extra={"capability": self._capability, "error": str(error)})
        finally:
            if near.transport is not None:
                near.transport.close()

    async def _open_tunnel(self) -> LineProtocol:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            loop = asyncio.get_running_loop()
            _, lines = await loop.create_connection(LineProtocol, self._host, self._port)
            params = {"capability": self._capability}
            request = {"jsonrpc": "2.0", "id": 1, "method": "tunnel.open", "params": params}
            await lines.send(frames.encode(request))
            reply = frames.decode(await lines.read_line())
        if "error" in reply:
            raise ChannelError(frames.SERVER_ERROR, str(reply["error"].get("message", "")))
        return lines
