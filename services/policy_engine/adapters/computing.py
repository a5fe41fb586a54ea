"""Whether an engine computes. `/health` of vLLM says that its server answers, also while its engine core
hangs; so the engine is asked for one token now and then, and that must come."""

import asyncio
import contextlib
import logging
from typing import Final, Protocol

from engine_client import EngineError, EngineLoad
from policy_engine.ports import Clock

log = logging.getLogger(__name__)

_ASK_EVERY_S: Final = 10.0
_NO_LIMIT_S: Final = 86_400.0
"""A busy engine answers late, and is no dead one."""


class AskedEngine(Protocol):
    """What is asked of an engine (engine_client.EngineClient). Raises EngineError."""

    async def ask_for_a_token(self, *, timeout_s: float) -> None: ...

    async def is_paused(self) -> bool: ...

    async def load(self) -> EngineLoad: ...


class ComputingWatch:
    """Asks one engine. It hangs where it was asked `hang_s` ago, has computed nothing since, and is not
    paused: a queue that is long, or one long prompt after another, is no hang."""

    def __init__(self, client: AskedEngine, hang_s: float, clock: Clock) -> None:
        self._client = client
        self._hang_s = hang_s
        self._clock = clock
        self._question: asyncio.Task[None] | None = None
        self._alive_s = clock()
        """When it was last known to compute, or was asked."""
        self._num_tokens = -1

    async def why_hung(self) -> str:
        """Look once; "" where it computes, or may."""
        now_s = self._clock()
        if self._question is not None and self._question.done():
            self._question, self._alive_s = None, now_s
        if self._question is None:
            if now_s - self._alive_s >= _ASK_EVERY_S:
                self._question = asyncio.create_task(self._ask(), name="ask for a token")
                self._alive_s, self._num_tokens = now_s, -1
            return ""
        if await self._goes_on():
            self._alive_s = now_s
        silent_s = now_s - self._alive_s
        if silent_s < self._hang_s:
            return ""
        return f"it has computed no token for {silent_s:.0f} s, though it was asked for one and is not paused"

    async def close(self) -> None:
        """Ask no more."""
        if self._question is not None:
            self._question.cancel()
            await asyncio.gather(self._question, return_exceptions=True)

    async def _ask(self) -> None:
        # Any answer will do, a refusal too: what counts here is that something decided about a request.
        with contextlib.suppress(EngineError):
            await self._client.ask_for_a_token(timeout_s=_NO_LIMIT_S)

    async def _goes_on(self) -> bool:
        """Whether it computed since the last look, or may not. An engine that does not say has no excuse."""
        try:
            is_paused = await self._client.is_paused()
            num_tokens = (await self._client.load()).num_tokens
        except EngineError as error:
            log.warning("engine_says_no_load", extra={"why": str(error)})
            return False
        has_more = num_tokens != self._num_tokens
        self._num_tokens = num_tokens
        return is_paused or has_more
