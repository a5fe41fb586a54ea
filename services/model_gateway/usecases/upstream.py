"""Asks a model of a provider: its answer, whole or streamed, as if an engine had given it."""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

import orjson

from model_gateway.domain.calls import CompletionCall
from model_gateway.domain.errors import BadReply, EngineLost
from model_gateway.domain.replies import TokenUsage, finish_reasons, usage_of
from model_gateway.domain.sampled_answers import AnswerCollector, without_unasked
from model_gateway.domain.upstream.errors import UpstreamFailed
from model_gateway.domain.upstream.estimates import characters_of, estimated
from model_gateway.domain.upstream.providers import Provider, UpstreamModel, Upstreams
from model_gateway.domain.upstream.refusals import unreadable
from model_gateway.domain.upstream.shapes import check_choices
from model_gateway.domain.upstream.table import WIRES
from model_gateway.usecases.relay import EngineAnswer, OpenStream
from model_gateway.usecases.streams import EventStream, error_event
from model_gateway.usecases.upstream_stream import UpstreamEvents
from model_gateway.usecases.upstream_tries import UpstreamTries

_OK: Final = 200


class UpstreamRelay:
    """Non-streamed and streamed calls of upstream models."""

    def __init__(self, upstreams: Upstreams, tries: UpstreamTries) -> None:
        self._upstreams = upstreams
        self._tries = tries

    def serving(self, may_use: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Per provider: its models that may be used, and whether it is asked at the moment."""
        rows: list[dict[str, Any]] = []
        for name in sorted(self._upstreams.providers):
            mine = [one for one, model in self._upstreams.models.items() if model.provider.name == name]
            if models := sorted(filter(may_use, mine)):
                circuit = self._tries.states[name].breaker.state().value
                rows.append({"provider": name, "models": models, "circuit": circuit})
        return rows

    async def answer(
        self, call: CompletionCall, model: UpstreamModel, params: Mapping[str, str]
    ) -> EngineAnswer:
        """The whole answer. Raises GatewayError; its message names the provider."""
        started = time.monotonic()
        wire, provider = WIRES[model.provider.dialect], model.provider
        attempt = await self._tries.begin(provider, wire.request(call, model), params)
        breaker = self._tries.states[provider.name].breaker
        try:
            body = await attempt.reply.read()
            reply = _reply(body, model)
        except (UpstreamFailed, BadReply):
            breaker.failed(attempt.is_probe)
            raise
        except BaseException:
            breaker.left(attempt.is_probe)
            raise
        finally:
            attempt.reply.close()
        breaker.succeeded(attempt.is_probe)
        usage = usage_of(reply) or TokenUsage()
        if usage == TokenUsage():
            usage = estimated(call, characters_of(reply))
        usage = attempt.metered(usage)
        answer = EngineAnswer(_OK, b"", None, usage, finish_reasons(reply), 0.0, attempt.tries)
        if call.recorded:
            collected = AnswerCollector()
            collected.add(reply)
            answer.choices = collected.choices
            without_unasked(call, reply, streamed=False)
        answer.body = orjson.dumps(reply)
        answer.engine_s = time.monotonic() - started
        return answer

    async def open_stream(
        self, call: CompletionCall, model: UpstreamModel, params: Mapping[str, str]
    ) -> OpenStream:
        """A stream with its first event at hand. Raises GatewayError; its message names the provider."""
        started = time.monotonic()
        wire, provider = WIRES[model.provider.dialect], model.provider
        attempt = await self._tries.begin(provider, wire.request(call, model), params)
        breaker = self._tries.states[provider.name].breaker
        events = UpstreamEvents(provider, attempt.reply, wire.stream(model, int(time.time())))
        facts = EventStream(call, events)
        try:
            first = await facts.first()
        except (UpstreamFailed, EngineLost) as error:
            attempt.reply.close()
            breaker.failed(attempt.is_probe)
            raise _named(provider, error) from error
        except BaseException:
            attempt.reply.close()
            breaker.left(attempt.is_probe)
            raise
        if attempt.is_probe:
            breaker.succeeded(is_probe=True)
        engine_s = time.monotonic() - started
        stream = OpenStream(events, None, engine_s, attempt.tries, facts, final_weights=None)
        stream.estimate = lambda: estimated(call, events.characters)
        stream.metered = attempt.metered
        stream.events = self._rest(provider, stream, first)
        return stream

    async def _rest(
        self, provider: Provider, stream: OpenStream, first: bytes
    ) -> AsyncGenerator[bytes, None]:
        breaker = self._tries.states[provider.name].breaker
        try:
            if first:
                yield first
            async for block in stream.facts.rest():
                yield block
        except (UpstreamFailed, EngineLost) as error:
            # A part was delivered, so nothing is asked again: the client must know.
            breaker.failed(is_probe=False)
            stream.error = _named(provider, error)
            yield error_event(stream.error)
        else:
            breaker.succeeded(is_probe=False)


def _reply(body: bytes, model: UpstreamModel) -> dict[str, Any]:
    """Raises BadReply."""
    provider = model.provider
    try:
        said = orjson.loads(body)
        if not isinstance(said, dict):
            raise ValueError(f"answered a JSON {type(said).__name__}")
        reply = dict(WIRES[provider.dialect].reply(said, model))
        check_choices(reply)
        return reply
    except (ValueError, TypeError, AttributeError) as error:
        raise BadReply(unreadable("an answer", error, body, provider)) from error


def _named(provider: Provider, error: UpstreamFailed | EngineLost) -> UpstreamFailed:
    """What the shared reader of streams says of an engine, said of the provider."""
    if isinstance(error, UpstreamFailed):
        return error
    return UpstreamFailed(f"provider {provider.name!r}: {error.message}")
