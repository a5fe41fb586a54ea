"""Relays a call to an engine: another engine while nothing was answered yet, never twice after that.

The weights named beside an answer are those that made it: what the engine reports where it does (version
spans, or the version it says it has loaded while a reload is due), else the lease, certain while none is.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from model_gateway import telemetry
from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.adapters.engine_http import HttpEngines
from model_gateway.domain.calls import CompletionCall, ModelTarget
from model_gateway.domain.errors import EngineFailed, EngineLost, EngineMoved, GatewayError
from model_gateway.domain.replies import (
    TokenUsage,
    counted_usage,
    finish_reasons,
    names_version,
    pinned_version,
    versions_in,
    with_fingerprint,
    with_ids_in_both_places,
)
from model_gateway.domain.routing import EngineRoute, ServedWeights, served_name
from model_gateway.domain.sampled_answers import AnswerCollector, without_unasked
from model_gateway.domain.sessions import SampledChoice
from model_gateway.ports import EngineReply
from model_gateway.usecases.pick import PickEngine
from model_gateway.usecases.streams import EventStream, error_event

T = TypeVar("T")
log = logging.getLogger(__name__)

_OK = 200
_NOT_FOUND = 404
_SERVER_ERROR = 500
_MOST_FAILED = 2
"""Tries of a request that engines which live cannot answer."""


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """How long to wait for what, in seconds."""

    engine_wait_s: float = 20.0  # for an engine, from the first try to the last
    request_timeout_s: float = 600.0  # for a whole answer


@dataclass(slots=True)
class EngineAnswer:
    """A complete answer. weights: None of an upstream model."""

    status: int
    body: bytes
    weights: ServedWeights | None
    usage: TokenUsage
    finish_reasons: list[str]
    engine_s: float  # spent waiting for engines
    tries: int
    choices: list[SampledChoice] = field(default_factory=list)  # of a recorded call


@dataclass(slots=True)
class OpenStream:
    """A stream whose first bytes are here. Close it, read or not. weights: None of an upstream model."""

    reply: EngineReply
    weights: ServedWeights | None
    engine_s: float
    tries: int
    facts: EventStream
    final_weights: ServedWeights | None  # exact once the events are read
    error: GatewayError | None = None
    estimate: Callable[[], TokenUsage] | None = None  # of tokens, where none were told
    metered: Callable[[TokenUsage], TokenUsage] | None = None  # with what was done beside the answer
    events: AsyncGenerator[bytes, None] = field(init=False)

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far, as they are metered."""
        return self._known if self.metered is None else self.metered(self._known)

    @property
    def _known(self) -> TokenUsage:
        """As far as they are known: of an answer that was left in the middle at least those that came,
        whatever was told before them."""
        reported = self.facts.usage
        if self.estimate is None or (self.facts.is_done and reported != TokenUsage()):
            return reported
        came = self.estimate()
        if reported == TokenUsage():
            return came
        return replace(reported, completion_tokens=max(reported.completion_tokens, came.completion_tokens))

    async def close(self) -> None:
        """Lets the engine go; before the end it aborts the request."""
        # Not left to `events`: of a generator that was never begun `aclose` runs nothing.
        self.reply.close()
        await self.events.aclose()


@dataclass(frozen=True, slots=True)
class _Attempt:
    engine: EngineRoute
    reply: EngineReply
    version_before: int


_Use = Callable[[CompletionCall, _Attempt, float, int], Awaitable[T]]
"""What to make of a reply: the call, the attempt, when the first one began, and how many there were."""


