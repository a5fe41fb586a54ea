"""Turns the inputs of a pass into rows of tokens: fetches, renders and checks them; without side effects."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from episodes.identity import Split
from grpo_trainer.domain.errors import HeldOutInput, InvalidInput, UnknownTrajectory, UnusableTrajectory
from grpo_trainer.domain.token_rows import episode_tokens
from grpo_trainer.interactive.conversations import ChatConversations
from grpo_trainer.interactive.deps import StoredTrajectory, Trajectories
from grpo_trainer.interactive.inputs import (
    ConversationInput,
    InlineInput,
    RowInput,
    Sample,
    StoredInput,
    TrainingInput,
    refuse_no_numbers,
    row_of,
    rows_of,
    turns_of,
)
from grpo_trainer.learner.prepared import LossSpec, PreparedInput
from grpo_trainer.retrying import RetryUntilAvailable
from upcycle.run_config import SFT_LOSS

_CONCURRENCY: Final = 16
_INDEX_PAUSE_S: Final = 0.2
_INDEX_WAIT_S: Final = 10.0
"""How long to wait for a trajectory, or its reward: the store indexes them after the run's events."""


class Preparer:
    """Prepares several inputs at once; the results are in the order of the inputs."""

    def __init__(
        self, trajectories: Trajectories, conversations: ChatConversations, retry: RetryUntilAvailable
    ) -> None:
        self._trajectories = trajectories
        self._conversations = conversations
        self._retry = retry

    async def prepare(
        self, inputs: Sequence[TrainingInput], policy: Path, loss: LossSpec
    ) -> list[PreparedInput]:
        """Raises InvalidInput, HeldOutInput, UnknownTrajectory, naming the input."""
        limit = asyncio.Semaphore(_CONCURRENCY)

        async def one(given: TrainingInput) -> PreparedInput:
            async with limit:
                return await self._one(given, policy, loss)

        return list(await asyncio.gather(*map(one, inputs)))

    async def _one(self, given: TrainingInput, policy: Path, loss: LossSpec) -> PreparedInput:
        match given:
            case StoredInput():
                return await self._stored(given, policy, loss)
            case InlineInput():
                refuse_no_numbers(given)
                weight = 1.0 if loss.name == SFT_LOSS else None
                brought = _from_samples(given.name, given.samples, given.temperature, given.reward, weight)
            case ConversationInput():
                brought = await self._rendered(given, policy)
            case RowInput():
                sampled = bool(given.logprobs)
                brought = PreparedInput(given.name, (row_of(given),), given.reward, sampled=sampled)
        return replace(brought, task=given.task)

    async def _rendered(self, given: ConversationInput, policy: Path) -> PreparedInput:
        samples = await self._conversations.samples(given, policy)
        said = _unsampled(_from_samples(given.name, samples, 1.0, None, given.weight))
        return said if not given.observation_weight else _with_observations(said, given.observation_weight)

    async def _stored(self, given: StoredInput, policy: Path, loss: LossSpec) -> PreparedInput:
        try:
            found = await self._within_wait(given, loss)
        except UnusableTrajectory as error:
            raise InvalidInput(str(error)) from error
        if found.split.never_trains:
            kind = "a held-out" if found.split is Split.HELD_OUT else "an audit"
            raise HeldOutInput(
                f"{given.trajectory_id} is of {kind} task, which must never train; "
                "take trajectories of a training taskset"
            )
        reward = found.reward if given.reward is None else given.reward
        if isinstance(found.content, ConversationInput):
            said = await self._rendered(found.content, policy)
            return replace(said, reward=reward, task=found.task_digest, trajectory_id=found.content.name)
        rows = rows_of(found.content, 1.0 if loss.name == SFT_LOSS else None)
        return PreparedInput(
            name=given.trajectory_id,
            rows=rows,
            reward=reward,
            task=found.task_digest,
            trajectory_id=found.content.trajectory_id,
            oldest_version=found.content.oldest_version if rows else None,
            run_id=found.run_id,
            group_id=found.group_id,
        )

    async def _within_wait(self, given: StoredInput, loss: LossSpec) -> StoredTrajectory:
        needs_reward = loss.name != SFT_LOSS and given.reward is None
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _INDEX_WAIT_S
        while True:
            try:
                found = await self._retry.until_available(lambda: self._trajectories.get(given.trajectory_id))
                if found.reward is not None or not needs_reward or loop.time() > give_up_at:
                    return found
            except UnknownTrajectory:
                if loop.time() > give_up_at:
                    raise
            await asyncio.sleep(_INDEX_PAUSE_S)


def _from_samples(
    name: str, samples: tuple[Sample, ...], temperature: float, reward: float | None, weight: float | None
) -> PreparedInput:
    try:
        turns = turns_of(name, samples)
        if not any(turn.sampled_ids for turn in turns):
            return PreparedInput(name, (), reward)
        tokens = episode_tokens(name, turns, temperature=temperature, train_parse_errors=True)
    except UnusableTrajectory as error:
        raise InvalidInput(str(error)) from error
    return PreparedInput(name, rows_of(tokens, weight), reward)


def _with_observations(prepared: PreparedInput, weight: float) -> PreparedInput:
    """Train the other tokens of each row too, with this weight; nothing predicts the first one."""
    rows = tuple(
        replace(
            row,
            trained=[at > 0 for at in range(len(row.token_ids))],
            weights=[0.0, *(own or weight for own in (row.weights or ())[1:])],
        )
        for row in prepared.rows
    )
    return replace(prepared, rows=rows)


def _unsampled(prepared: PreparedInput) -> PreparedInput:
    """Mark tokens that were not sampled: their log-probabilities are unknown."""
    rows = tuple(replace(row, logprobs=[float("nan")] * len(row.token_ids)) for row in prepared.rows)
    return replace(prepared, rows=rows, sampled=False)
