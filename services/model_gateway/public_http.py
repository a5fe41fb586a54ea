"""The public HTTP server as a component: bounded bodies, disconnects cancel, stop drains."""

import asyncio

from aiohttp import web

from model_gateway.handlers import OpenAiHandlers


class PublicHttp:
    """Listens for the OpenAI API."""

    name = "public-http"

    def __init__(
        self, handlers: OpenAiHandlers, host: str, port: int, *, max_body_bytes: int, drain_s: float
    ) -> None:
        self._handlers = handlers
        self._host = host
        self._port = port
        self._max_body_bytes = max_body_bytes
        self._drain_s = drain_s
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it listens on; the one asked for until it is started."""
        if self._runner is not None and self._runner.addresses:
            return int(self._runner.addresses[0][1])
        return self._port

    async def start(self) -> None:
        """Listen."""
        app = web.Application(client_max_size=self._max_body_bytes)
        self._handlers.register(app)
        # A handler whose client disconnected is cancelled, and with it the engine's request.
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0, keepalive_timeout=75.0
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port, backlog=1024).start()
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise OSError(
                error.errno, f"cannot listen on {where}: {error.strerror}; choose another public_port"
            ) from error

    async def stop(self) -> None:
        """Refuse what is new, finish what is in flight within the drain time, close."""
        if self._runner is None:
            return
        self._handlers.drain()
        for site in list(self._runner.sites):
            await site.stop()
        deadline = asyncio.get_running_loop().time() + self._drain_s
        while self._handlers.in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        await self._runner.cleanup()

    def ready(self) -> str | None:
        """It listens from start to stop."""
        return None if self._runner is not None and self._runner.addresses else "not listening"