class EngineRelay:
    """Non-streamed and streamed calls."""

    def __init__(
        self, directory: RegistryDirectory, engines: HttpEngines, pick: PickEngine, policy: RelayPolicy
    ) -> None:
        self._directory = directory
        self._engines = engines
        self._pick = pick
        self._policy = policy

    async def answer(
        self, call: CompletionCall, headers: Mapping[str, str], *, wait_s: float | None = None
    ) -> EngineAnswer:
        """The whole answer, whatever its status below 500. wait_s: for an engine, in place of the policy's.
        Raises GatewayError."""
        return await self._by_an_engine(call, headers, self._read, wait_s)

    async def open_stream(
        self, call: CompletionCall, headers: Mapping[str, str], *, wait_s: float | None = None
    ) -> OpenStream | EngineAnswer:
        """A stream with its first event at hand, or the engine's refusal. Raises GatewayError."""
        return await self._by_an_engine(call, headers, self._opened_or_refused, wait_s)

    async def once(self, call: CompletionCall, engine: EngineRoute) -> EngineAnswer:
        """The whole answer of this engine, tried once; nothing is held against an engine that fails. Raises
        GatewayError."""
        started = time.monotonic()
        return await self._read(call, await self._attempt(call, engine, {}), started, 1)

    async def _by_an_engine(
        self, call: CompletionCall, headers: Mapping[str, str], use: _Use[T], wait_s: float | None
    ) -> T:
        """What `use` makes of an engine's reply; of another's, while engines are lost before it did."""
        started = time.monotonic()
        until = started + (self._policy.engine_wait_s if wait_s is None else wait_s)
        tries = failed = 0
        meets_canary = call.canary is not None
        while True:
            tries += 1
            picked = await self._pick.pick(call.target, until=until, canary=call.canary)
            engine, asked = picked.engine, call
            if picked.target != call.target:
                asked = replace(call, target=picked.target)
            self._pick.busy[engine.engine_id] += 1
            try:
                answered = await use(asked, await self._attempt(asked, engine, headers), started, tries)
                if meets_canary:
                    by = "canary" if asked.is_of_canary else "head"
                    telemetry.CANARY_REQUESTS.labels(call.target.model, by).inc()
                return answered
            except EngineFailed as error:
                failed += 1
                log.warning("engine_failed", extra={"engine_id": engine.engine_id, "why": error.message})
                if asked.is_of_canary:
                    call = replace(call, canary=None)  # head answers
                elif failed == _MOST_FAILED:
                    raise
            except EngineLost as error:
                await self._lost(engine, error, until)
            finally:
                # A stream that was opened counts itself from here on.
                self._pick.busy[engine.engine_id] -= 1

    async def _attempt(
        self, call: CompletionCall, engine: EngineRoute, headers: Mapping[str, str]
    ) -> _Attempt:
        name = served_name(engine, call.target)
        if name is None:
            raise EngineLost(f"engine {engine.engine_id} no longer serves {call.target}")
        before = await self._loaded(engine, call.target)
        outbound = call.outbound(name, in_columns=engine.has_columns)
        body = call.raw if outbound is None else orjson.dumps(outbound)
        timeout_s = self._policy.request_timeout_s
        reply = await self._engines.post(engine, call.route.value, body, headers, timeout_s)
        gone = reply.status == _NOT_FOUND and call.target.version is not None
        if reply.status >= _SERVER_ERROR or gone:
            reply.close()
            raise await self._why_lost(call, engine, reply.status)
        return _Attempt(engine, reply, before)

    async def _why_lost(self, call: CompletionCall, engine: EngineRoute, status: int) -> EngineLost:
        """An engine that goes on is not lost: what it cannot answer would take it from all others. Nor is one
        by what a canary's version cannot answer, as it may serve head, too."""
        said = f"engine {engine.engine_id} answered {status}"
        if call.is_of_canary:
            return EngineFailed(f"{said} for {call.target}, so head answers; its log says why")
        if status == _SERVER_ERROR and await self._engines.is_alive(engine):
            return EngineFailed(f"{said} to this request, and goes on; its log says why")
        return EngineLost(said)

    async def _lost(self, engine: EngineRoute, error: EngineLost, until: float) -> None:
        """Suspects the engine, unless it only moved on; raises when there is no time for another try."""
        has_moved = isinstance(error, EngineMoved)
        if not has_moved:
            self._pick.suspect(engine)
        log.warning(error.code, extra={"engine_id": engine.engine_id, "why": error.message})
        if time.monotonic() >= until:
            raise error
        if has_moved:
            await self._pick.look_at_leases()

    async def _read(
        self, call: CompletionCall, attempt: _Attempt, started: float, tries: int
    ) -> EngineAnswer:
        try:
            body = await attempt.reply.read()
        finally:
            attempt.reply.close()
        return await self._finished(call, attempt, body, time.monotonic() - started, tries)

    async def _finished(
        self, call: CompletionCall, attempt: _Attempt, body: bytes, engine_s: float, tries: int
    ) -> EngineAnswer:
        if attempt.reply.status != _OK:
            return EngineAnswer(attempt.reply.status, body, None, TokenUsage(), [], engine_s, tries)
        reply = _json(body, attempt.engine)
        versions = versions_in(reply)
        if not versions:
            versions = [attempt.version_before, await self._loaded(attempt.engine, call.target)]
        _require(call.target, versions, attempt.engine)
        weights = await self._weights(call.target.model, versions)
        choices: list[SampledChoice] = []
        has_changed = call.return_token_ids and with_ids_in_both_places(reply)
        has_changed = names_version(call, reply) or has_changed
        if call.recorded:
            collected = AnswerCollector()
            collected.add(reply)
            choices = collected.choices
            without_unasked(call, reply, streamed=False)
            has_changed = True
        if has_changed:
            body = orjson.dumps(reply)
        body = with_fingerprint(body, weights.checkpoint_id)
        usage = counted_usage(call, reply)
        return EngineAnswer(_OK, body, weights, usage, finish_reasons(reply), engine_s, tries, choices)

    async def _opened_or_refused(
        self, call: CompletionCall, attempt: _Attempt, started: float, tries: int
    ) -> OpenStream | EngineAnswer:
        if attempt.reply.status != _OK:
            return await self._read(call, attempt, started, tries)
        return await self._opened(call, attempt, started, tries)

    async def _opened(
        self, call: CompletionCall, attempt: _Attempt, started: float, tries: int
    ) -> OpenStream:
        events = EventStream(call, attempt.reply)
        try:
            first = await events.first()
            versions = events.versions
            if not versions:
                versions = [attempt.version_before, await self._loaded(attempt.engine, call.target)]
            _require(call.target, versions, attempt.engine)
            weights = await self._weights(call.target.model, versions)
        except BaseException:
            attempt.reply.close()
            raise
        engine_s = time.monotonic() - started
        stream = OpenStream(attempt.reply, weights, engine_s, tries, events, final_weights=weights)
        stream.events = self._rest(call, attempt, stream, first, weights.checkpoint_id)
        return stream

    async def _rest(
        self, call: CompletionCall, attempt: _Attempt, stream: OpenStream, first: bytes, checkpoint: str
    ) -> AsyncGenerator[bytes, None]:
        busy, engine_id = self._pick.busy, attempt.engine.engine_id
        busy[engine_id] += 1
        try:
            if first:
                yield with_fingerprint(first, checkpoint)
            async for block in stream.facts.rest():
                yield with_fingerprint(block, checkpoint)
            if stream.facts.versions:
                stream.final_weights = await self._weights(call.target.model, stream.facts.versions)
        except EngineLost as error:
            # Tokens were delivered, so another engine cannot take over: the client must know.
            self._pick.suspect(attempt.engine)
            stream.error = error
            yield error_event(error)
        finally:
            busy[engine_id] -= 1

    async def _loaded(self, engine: EngineRoute, target: ModelTarget) -> int:
        """The version that the engine samples the target with at this moment."""
        pinned = pinned_version(engine, target)
        if pinned is not None:
            return pinned
        view = self._directory.view
        lease = next((one for one in view.engines if one.engine_id == engine.engine_id), engine)
        if view.is_settled(lease):
            return lease.version
        said = await self._engines.loaded_version(engine)
        return lease.version if said is None else said

    async def _weights(self, model: str, versions: list[int]) -> ServedWeights:
        newest = max(versions)
        digest = await self._directory.digest(model, newest)
        return ServedWeights(model, newest, min(versions), digest)


def _require(target: ModelTarget, versions: Iterable[int], engine: EngineRoute) -> None:
    """A request for a version gets no other one: an engine that serves it on its channel may have reloaded
    since its last lease. Raises EngineMoved."""
    others = {*versions} - {target.version}
    if target.version is not None and others:
        seen = ", ".join(f"v{version}" for version in sorted(others))
        raise EngineMoved(f"engine {engine.engine_id} answered with {seen} for {target}; try again")


def _json(body: bytes, engine: EngineRoute) -> dict[str, Any]:
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineLost(f"engine {engine.engine_id} answered something that is not JSON: {error}") from error
    if not isinstance(reply, dict):
        raise EngineLost(f"engine {engine.engine_id} answered a JSON {type(reply).__name__}")
    return reply
