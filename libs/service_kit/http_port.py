"""An aiohttp application on a port whose clients are bounded; of the gateway, the engine and operations."""

import asyncio
import ssl
from typing import Any

from aiohttp import web

from service_kit.descriptors import connections_that_fit
from service_kit.http_connections import BoundedConnection, Connections
from service_kit.http_limits import BODY_S, Envelope, PortLimits, error_envelope
from service_kit.request_ids import REQUEST_ID, new_request_id


class HttpPort:
    """Listens from `start` to `close`; answers what it has until `stop`."""

    def __init__(
        self, app: web.Application, limits: PortLimits, *, envelope: Envelope = error_envelope, **runner: Any
    ) -> None:
        """runner: settings of aiohttp's AppRunner."""
        app[BODY_S] = limits.body_s
        app.on_response_prepare.append(_identified)
        self._runner = web.AppRunner(app, access_log=None, **runner)
        self._limits = limits
        self._envelope = envelope

    @property
    def port(self) -> int | None:
        """The one that it listens on."""
        return int(self._runner.addresses[0][1]) if self._runner.addresses else None

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen. Raises OSError."""
        await self._runner.setup()
        most = connections_that_fit(self._limits.connections)
        book = Connections(self._limits, most, self._envelope)
        await _Site(self._runner, book, host, port, tls).start()

    async def close(self) -> None:
        """Take no new connections."""
        for site in list(self._runner.sites):
            await site.stop()

    async def stop(self) -> None:
        """End all."""
        await self._runner.cleanup()


async def _identified(_: web.Request, response: web.StreamResponse) -> None:
    if REQUEST_ID not in response.headers:
        response.headers[REQUEST_ID] = new_request_id()


class _Site(web.TCPSite):
    """Makes connections of ours."""

    def __init__(
        self, runner: web.AppRunner, book: Connections, host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner, host, port, ssl_context=tls, backlog=1024)
        self._book = book
        self._where = (host, port)

    async def start(self) -> None:
        """As aiohttp does it, with another kind of connection and a bounded handshake."""
        await web.BaseSite.start(self)
        server, loop = self._runner.server, asyncio.get_running_loop()
        if server is None:
            raise RuntimeError("the runner was not set up")
        made = server.request_factory

        def began(message: Any, payload: Any, protocol: Any, *rest: Any) -> web.BaseRequest:
            protocol.request_began()
            return made(message, payload, protocol, *rest)

        server.request_factory = began
        host, port = self._where
        self._server = await loop.create_server(
            lambda: BoundedConnection(server, self._book, loop=loop),
            host,
            port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=self._book.limits.head_s if self._ssl_context else None,
        )
