"""How long it takes from a promotion to the first token that the new weights serve here."""

from collections import deque
from collections.abc import Callable
from datetime import datetime

from model_gateway.domain.routing import Promotion, ServedWeights

_KEPT = 256


class Promotions:
    """Matches moves of head with the first token after them."""

    def __init__(
        self, *, now: Callable[[], datetime], on_first_token: Callable[[Promotion], None] | None = None
    ) -> None:
        self._now = now
        self._on_first_token = on_first_token or (lambda _: None)
        self._waiting: dict[str, Promotion] = {}
        self._served: deque[Promotion] = deque(maxlen=_KEPT)

    def moved(self, promotion: Promotion) -> None:
        """Head moved. An earlier move of which no token was served is forgotten."""
        self._waiting[promotion.model] = promotion

    def token(self, weights: ServedWeights) -> None:
        """A token of these weights is on its way to a client."""
        waiting = self._waiting.get(weights.model)
        if waiting is None or weights.newest != waiting.version:
            return
        del self._waiting[weights.model]
        seconds = max(0.0, (self._now() - waiting.promoted_at).total_seconds())
        served = Promotion(waiting.model, waiting.version, waiting.digest, waiting.promoted_at, seconds)
        self._served.append(served)
        self._on_first_token(served)

    def served(self, model: str) -> list[Promotion]:
        """The latest promotions of a model that were served, oldest first."""
        return [promotion for promotion in self._served if promotion.model == model]
