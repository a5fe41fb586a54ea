"""The edges: OpenAI's routes over HTTP, and the registry's facts. Decode, use case, encode."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from event_bus import EventRouter
from model_gateway import telemetry
from model_gateway.adapters.capture import BlobCapture
from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.domain.calls import ApiRoute, CallLimits, CompletionCall, read_call, read_target
from model_gateway.domain.errors import (
    BadRequest,
    DeadlineExceeded,
    Draining,
    GatewayError,
    NotAllowed,
    UnknownModel,
)
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.records import CapturedExchange
from model_gateway.http_exchange import HttpExchange
from model_gateway.ports import Clock
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.models import ListModels
from model_gateway.usecases.promotions import Promotions
from model_gateway.usecases.relay import EngineAnswer, EngineRelay, OpenStream
from upcycle.api.registry.v1 import events_pb2 as registry

log = logging.getLogger(__name__)

_JSON = "application/json"
_CLIENT_CLOSED = 499


def directory_router(directory: RegistryDirectory) -> EventRouter:
    """Facts after which the directory is out of date."""
    router = EventRouter()
    facts = router.ephemeral()
    facts(registry.CheckpointPromoted)(directory.on_promoted)
    facts(registry.CheckpointRolledBack)(directory.on_head_moved)
    facts(registry.EngineReady)(directory.on_engine)
    facts(registry.EngineReloaded)(directory.on_engine)
    return router


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost."""

    call: CallLimits
    max_body_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """Everything the handlers hand a request to."""

    access: KeyAccess
    relay: EngineRelay
    models: ListModels
    promotions: Promotions
    usage: SqlUsageSink
    capture: BlobCapture
    limits: HttpLimits
    now: Clock


