"""One completion, whatever happens to engines meanwhile: no sampled token is lost, none is stamped wrong."""

import asyncio
import logging
from typing import Final

from rollout_sampler.domain import Completion, PolicyWanted
from rollout_sampler.ports import EngineLost, Engines, GenerateRequest, NoEngine

log = logging.getLogger(__name__)

_FIRST_RETRY_S: Final = 0.1
_MAX_RETRY_S: Final = 1.0


class SampleTurn:
    """Samples from whichever engine serves the policy; waits at most `patience_s` for one to (re)appear."""

    def __init__(self, engines: Engines, *, patience_s: float) -> None:
        self._engines = engines
        self._patience_s = patience_s

    async def __call__(self, wanted: PolicyWanted, request: GenerateRequest) -> Completion:
        """The whole completion. A lost request is repeated, same tokens and seed, on any engine.

        Raises NoEngine after `patience_s` of nothing but losses; ContextFull and EpisodeBroken at once.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._patience_s
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                return await self._attempt(wanted, request)
            except EngineLost as error:
                why = f"an engine for {wanted}: {error}"
            except NoEngine as error:
                why = error.waiting_for
            if loop.time() + delay_s > give_up_at:
                raise NoEngine(why)
            await asyncio.sleep(delay_s)
            delay_s = min(_MAX_RETRY_S, delay_s * 2)

    async def _attempt(self, wanted: PolicyWanted, request: GenerateRequest) -> Completion:
        engine = await self._engines.pick(wanted)
        try:
            completion = await engine.generate(request)
            _check(completion, wanted)
        except EngineLost as error:
            log.warning("engine_lost", extra={"engine_id": engine.engine_id, "why": str(error)})
            self._engines.suspect(engine.engine_id)
            raise
        return completion


def _check(completion: Completion, wanted: PolicyWanted) -> None:
    """An engine that is wrong about lengths or versions is treated like one that is gone."""
    num_tokens = len(completion.token_ids)
    stamped = sum(span.num_tokens for span in completion.versions)
    if num_tokens == 0:
        raise EngineLost(f"engine {completion.engine_id} sampled no token")
    if len(completion.logprobs) != num_tokens or stamped != num_tokens:
        raise EngineLost(
            f"engine {completion.engine_id} sent {num_tokens} token ids, {len(completion.logprobs)} "
            f"log-probabilities and versions for {stamped}; all three must be equal"
        )
    pinned = wanted.pinned_version
    if pinned is not None and any(span.version != pinned for span in completion.versions):
        raise EngineLost(f"engine {completion.engine_id} sampled with another version than the pinned one")
