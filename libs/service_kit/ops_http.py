"""/livez, /readyz and /metrics of one process, on their own port, away from its public interface."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder

from service_kit.http_limits import PortLimits, error_envelope
from service_kit.http_port import HttpPort
from service_kit.request_ids import REQUEST_ID, new_request_id

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Readiness:
    """What /readyz tells: the phase of the process, and per component why it cannot work now."""

    service: str
    phase: str
    reasons: Mapping[str, str]

    @property
    def ready(self) -> bool:
        """Running, and every component is ready."""
        return self.phase == "running" and not self.reasons


class OpsHttp:
    """Component that answers orchestrators and Prometheus; up before the others, down after them."""

    name = "ops-http"

    def __init__(
        self,
        host: str,
        port: int,
        readiness: Callable[[], Readiness],
        *,
        limits: PortLimits,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._host = host
        self._port = port
        self._readiness = readiness
        self._registry = registry
        self._listening: HttpPort | None = None
        self._limits = limits

    @property
    def port(self) -> int:
        """The port it listens on; the one asked for until it is started."""
        return (self._listening and self._listening.port) or self._port

    async def start(self) -> None:
        """Listen."""
        app = web.Application(middlewares=[_one_envelope])
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._listening = HttpPort(app, self._limits, shutdown_timeout=1.0)
        try:
            await self._listening.start(self._host, self._port)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise OSError(
                error.errno,
                f"cannot listen on {where} for /readyz: {error.strerror}; choose another http_port",
            ) from error

    async def stop(self) -> None:
        """Close the port."""
        if self._listening is not None:
            await self._listening.stop()

    def ready(self) -> str | None:
        """Always, once it listens."""
        return None

    async def _livez(self, _: web.Request) -> web.Response:
        return web.json_response({"alive": True})

    async def _readyz(self, _: web.Request) -> web.Response:
        state = self._readiness()
        body = {
            "ready": state.ready,
            "service": state.service,
            "phase": state.phase,
            "reasons": dict(state.reasons),
        }
        return web.json_response(body, status=200 if state.ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


@web.middleware
async def _one_envelope(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What aiohttp refuses by itself: no such path, another method."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        request_id = new_request_id()
        where = f"{request.method} {request.path:.200}"
        message = f"{where}: {error.reason}; there are /livez, /readyz and /metrics"
        body = error_envelope(error.status, "no_such_route", message, request_id)
        headers = {REQUEST_ID: request_id}
        if "allow" in error.headers:
            headers["allow"] = error.headers["allow"]
        return web.json_response(body, status=error.status, headers=headers)
