"""Who answers a call: engines, a model of a provider that it names, or the one that stands in for a
registered model while no engine answers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from model_gateway.domain.calls import ApiRoute, CompletionCall
from model_gateway.domain.errors import BadRequest, EngineLost, GatewayError, NoEngine
from model_gateway.domain.upstream.providers import Fallback, UpstreamModel, Upstreams
from model_gateway.usecases.relay import EngineAnswer, EngineRelay, OpenStream
from model_gateway.usecases.upstream import UpstreamRelay

_WITH_FALLBACK: Final = (ApiRoute.CHAT, ApiRoute.COMPLETIONS)
OnFallback = Callable[[UpstreamModel], None]
"""Told before the fallback is asked; raises GatewayError where it must not be."""


class AnswerCalls:
    """Engines and providers as one."""

    def __init__(self, engines: EngineRelay, upstream: UpstreamRelay, upstreams: Upstreams) -> None:
        self._engines = engines
        self._upstream = upstream
        self._upstreams = upstreams

    def upstream_of(self, call: CompletionCall) -> UpstreamModel | None:
        """The model of a provider that the call names. Raises UnknownModel."""
        return self._upstreams.find(call.target.model)

    def cards(self, now_s: int) -> list[dict[str, Any]]:
        """The models of providers as OpenAI lists models."""
        return [
            {
                "id": name,
                "object": "model",
                "created": now_s,
                "owned_by": one.provider.name,
                "max_model_len": None,
            }
            for name, one in sorted(self._upstreams.models.items())
        ]

    def hides(self, model: str) -> bool:
        """Whether a registered model cannot be asked for: its name begins with a provider's."""
        provider, slash, _ = model.partition("/")
        return bool(slash) and provider in self._upstreams.providers

    def serving(self, may_use: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Per provider: its models, and whether it is asked at the moment."""
        return self._upstream.serving(may_use)

    async def __call__(
        self,
        call: CompletionCall,
        headers: Mapping[str, str],
        params: Mapping[str, str],
        *,
        has_session: bool,
        on_fallback: OnFallback,
    ) -> EngineAnswer | OpenStream:
        """The answer, or a stream that began. params: the dialect's names of the call's fields. has_session:
        the client named one, which samples one model and so has no other in its place. Raises
        GatewayError."""
        named = self.upstream_of(call)
        if named is not None:
            return await self._by_provider(call, named, params)
        fallback = self._upstreams.fallbacks.get(call.target.model)
        if fallback is None or has_session or not _may_fall_back(call):
            return await self._by_engine(call, headers, None)
        try:
            return await self._by_engine(call, headers, fallback.after_s)
        except (NoEngine, EngineLost) as error:
            return await self._in_its_place(call, fallback, params, on_fallback, error)

    async def _by_engine(
        self, call: CompletionCall, headers: Mapping[str, str], wait_s: float | None
    ) -> EngineAnswer | OpenStream:
        if call.stream:
            return await self._engines.open_stream(call, headers, wait_s=wait_s)
        return await self._engines.answer(call, headers, wait_s=wait_s)

    async def _by_provider(
        self, call: CompletionCall, model: UpstreamModel, params: Mapping[str, str]
    ) -> EngineAnswer | OpenStream:
        if call.stream:
            return await self._upstream.open_stream(call, model, params)
        return await self._upstream.answer(call, model, params)

    async def _in_its_place(
        self,
        call: CompletionCall,
        fallback: Fallback,
        params: Mapping[str, str],
        on_fallback: OnFallback,
        why: GatewayError,
    ) -> EngineAnswer | OpenStream:
        """The fallback's answer. Where it cannot honour the request, the engines' error says so."""
        on_fallback(fallback.model)
        try:
            # Captured traffic is of the model's own answers.
            return await self._by_provider(replace(call, recorded=False), fallback.model, params)
        except BadRequest as error:
            raise NoEngine(f"{why.message}; its fallback cannot answer: {error.message}") from error


def _may_fall_back(call: CompletionCall) -> bool:
    return call.target.version is None and call.route in _WITH_FALLBACK
