"""The edges: OpenAI's routes over HTTP, and the registry's facts. Decode, use case, encode."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from event_bus import EventRouter
from model_gateway import telemetry
from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.adapters.sql_usage import SqlUsageSink
from model_gateway.domain import openapi
from model_gateway.domain.calls import VERSION_HEADER, CallLimits, CompletionCall, at_version, read_target
from model_gateway.domain.dialects.dialect import Asked, Dialect
from model_gateway.domain.dialects.table import DIALECTS
from model_gateway.domain.engine_errors import refusal_of
from model_gateway.domain.errors import DeadlineExceeded, Draining, GatewayError, NotAllowed, UnknownModel
from model_gateway.domain.json_body import parsed
from model_gateway.domain.keys import ApiKey
from model_gateway.domain.routing import ServedWeights
from model_gateway.domain.sessions import SampledChoice, SessionKey, labels_given, session_named
from model_gateway.http_bodies import read_body
from model_gateway.http_errors import STREAM_BEGAN, error_response, internal_error, json_response
from model_gateway.http_exchange import HttpExchange
from model_gateway.ports import Clock
from model_gateway.usecases.access import KeyAccess
from model_gateway.usecases.answering import AnswerCalls
from model_gateway.usecases.canaries import MeetCanaries
from model_gateway.usecases.limiting import LimitKeys
from model_gateway.usecases.models import ListModels
from model_gateway.usecases.promotions import Promotions
from model_gateway.usecases.recording import RecordCalls
from model_gateway.usecases.relay import EngineAnswer, OpenStream
from model_gateway.usecases.shadows import ShadowRequests
from model_gateway.usecases.streams import error_event
from model_gateway.usecases.translated import translated
from service_kit.request_ids import new_request_id
from upcycle.api.registry.v1 import events_pb2 as registry

log = logging.getLogger(__name__)

_JSON = "application/json"
_CLIENT_CLOSED = 499
_OK = 200


def directory_router(directory: RegistryDirectory) -> EventRouter:
    """Facts after which the directory is out of date."""
    router = EventRouter()
    facts = router.ephemeral()
    facts(registry.CheckpointPromoted)(directory.on_promoted)
    facts(registry.CheckpointRolledBack)(directory.on_head_moved)
    facts(registry.CanaryReleaseChanged)(directory.on_canary_release)
    facts(registry.EngineReady)(directory.on_engine)
    facts(registry.EngineReloaded)(directory.on_engine)
    return router


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one request may cost."""

    call: CallLimits
    timeout_s: float


@dataclass(frozen=True, slots=True)
class GatewayDeps:
    """Everything the handlers hand a request to."""

    access: KeyAccess
    answers: AnswerCalls
    limits_of_keys: LimitKeys
    models: ListModels
    promotions: Promotions
    usage: SqlUsageSink
    calls: RecordCalls
    canaries: MeetCanaries
    shadows: ShadowRequests
    limits: HttpLimits
    now: Clock


