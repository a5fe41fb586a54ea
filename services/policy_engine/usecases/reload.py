"""The reload protocol: load, check the canary, then name. A version is never named before its canary agreed.

    embedded: stage (load beside what serves, score by both) -> swap (weights, name, prefixes, at once)
    vLLM:     pause(keep) -> reload -> name it unproven -> forget prefixes -> resume -> score -> name it

vLLM has memory for one set of weights and answers nothing while it is paused, so there the canary is scored
after `resume`; tokens of those few milliseconds carry an unproven label, which engine_client turns into a
version only once the canary agreed. If any call fails, the old weights are loaded again, and the old version
is served under its name. What serves is proven again from time to time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from engine_client import EngineError, EngineRejected, StagedScores, pinned_name, proven_label, unproven_label
from policy_engine.domain import EngineBroken, FailureKind, Policy, ServedPolicy, VersionRefused, judge_canary
from policy_engine.ports import Clock, EngineControl, EngineHost

log = logging.getLogger(__name__)

Scores = list[list[float]]
_PROVEN_AGAIN_S: Final = 30.0
"""How long the channel waits for a busy engine that is proven again."""


class ReloadProtocol:
    """Moves one engine from version to version, and proves each."""

    def __init__(
        self, host: EngineHost, model: str, *, recompute_running: bool, clock: Clock, dtype: str = "float32"
    ) -> None:
        """`recompute_running`: requests in flight compute keys and values again under the new weights.
        `dtype`: what the engine computes in."""
        self._host = host
        self._model = model
        self._recompute_running = recompute_running
        self._clock = clock
        self._dtype = dtype

    async def adopt(self, engine: EngineControl, policy: Policy) -> ServedPolicy:
        """Prove what a freshly started engine serves, and name it. Raises VersionRefused, EngineBroken."""
        try:
            measured = await self._score(engine, policy)
            worst = judge_canary(policy, measured, None, self._dtype)
            await engine.update_weight_version(proven_label(policy.target.version))
        except EngineError as error:
            raise EngineBroken(f"the engine fails right after its start: {error}") from error
        return ServedPolicy(policy, worst)

    async def prove_again(self, engine: EngineControl, serving: ServedPolicy) -> None:
        """See that it still computes what was proven, and name it again. One that does not answer is not
        judged: it may be busy, and who watches it says whether it lives. Raises EngineBroken."""
        try:
            async with asyncio.timeout(_PROVEN_AGAIN_S):
                if await engine.is_paused():
                    raise EngineBroken("it was paused by somebody else")
                await self._judge_twice(engine, serving.policy)
                await engine.update_weight_version(proven_label(serving.version))
        except VersionRefused as error:
            raise EngineBroken(f"it computes no more what was proven: {error.detail}") from error
        except (EngineError, TimeoutError) as error:
            log.warning("engine_not_proven_again", extra={"why": repr(error)})

    async def _judge_twice(self, engine: EngineControl, policy: Policy) -> None:
        """A single look in the midst of other requests restarts no engine. Raises VersionRefused."""
        try:
            judge_canary(policy, await self._score(engine, policy), None, self._dtype)
        except VersionRefused:
            judge_canary(policy, await self._score(engine, policy), None, self._dtype)

    async def reload(
        self, engine: EngineControl, old: ServedPolicy, new: Policy
    ) -> tuple[ServedPolicy, float]:
        """Serve `new` instead of `old`; returns it proven, and the seconds for which sampling stood still.

        Raises VersionRefused: `old` serves on, untouched as seen from outside. EngineBroken: it does not.
        """
        directory = self._host.prepare(new)
        try:
            staged = await engine.stage_weights(directory, _rows(new))
        except EngineError as error:
            # It serves what it served. Whether it lives at all, who watches it says.
            raise _as_refusal(error, new) from error
        if staged is None:
            return await self._reload_in_place(engine, old, new, directory)
        return await self._swap(engine, old, new, directory, staged)

    async def _swap(
        self, engine: EngineControl, old: ServedPolicy, new: Policy, directory: Path, staged: StagedScores
    ) -> tuple[ServedPolicy, float]:
        try:
            before = staged.serving if _are_others(old, new) else None
            worst = judge_canary(new, staged.staged, before, self._dtype)
        except VersionRefused:
            with contextlib.suppress(EngineError):  # then the next stage replaces them
                await engine.forget_staged_weights()
            raise
        label = proven_label(new.target.version)
        try:
            paused_s = await engine.swap_weights(directory, label, recompute_running=self._recompute_running)
        except EngineError as error:
            # It may have swapped all the same. What it sampled since then is stamped with what sampled it.
            await self._go_back(engine, old, pause="keep")
            # It was proven: whatever failed then, it is not the version.
            why = f"v{new.target.version}: {error}"
            raise VersionRefused(FailureKind.ENGINE_ERROR, why, may_pass_later=True) from error
        return ServedPolicy(new, worst), paused_s

    async def _reload_in_place(
        self, engine: EngineControl, old: ServedPolicy, new: Policy, directory: Path
    ) -> tuple[ServedPolicy, float]:
        try:
            before = await self._score(engine, new) if _are_others(old, new) else None
            started_s = self._clock()
            await engine.pause("keep")
        except EngineError as error:
            raise EngineBroken(f"the engine cannot be paused: {error}") from error
        try:
            await engine.reload_weights(directory)
            await engine.update_weight_version(unproven_label(new.target.version, after=old.version))
            await engine.reset_prefix_cache(recompute_running=self._recompute_running)
            await engine.resume()
            paused_s = self._clock() - started_s
            worst = await self._prove_resumed(engine, new, before)
        except (VersionRefused, EngineError) as error:
            has_sampled = isinstance(error, _RefusedAfterResume)
            await self._go_back(engine, old, pause="abort" if has_sampled else None)
            raise _as_refusal(error, new) from error
        return ServedPolicy(new, worst), paused_s

    async def _prove_resumed(self, engine: EngineControl, new: Policy, before: Scores | None) -> float:
        """The worst difference of what samples already, under an unproven label; then names it. before:
        scores by the old weights, where those are others."""
        try:
            worst = judge_canary(new, await self._score(engine, new), before, self._dtype)
        except VersionRefused as error:
            raise _RefusedAfterResume(error) from error
        await engine.update_weight_version(proven_label(new.target.version))
        return worst

    async def hold(self, engine: EngineControl, policy: Policy, model: str, serving: ServedPolicy) -> None:
        """Serve a version beside the main one, under the name of its model. Raises VersionRefused; the engine
        is then as before."""
        name = pinned_name(model, policy.target.version)
        try:
            await engine.load_adapter(name, self._host.prepare_held(policy, serving.policy))
            try:
                judge_canary(policy, await self._score(engine, policy, name), None, self._dtype)
            except (VersionRefused, EngineError):
                await engine.unload_adapter(name)
                raise
        except EngineError as error:
            raise _as_refusal(error, policy) from error

    async def _score(self, engine: EngineControl, policy: Policy, held: str | None = None) -> Scores:
        """The canary's rows by the main weights, or by those that are held under a name."""
        rows = _rows(policy)
        scored = await engine.score_while_paused(rows, model=held)
        if scored is not None:
            return scored
        return [await engine.prompt_logprobs(held or self._model, row) for row in rows]

    async def _go_back(
        self, engine: EngineControl, old: ServedPolicy, *, pause: Literal["keep", "abort"] | None
    ) -> None:
        """Load the old weights again. Raises EngineBroken. pause: of an engine that samples; abort where it
        runs on weights that were refused: none of those completions may be returned."""
        try:
            if pause is not None:
                await engine.pause(pause)
            await engine.reload_weights(self._host.prepare(old.policy))
            await engine.update_weight_version(proven_label(old.version))
            await engine.reset_prefix_cache(recompute_running=True)
            await engine.resume()
        except (EngineError, VersionRefused) as error:
            raise EngineBroken(f"v{old.version} cannot be loaded again: {error}") from error


class _RefusedAfterResume(VersionRefused):
    """The canary disagreed when requests were running again."""

    def __init__(self, why: VersionRefused) -> None:
        super().__init__(why.kind, why.detail, may_pass_later=why.may_pass_later)


def _are_others(old: ServedPolicy, new: Policy) -> bool:
    """Whether scores must differ: equal ones would mean that the engine kept its weights."""
    return new.weights_digest != old.policy.weights_digest


def _rows(policy: Policy) -> Sequence[Sequence[int]]:
    return [row.token_ids for row in policy.canary]


def _as_refusal(error: VersionRefused | EngineError, policy: Policy) -> VersionRefused:
    if isinstance(error, VersionRefused):
        return error
    detail = f"v{policy.target.version}: {error}"
    # A refusal is about the version; silence or a crash may be about anything.
    may_pass_later = not isinstance(error, EngineRejected)
    return VersionRefused(FailureKind.ENGINE_ERROR, detail, may_pass_later=may_pass_later)
