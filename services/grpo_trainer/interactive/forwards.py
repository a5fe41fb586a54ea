"""Forward passes that a `backward` may name."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from grpo_trainer.domain.errors import StaleForward, UnknownForward
from grpo_trainer.learner.prepared import PreparedBatch

_MAX_FORWARDS: Final = 8
"""How many are kept; each keeps its rows in memory."""


@dataclass(frozen=True, slots=True)
class _Forward:
    batch: PreparedBatch
    generation: int
    version: int


class KeptForwards:
    """The last forward passes of a session. generation: counts changes of the weights in memory."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._kept: OrderedDict[str, _Forward] = OrderedDict()

    def keep(self, batch: PreparedBatch, generation: int, version: int) -> str:
        """The id of a pass that was computed with the weights of a version."""
        forward_id = f"fwd-{uuid.uuid4().hex[:16]}"
        self._kept[forward_id] = _Forward(batch, generation, version)
        while len(self._kept) > _MAX_FORWARDS:
            self._kept.popitem(last=False)
        return forward_id

    def batch_of(self, forward_id: str, generation: int) -> PreparedBatch:
        """The rows of a pass. Raises UnknownForward; StaleForward where the weights have changed since."""
        found = self._kept.get(forward_id)
        if found is None:
            raise UnknownForward(
                f"{self._model}: forward pass {forward_id!r} is not in memory (the last "
                f"{_MAX_FORWARDS} are, until the trainer restarts): call forward again"
            )
        if found.generation != generation:
            raise StaleForward(
                f"{self._model}: {forward_id} was computed at v{found.version}, and the weights have "
                "changed since: call forward again"
            )
        return found.batch

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
