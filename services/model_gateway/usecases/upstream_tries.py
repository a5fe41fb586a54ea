"""One request to a provider: tried again only before its answer began, within a budget, never while it is
paused."""

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from model_gateway import telemetry
from model_gateway.adapters.upstream_http import UpstreamHttp, UpstreamReply
from model_gateway.domain.errors import GatewayError
from model_gateway.domain.replies import TokenUsage
from model_gateway.domain.upstream.breaker import CircuitBreaker, RetryBudget
from model_gateway.domain.upstream.errors import UpstreamFailed, UpstreamSlow
from model_gateway.domain.upstream.providers import Provider
from model_gateway.domain.upstream.refusals import RETRYABLE, is_failure, refusal_of
from model_gateway.domain.upstream.table import WIRES
from model_gateway.domain.upstream.wire import UpstreamRequest
from model_gateway.usecases.hedging import Send, hedged

_OK: Final = 200
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0
"""A provider that asks for a longer one is not asked again for this request."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """An answer that began. tries: how many requests it took. is_probe: of a provider that is paused.
    given_up: requests that were sent beside it and are paid for, too."""

    reply: UpstreamReply
    tries: int
    is_probe: bool
    given_up: int = 0

    def metered(self, usage: TokenUsage) -> TokenUsage:
        """With the prompts that requests which were given up had read; how much they wrote is not known."""
        return replace(usage, prompt_tokens=usage.prompt_tokens * (1 + self.given_up))


@dataclass(frozen=True, slots=True)
class _Answered:
    reply: UpstreamReply
    given_up: int


@dataclass(frozen=True, slots=True)
class _Failure:
    """may_retry: nothing is known to have been sampled for us. pause_s: as the provider asks."""

    error: GatewayError
    may_retry: bool
    pause_s: float | None = None


@dataclass(slots=True)
class ProviderState:
    """What is remembered of a provider."""

    breaker: CircuitBreaker
    budget: RetryBudget


class UpstreamTries:
    """The requests to all providers."""

    def __init__(
        self,
        http: UpstreamHttp,
        providers: Mapping[str, Provider],
        *,
        timeout_s: float,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._http = http
        self._timeout_s = timeout_s
        self._jitter = jitter
        self.states = {
            name: ProviderState(CircuitBreaker(one), RetryBudget(one.limits.retry_share))
            for name, one in providers.items()
        }

    async def begin(self, provider: Provider, request: UpstreamRequest, params: Mapping[str, str]) -> Attempt:
        """An answer of status 200 that has begun. Raises GatewayError: what the last try ended with."""
        state = self.states[provider.name]
        state.budget.request()
        body = orjson.dumps(request.body)
        tries = 0
        while True:
            tries += 1
            is_probe = state.breaker.enter()
            result = await self._once(provider, request.path, body, params, is_probe=is_probe)
            if isinstance(result, _Answered):
                telemetry.UPSTREAM_TRIES.labels(provider.name, "answered").inc()
                telemetry.UPSTREAM_TRIES.labels(provider.name, "given_up").inc(result.given_up)
                return Attempt(result.reply, tries, is_probe, result.given_up)
            telemetry.UPSTREAM_TRIES.labels(provider.name, result.error.code).inc()
            pause_s = self._pause_s(result, tries)
            is_last = tries >= provider.limits.max_tries or pause_s > _LONGEST_PAUSE_S
            if not result.may_retry or is_last or not state.budget.take():
                raise result.error
            await asyncio.sleep(pause_s)

    async def _once(
        self, provider: Provider, path: str, body: bytes, params: Mapping[str, str], *, is_probe: bool
    ) -> _Answered | _Failure:
        breaker = self.states[provider.name].breaker
        headers = WIRES[provider.dialect].headers(provider)
        try:
            reply, given_up = await self._sent(
                provider, lambda: self._http.post(provider, path, body, headers, self._timeout_s)
            )
            if reply.status == _OK:
                return _Answered(reply, given_up)
            failure = await _refused(provider, reply, params)
        except UpstreamFailed as error:
            breaker.failed(is_probe)
            # It may be at work still, and would be paid twice.
            return _Failure(error, may_retry=not isinstance(error, UpstreamSlow))
        except BaseException:
            breaker.left(is_probe)
            raise
        if is_failure(reply.status):
            breaker.failed(is_probe)
        else:
            breaker.succeeded(is_probe)
        return failure

    async def _sent(self, provider: Provider, send: Send) -> tuple[UpstreamReply, int]:
        """The reply, and how many requests were given up for it."""
        after_s = provider.limits.hedge_after_s
        if not after_s:
            return await send(), 0
        return await hedged(send, after_s=after_s, may_hedge=self.states[provider.name].budget.take)

    def _pause_s(self, failure: _Failure, tries: int) -> float:
        if failure.pause_s is not None:
            return failure.pause_s
        pause_s: float = _FIRST_PAUSE_S * 2 ** (tries - 1) * (0.5 + self._jitter())
        return min(pause_s, _LONGEST_PAUSE_S)


async def _refused(provider: Provider, reply: UpstreamReply, params: Mapping[str, str]) -> _Failure:
    """Raises UpstreamFailed where the refusal itself is cut."""
    try:
        said = _json_or_text(await reply.read())
    finally:
        reply.close()
    error = refusal_of(provider, reply.status, said, params, reply.retry_after_s)
    return _Failure(error, reply.status in RETRYABLE, reply.retry_after_s)


def _json_or_text(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode(errors="replace")