class OpenAiHandlers:
    """`/v1/...` and the same at the root, for clients whose base URL is the bare origin."""

    def __init__(self, deps: GatewayDeps) -> None:
        self._deps = deps
        self._in_flight = 0
        self._is_draining = False

    def register(self, app: web.Application) -> None:
        """Adds the routes: of every dialect, and those that only read."""
        for dialect in DIALECTS:
            for path in dialect.paths:
                app.router.add_post(path, self._completion(dialect))
        reads = {
            openapi.MODELS: self.list_models,
            openapi.MODEL: self.get_model,
            openapi.SERVING: self.serving,
            openapi.DOCUMENT: self.document,
            openapi.HEALTH: self.health,
        }
        for route, handler in reads.items():
            for path in (route.path, *route.aliases):
                # A model's name may have slashes in it.
                app.router.add_get(path.replace("{model}", "{model:.+}"), handler)

    def drain(self) -> None:
        """New requests are refused from here on; those in flight go on."""
        self._is_draining = True

    @property
    def in_flight(self) -> int:
        """Requests being served."""
        return self._in_flight

    def _completion(self, dialect: Dialect) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._serve(request, dialect)

        return handle

    async def _serve(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        exchange = HttpExchange(new_request_id(), _path(request), self._deps.now())
        self._in_flight += 1
        telemetry.IN_FLIGHT.inc()
        try:
            asked, result = await self._bounded(request, dialect, exchange)
            if isinstance(result, EngineAnswer):
                response: web.StreamResponse = await self._answered(result, dialect, asked, exchange)
            else:
                response = await self._streamed(request, result, dialect, asked, exchange)
        except GatewayError as error:
            response = _refusal(error, dialect, exchange)
        except (asyncio.CancelledError, ConnectionResetError):
            exchange.status = exchange.status or _CLIENT_CLOSED
            raise
        except Exception:
            log.exception("request_failed", extra={"request_id": exchange.request_id})
            if exchange.first_byte_s is not None:
                raise
            response = _refusal(internal_error(exchange.request_id), dialect, exchange)
        finally:
            self._in_flight -= 1
            telemetry.IN_FLIGHT.dec()
            exchange.end(self._deps.usage)
        return response

    async def _bounded(
        self, request: web.Request, dialect: Dialect, exchange: HttpExchange
    ) -> tuple[Asked, EngineAnswer | OpenStream]:
        """Until there is an answer or a stream has begun; a stream is bounded by the engine client."""
        if self._is_draining:
            raise Draining
        scope = asyncio.timeout(self._deps.limits.timeout_s)
        try:
            async with scope:
                asked = await self._admit(request, dialect, exchange)
                return asked, await self._ask(asked, dialect, exchange)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise DeadlineExceeded(f"no answer within {self._deps.limits.timeout_s:g} s") from error

    async def _admit(self, request: web.Request, dialect: Dialect, exchange: HttpExchange) -> Asked:
        key = await self._authenticated(request)
        exchange.key_id = key.key_id
        exchange.admission = await self._deps.limits_of_keys.admit(key)
        raw = await read_body(request)
        body = parsed(raw)
        read = dialect.read(raw, body, self._deps.limits.call)
        call = at_version(read, request.headers.get(VERSION_HEADER))
        self._deps.access.allow_inference(key, call.target)
        upstream = self._deps.answers.upstream_of(call)
        if upstream is not None:
            exchange.asks(upstream, call)
        call = await self._recorded(request, key, call, exchange)
        call = self._deps.canaries.met(call, request.headers, key, exchange.session, exchange.request_id)
        exchange.begin(call, request.headers)
        return Asked(body, call, exchange.request_id, int(exchange.started_at.timestamp()))

    async def _recorded(
        self, request: web.Request, key: ApiKey, call: CompletionCall, exchange: HttpExchange
    ) -> CompletionCall:
        """The call, to be recorded where it names a session or is captured."""
        if not call.may_be_recorded:
            return call
        named = session_named(request.headers, call.body, request.match_info.get("session_id"))
        labels = labels_given(request.headers, call.body, named)
        if named is not None:
            session: SessionKey | None = SessionKey(named, key.key_id, labels=labels)
        elif exchange.upstream is not None:
            session = None  # capture is of the policies' own answers
        else:
            session = self._deps.calls.captures(key, exchange.request_id)
        if session is None or (session.captured and call.body.get("echo")):
            return call
        await self._deps.calls.check(session, call.target.model)
        exchange.session = session
        return call.for_recording()

    async def _authenticated(self, request: web.Request) -> ApiKey:
        headers = request.headers
        return await self._deps.access.authenticate(headers.get("Authorization"), headers.get("X-Api-Key"))

    async def _ask(self, asked: Asked, dialect: Dialect, exchange: HttpExchange) -> EngineAnswer | OpenStream:
        session = exchange.session
        return await self._deps.answers(
            asked.call,
            exchange.trace,
            dialect.params,
            has_session=session is not None and not session.captured,
            on_fallback=lambda model: exchange.falls_back(model, asked.call),
        )

    async def _answered(
        self, answer: EngineAnswer, dialect: Dialect, asked: Asked, exchange: HttpExchange
    ) -> web.Response:
        exchange.status = answer.status
        exchange.weights, exchange.usage = answer.weights, answer.usage
        exchange.finish_reasons = answer.finish_reasons
        exchange.engine_s, exchange.tries = answer.engine_s, answer.tries
        if answer.status != _OK:
            raise refusal_of(
                answer.status, _json_or_none(answer.body), asked.call.route.value, dialect.params
            )
        if asked.call.route.samples:
            if answer.weights is not None:
                self._deps.promotions.token(answer.weights)
            await self._record(exchange, asked.call, answer.choices, answer.weights)
            self._shadow(asked.call, exchange)
        body = answer.body
        if dialect.reply is not None:
            body = orjson.dumps(dialect.reply(asked, orjson.loads(body)))
        headers = exchange.headers(dialect.request_id_header)
        return web.Response(body=body, status=answer.status, content_type=_JSON, headers=headers)

    def _shadow(self, call: CompletionCall, exchange: HttpExchange) -> None:
        """What head answered; in its place another model may have."""
        if exchange.upstream is None:
            self._deps.shadows.offer(call, exchange.key_id, exchange.request_id)

    async def _streamed(
        self, request: web.Request, stream: OpenStream, dialect: Dialect, asked: Asked, exchange: HttpExchange
    ) -> web.StreamResponse:
        exchange.status, exchange.weights = _OK, stream.weights
        exchange.engine_s, exchange.tries = stream.engine_s, stream.tries
        exchange.first_byte()
        request[STREAM_BEGAN] = True
        sent = {"content-type": "text/event-stream", **exchange.headers(dialect.request_id_header)}
        response = web.StreamResponse(headers=sent)
        try:
            await response.prepare(request)
            if stream.weights is not None:
                self._deps.promotions.token(stream.weights)
            async with aclosing(self._recording(stream, asked.call, exchange)) as blocks:
                events = blocks if dialect.events is None else translated(blocks, dialect.events(asked))
                async for block in events:
                    await response.write(block)
            await response.write_eof()
            if stream.error is None:
                self._shadow(asked.call, exchange)
        finally:
            await stream.close()
            exchange.weights, exchange.error = stream.final_weights, stream.error or exchange.error
            exchange.usage, exchange.finish_reasons = stream.usage, stream.facts.finish_reasons
        return response

    async def _recording(
        self, stream: OpenStream, call: CompletionCall, exchange: HttpExchange
    ) -> AsyncGenerator[bytes, None]:
        """The engine's events as they pass, the last of them once a recorded call is stored."""
        async for block in stream.events:
            answers = stream.facts.answers
            if answers is not None and stream.facts.is_done and stream.error is None:
                # Before the client learns that the answer is whole: it may ask for its reward at once.
                try:
                    await self._record(exchange, call, answers.choices, stream.weights)
                except GatewayError as error:
                    exchange.error = error
                    block = error_event(error)
            yield block

    async def _record(
        self,
        exchange: HttpExchange,
        call: CompletionCall,
        choices: Sequence[SampledChoice],
        weights: ServedWeights | None,
    ) -> None:
        """Returns when the answer is stored. Raises GatewayError."""
        session = exchange.session
        if session is None or not choices:
            return
        recorded = await self._deps.calls.call_of(session, call, choices, weights, exchange.started_at)
        await self._deps.calls.add(recorded)

    async def list_models(self, request: web.Request) -> web.Response:
        """GET /v1/models: what the key may use."""
        key = await self._authenticated(request)
        cards = [card for card in await self._cards() if key.may_use(card["id"])]
        return json_response({"object": "list", "data": cards})

    async def get_model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}."""
        key = await self._authenticated(request)
        target = read_target(request.match_info["model"])
        if not key.may_use(target.model):
            raise NotAllowed(f"key {key.key_id!r} may not use model {target.model!r}", param="model")
        for card in await self._cards():
            if card["id"] == target.model:
                return json_response({**card, "id": str(target)})
        raise UnknownModel(f"model {target.model!r} does not exist", param="model")

    async def _cards(self) -> list[dict[str, Any]]:
        """Registered models, and those of providers: the name of a provider is no part of a registered
        one."""
        upstream = self._deps.answers.cards(int(self._deps.now().timestamp()))
        registered = await self._deps.models.cards()
        return [card for card in registered if not self._deps.answers.hides(card["id"])] + upstream

    async def serving(self, request: web.Request) -> web.Response:
        """GET /upcycle/v1/serving: who serves what, and how fast promotions reached their first token."""
        key = await self._authenticated(request)
        models = [one for one in self._deps.models.serving() if key.may_use(one["model"])]
        providers = self._deps.answers.serving(key.may_use)
        return json_response({"models": models, "providers": providers, "in_flight": self._in_flight})

    async def document(self, _: web.Request) -> web.Response:
        """GET /openapi.json."""
        return json_response(openapi.document(DIALECTS, openapi.READ_ROUTES))

    async def health(self, _: web.Request) -> web.Response:
        """GET /health: strangers learn that it answers, and no more. Readiness is at the operations port."""
        return json_response({"status": "ok"})


def _refusal(error: GatewayError, dialect: Dialect, exchange: HttpExchange) -> web.Response:
    exchange.status, exchange.error = error.status, error
    return error_response(error, exchange.request_id, dialect, exchange.headers(dialect.request_id_header))


def _path(request: web.Request) -> str:
    """The route, without the ids in it: a metric and a column of bounded length keep it."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None and "session_id" in request.match_info else request.path


def _json_or_none(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