class OpenAiHandlers:
    """`/v1/...` and the same at the root, for clients whose base URL is the bare origin."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps
        self._in_flight = 0
        self._is_draining = False

    def register(self, app: web.Application) -> None:
        """Adds the routes."""
        for prefix in ("/v1", ""):
            app.router.add_post(f"{prefix}/chat/completions", self._completion(ApiRoute.CHAT))
            app.router.add_post(f"{prefix}/completions", self._completion(ApiRoute.COMPLETIONS))
            app.router.add_get(f"{prefix}/models", self.list_models)
            app.router.add_get(f"{prefix}/models/{{model:.+}}", self.get_model)
        app.router.add_get("/upcycle/v1/serving", self.serving)

    def drain(self) -> None:
        """New requests are refused from here on; those in flight go on."""
        self._is_draining = True

    @property
    def in_flight(self) -> int:
        """Requests being served."""
        return self._in_flight

    def _completion(self, route: ApiRoute) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._serve(request, route)

        return handle

    async def _serve(self, request: web.Request, route: ApiRoute) -> web.StreamResponse:
        exchange = HttpExchange(_request_id(), request.path, self._deps.now())
        self._in_flight += 1
        telemetry.IN_FLIGHT.inc()
        try:
            async with self._bounded():
                call = await self._admit(request, route, exchange)
                result = await self._ask(call, exchange)
            if isinstance(result, EngineAnswer):
                response: web.StreamResponse = self._answered(result, call, exchange)
            else:
                response = await self._streamed(request, result, call, exchange)
        except GatewayError as error:
            response = refusal(error, exchange)
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.status = exchange.status or _CLIENT_CLOSED
            raise
        except Exception:
            log.exception("request_failed", extra={"request_id": exchange.request_id})
            if exchange.first_byte_s is not None:
                raise
            message = f"internal error; the gateway's log has it under {exchange.request_id}"
            response = refusal(GatewayError(message), exchange)
        finally:
            self._in_flight -= 1
            telemetry.IN_FLIGHT.dec()
            exchange.end(self._deps.usage)
        return response

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Until there is an answer or a stream has begun; a stream is bounded by the engine client."""
        if self._is_draining:
            raise Draining
        scope = asyncio.timeout(self._deps.limits.timeout_s)
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"no answer within {self._deps.limits.timeout_s:g} s") from error

    async def _admit(self, request: web.Request, route: ApiRoute, exchange: HttpExchange) -> CompletionCall:
        key = await self._authenticated(request)
        exchange.key_id = key.key_id
        raw = await _body(request, self._deps.limits.max_body_bytes)
        call = read_call(route, raw, _parsed(raw), self._deps.limits.call)
        self._deps.access.allow_inference(key, call.target)
        exchange.begin(call, request.headers)
        return call

    async def _authenticated(self, request: web.Request) -> ApiKey:
        return await self._deps.access.authenticate(request.headers.get("Authorization"))

    async def _ask(self, call: CompletionCall, exchange: HttpExchange) -> EngineAnswer | OpenStream:
        if call.stream:
            return await self._deps.relay.open_stream(call, exchange.trace)
        return await self._deps.relay.answer(call, exchange.trace)

    def _answered(self, answer: EngineAnswer, call: CompletionCall, exchange: HttpExchange) -> web.Response:
        exchange.status = answer.status
        exchange.weights, exchange.usage = answer.weights, answer.usage
        exchange.finish_reasons = answer.finish_reasons
        exchange.engine_s, exchange.tries = answer.engine_s, answer.tries
        if answer.weights is not None:
            self._deps.promotions.token(answer.weights)
            self._captured(exchange, call, answer.body)
        return web.Response(
            body=answer.body, status=answer.status, content_type=_JSON, headers=exchange.headers()
        )

    async def _streamed(
        self, request: web.Request, stream: OpenStream, call: CompletionCall, exchange: HttpExchange
    ) -> web.StreamResponse:
        exchange.status, exchange.weights = 200, stream.weights
        exchange.engine_s, exchange.tries = stream.engine_s, stream.tries
        exchange.first_byte()
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **exchange.headers()})
        kept: list[bytes] | None = [] if self._deps.capture.wants(exchange.request_id) else None
        try:
            await response.prepare(request)
            self._deps.promotions.token(stream.weights)
            await self._write(response, stream, kept)
        finally:
            await stream.close()
            exchange.weights, exchange.error = stream.final_weights, stream.error
            exchange.usage, exchange.finish_reasons = stream.facts.usage, stream.facts.finish_reasons
        if kept is not None:
            self._captured(exchange, call, b"".join(kept))
        return response

    async def _write(
        self, response: web.StreamResponse, stream: OpenStream, kept: list[bytes] | None
    ) -> None:
        async for block in stream.events:
            await response.write(block)
            if kept is not None:
                kept.append(block)
        await response.write_eof()

    def _captured(self, exchange: HttpExchange, call: CompletionCall, response: bytes) -> None:
        weights = exchange.weights
        if weights is None or not self._deps.capture.wants(exchange.request_id):
            return
        self._deps.capture.add(
            CapturedExchange(
                exchange.request_id,
                weights.model,
                weights.newest,
                weights.digest,
                call.raw,
                response,
                exchange.started_at,
            )
        )

    async def list_models(self, request: web.Request) -> web.Response:
        """GET /v1/models: what the key may use."""
        async with _errors_as_responses() as failed:
            key = await self._authenticated(request)
            cards = [card for card in await self._deps.models.cards() if key.may_use(card["id"])]
            return _json({"object": "list", "data": cards})
        return failed[0]

    async def get_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}."""
        async with _errors_as_responses() as failed:
            key = await self._authenticated(request)
            target = read_target(request.match_info["model"])
            if not key.may_use(target.model):
                raise NotAllowed(f"key {key.key_id!r} may not use model {target.model!r}", param="model")
            for card in await self._deps.models.cards():
                if card["id"] == target.model:
                    return _json({**card, "id": str(target)})
            raise UnknownModel(f"model {target.model!r} does not exist", param="model")
        return failed[0]

    async def serving(self, request: web.Request) -> web.Response:
        """GET /upcycle/v1/serving: who serves what, and how fast promotions reached their first token."""
        async with _errors_as_responses() as failed:
            key = await self._authenticated(request)
            models = [one for one in self._deps.models.serving() if key.may_use(one["model"])]
            return _json({"models": models, "in_flight": self._in_flight})
        return failed[0]


def refusal(error: GatewayError, exchange: HttpExchange) -> web.Response:
    """The envelope that OpenAI's clients read."""
    exchange.status, exchange.error = error.status, error
    headers = exchange.headers()
    if error.status == 503:
        headers["retry-after"] = "1"
    return _json(_envelope(error), error.status, headers)


def _envelope(error: GatewayError) -> dict[str, Any]:
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type=_JSON, headers=headers)


@asynccontextmanager
async def _errors_as_responses() -> AsyncIterator[list[web.Response]]:
    failed: list[web.Response] = []
    try:
        yield failed
    except GatewayError as error:
        failed.append(_json(_envelope(error), error.status, {"x-request-id": _request_id()}))


async def _body(request: web.Request, limit: int) -> bytes:
    """The body, which aiohttp has bounded by the same limit."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _TooLarge(f"the body is larger than {limit} bytes") from error


class _TooLarge(BadRequest):
    status, code = 413, "body_too_large"


def _parsed(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


_PROCESS = secrets.token_hex(6)
_COUNTER = itertools.count()


def _request_id() -> str:
    """Unique: random per process, then counted, as a fresh random number per request is a system call."""
    return f"req-{_PROCESS}{next(_COUNTER):08x}"
