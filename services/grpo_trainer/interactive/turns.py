"""An interactive session holds its model as a run does: one trainer process at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from grpo_trainer.domain.errors import InvalidInput
from grpo_trainer.holding import HeldModel
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.state import InteractiveState
from identities.errors import InvalidIdentity
from identities.objects import interactive_session
from identities.subjects import token

_SOON_S: Final = 1.0
"""How long a call waits for a lease before it says what it waits for."""


class ModelTurns:
    """The lease of one session on its model, from its first call until it is closed."""

    def __init__(self, model: str, deps: InteractiveDeps) -> None:
        self._model = model
        self._deps = deps
        self._held: HeldModel | None = None
        self._wants = False

    @property
    def is_lost(self) -> bool:
        """Whether another trainer may have had the model since the last call: what is in memory is void."""
        holding = self._deps.holding
        return self._held is not None and holding is not None and self._held is not holding.held(self._model)

    async def hold(self) -> None:
        """Raises ModelBusy where another trainer holds the model; Unavailable until this one does;
        InvalidInput for a name that no model has: the object store would refuse its lease; UnknownModel."""
        try:
            token(self._model)
        except InvalidIdentity as error:
            raise InvalidInput(f"this is no name of a model: {error}") from error
        holding = self._deps.holding
        if holding is None:
            return
        holding.refuse_if_held_elsewhere(self._model)
        if not self._wants:
            await self._deps.heads.head(self._model)  # a model that is none leaves no lease behind
            self._wants = True
            holding.want(self._model)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SOON_S):
                await holding.acquired(self._model)
        self._held = holding.surely(self._model)

    def let_go(self) -> None:
        """Other trainers may take the model."""
        self._held = None
        if self._wants and self._deps.holding is not None:
            self._wants = False
            self._deps.holding.release(self._model)

    async def newest_state(self) -> InteractiveState | None:
        """The newest durable state; no trainer that held the model before writes one after it."""
        if self._held is None:
            return await self._deps.states.newest(self._model)
        line = interactive_session(self._model)
        return await self._deps.states.claim(line, token=self._held.token, by=self._held.holder)
