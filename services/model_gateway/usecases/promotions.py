"""How long it takes from a promotion to the first token that the new weights serve here."""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from model_gateway.domain.routing import Promotion, ServedWeights

_KEPT = 256
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Promotions:
    """Matches moves of head with the first token after them.

    An engine may hear of a move before the gateway does, and answer with the new weights: the time of the
    first token of each version is kept, so that such a promotion counts as well. The gateway hears of a move
    from its fact and from the registry's list, in either order: it counts once.
    """

    def __init__(
        self, *, now: Callable[[], datetime], on_first_token: Callable[[Promotion], None] | None = None
    ) -> None:
        self._now = now
        self._on_first_token = on_first_token or (lambda _: None)
        self._waiting: dict[str, Promotion] = {}
        self._first: OrderedDict[tuple[str, int], datetime] = OrderedDict()
        self._known: OrderedDict[tuple[str, int, datetime], None] = OrderedDict()
        self._served: deque[Promotion] = deque(maxlen=_KEPT)

    def moved(self, promotion: Promotion) -> None:
        """Head moved. An earlier move of which no token was served is forgotten."""
        move = promotion.model, promotion.version, promotion.promoted_at
        if move in self._known:
            return
        _kept(self._known, move, None)
        first = self._first.get((promotion.model, promotion.version))
        if first is not None and first >= promotion.promoted_at:
            self._waiting.pop(promotion.model, None)
            self._record(promotion, first)
        else:
            self._waiting[promotion.model] = promotion

    def token(self, weights: ServedWeights) -> None:
        """A token of these weights is on its way to a client."""
        key = weights.model, weights.newest
        if key not in self._first:
            _kept(self._first, key, self._now())
        waiting = self._waiting.get(weights.model)
        if waiting is None or weights.newest != waiting.version:
            return
        del self._waiting[weights.model]
        self._record(waiting, self._now())

    def _record(self, promotion: Promotion, first_token: datetime) -> None:
        seconds = max(0.0, (first_token - promotion.promoted_at).total_seconds())
        served = replace(promotion, first_token_s=seconds)
        self._served.append(served)
        self._on_first_token(served)

    def served(self, model: str) -> list[Promotion]:
        """The latest promotions of a model that were served, oldest first."""
        return [promotion for promotion in self._served if promotion.model == model]


def _kept(newest: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Add it; the oldest beyond `_KEPT` go."""
    newest[key] = value
    while len(newest) > _KEPT:
        newest.popitem(last=False)
