"""What can be asked for, and by whom it is served."""

from typing import Any

from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.adapters.engine_http import HttpEngines
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.canary import Canary
from model_gateway.domain.routing import EngineRoute, ModelHead, RoutingView
from model_gateway.usecases.pick import PickEngine
from model_gateway.usecases.promotions import Promotions

_REFRESH_S = 1.0


class ListModels:
    """Models as OpenAI lists them, and as operators want to see them."""

    def __init__(
        self, directory: RegistryDirectory, engines: HttpEngines, promotions: Promotions, pick: PickEngine
    ) -> None:
        self._directory = directory
        self._engines = engines
        self._promotions = promotions
        self._pick = pick
        self._lengths: dict[str, int] = {}

    async def cards(self) -> list[dict[str, Any]]:
        """One card per model; `max_model_len` where an engine serves it."""
        if not self._directory.view.models:
            await self._directory.refresh(_REFRESH_S)
        view = self._directory.view
        cards = []
        for model in view.models.values():
            engines = view.serving(ModelTarget(model.model))
            cards.append(
                {
                    "id": model.model,
                    "object": "model",
                    "created": model.created_s,
                    "owned_by": "upcycle",
                    "max_model_len": await self._max_model_len(model.model, engines),
                }
            )
        return cards

    def serving(self) -> list[dict[str, Any]]:
        """Per model: head, its canary release, the engines that serve it, requests that wait for one, seconds
        since the last request, and the latest promotions with their times."""
        view = self._directory.view
        asked = {model: self._pick.asked_for(model) for model in view.models}
        return [
            {
                "model": model.model,
                "head_version": model.head_version,
                "canary": None if model.canary is None else _canary(model, model.canary, view),
                "engines": [_engine(engine) for engine in view.serving(ModelTarget(model.model))],
                "waiting": asked[model.model].waiting,
                "asked_s_ago": asked[model.model].seconds_ago,
                "promotions": [
                    {
                        "version": promotion.version,
                        "digest": promotion.digest,
                        "promoted_at": promotion.promoted_at.isoformat(),
                        "first_token_ms": round(1000 * (promotion.first_token_s or 0.0), 1),
                    }
                    for promotion in self._promotions.served(model.model)
                ],
            }
            for model in view.models.values()
        ]

    async def _max_model_len(self, model: str, engines: list[EngineRoute]) -> int | None:
        """Asked once per model: the context is the architecture's, the same for every version."""
        if model not in self._lengths and engines:
            length = await self._engines.max_model_len(engines[0])
            if length is not None:
                self._lengths[model] = length
        return self._lengths.get(model)


def _canary(model: ModelHead, canary: Canary, view: RoutingView) -> dict[str, Any]:
    engines = view.holding(ModelTarget(model.model, canary.version))
    return {
        "version": canary.version,
        "share": canary.share,
        "shadow_share": canary.shadow_share,
        "engines": [engine.engine_id for engine in engines],
    }


def _engine(engine: EngineRoute) -> dict[str, Any]:
    return {
        "engine_id": engine.engine_id,
        "version": engine.version,
        "digest": engine.digest,
        "state": engine.state.value,
    }
