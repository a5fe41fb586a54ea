"""The public HTTP server as a component: bounded bodies, disconnects cancel, stop drains."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from model_gateway.handlers import OpenAiHandlers
from model_gateway.http_errors import one_envelope
from service_kit.http_limits import PortLimits
from service_kit.http_port import HttpPort
from service_kit.port_certificate import PortCertificate


class Routes(Protocol):
    """Handlers of some routes."""

    def register(self, app: web.Application) -> None:
        """Adds them."""


class PublicHttp:
    """Listens for the OpenAI API."""

    name = "public-http"

    def __init__(
        self,
        handlers: OpenAiHandlers,
        others: Sequence[Routes],
        address: tuple[str, int],
        *,
        max_body_bytes: int,
        limits: PortLimits,
        drain_s: float,
        certificate: PortCertificate | None = None,
    ) -> None:
        self._handlers = handlers
        self._others = others
        self._host, self._port = address
        self._max_body_bytes = max_body_bytes
        self._limits = limits
        self._drain_s = drain_s
        self._certificate = certificate
        self._refreshing: asyncio.Task[None] | None = None
        self._listening: HttpPort | None = None

    @property
    def port(self) -> int:
        """The port it listens on; the one asked for until it is started."""
        return (self._listening and self._listening.port) or self._port

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=self._max_body_bytes, middlewares=[one_envelope])
        self._handlers.register(app)
        for routes in self._others:
            routes.register(app)
        # A handler whose client disconnected is cancelled, and with it the engine's request.
        self._listening = HttpPort(app, self._limits, handler_cancellation=True, shutdown_timeout=1.0)
        try:
            context = None if self._certificate is None else self._certificate.context
            await self._listening.start(self._host, self._port, context)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise OSError(
                error.errno, f"cannot listen on {where}: {error.strerror}; choose another public_port"
            ) from error
        if self._certificate is not None:
            self._refreshing = asyncio.create_task(self._certificate.follow())

    async def stop(self) -> None:
        """Refuse what is new, finish what is in flight within the drain time, close."""
        if self._listening is None:
            return
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._handlers.drain()
        await self._listening.close()
        deadline = asyncio.get_running_loop().time() + self._drain_s
        while self._handlers.in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        await self._listening.stop()

    def ready(self) -> str | None:
        """It listens from start to stop."""
        return None if self._listening is not None and self._listening.port else "not listening"
