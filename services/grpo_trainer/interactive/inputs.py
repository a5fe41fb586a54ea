"""Inputs of interactive training: stored trajectories, inline trajectories, conversations, rows of tokens.

All become `PreparedInput`s, rows of tokens with what is known about each; groups are consecutive slices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

from grpo_trainer.domain.errors import InvalidInput, PartialGroup
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.learner.prepared import LossSpec, PreparedBatch, PreparedInput, PreparedRow
from upcycle.api.trajectory.v1.trajectory_pb2 import TokenVersions, Turn
from upcycle.run_config import SFT_LOSS

MIN_LOGPROB: Final = -1e4
"""Of a token that trains: below it a ratio of probabilities is no number any more."""
MAX_LOGPROB: Final = 1e-3
"""0 but for rounding."""
_TEMPERATURES: Final = (1e-6, 1e6)


@dataclass(frozen=True, slots=True)
class StoredInput:
    """A trajectory that the platform holds. reward: instead of the recorded one."""

    trajectory_id: str
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn: the whole prompt, what was sampled, and with which log-probabilities."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    output_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class InlineInput:
    """A trajectory that the caller brings."""

    name: str
    samples: tuple[Sample, ...]
    temperature: float
    reward: float | None
    task: str = ""
    """Digest of its task, where the caller names it; so in the others that a caller brings."""


@dataclass(frozen=True, slots=True)
class ConversationInput:
    """Messages of which the assistant's are to be learnt; `messages` and `tools` as chat templates read
    them."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    weight: float
    last_turn_only: bool
    task: str = ""
    observation_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class RowInput:
    """Token ids with one value per token, aligned to the token itself; logprobs and advantages may be
    empty."""

    name: str
    token_ids: Sequence[int]
    weights: Sequence[float]
    logprobs: Sequence[float]
    advantages: Sequence[float]
    temperature: float
    reward: float | None
    task: str = ""


TrainingInput = StoredInput | InlineInput | ConversationInput | RowInput


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """group_size: None: the whole batch is one group. Rewards are multiplied by reward_scale."""

    group_size: int | None = None
    reward_scale: float = 1.0
    advantage: str = "dr_grpo"

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size < 1:
            raise InvalidInput(
                f"group_size is {self.group_size}; groups have at least 1 member, and 2 to compare"
            )
        if not math.isfinite(self.reward_scale):
            raise InvalidInput(f"reward_scale is {self.reward_scale}, it must be finite")


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of this rank train, on a base that stays as it is; rank 0: all weights do."""

    rank: int = 0
    alpha: float = 0.0
    targets: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass. num_substeps: slices that it is computed in, one after another.

    lora: what trains; None: what trained last, at first all weights. logprobs: the pass returns them.
    """

    inputs: tuple[TrainingInput, ...]
    options: BatchOptions = field(default_factory=BatchOptions)
    loss: LossSpec = field(default_factory=LossSpec)
    num_substeps: int = 1
    lora: Lora | None = None
    logprobs: bool = False

    def __post_init__(self) -> None:
        if self.num_substeps < 1:
            raise InvalidInput(f"num_substeps is {self.num_substeps}, it must be >= 1")


def prepared_batch(inputs: Sequence[PreparedInput], options: BatchOptions, loss: LossSpec) -> PreparedBatch:
    """The batch, if the loss can be computed on it. Raises InvalidInput, PartialGroup."""
    if not inputs:
        raise InvalidInput("the batch is empty: nothing can be trained on it")
    if not any(one.rows for one in inputs):
        others = f", nor of the other {len(inputs) - 1}" if len(inputs) > 1 else ""
        raise InvalidInput(f"{inputs[0].name}: no token of it may be trained{others}")
    if loss.name == SFT_LOSS:
        if options.group_size is not None:
            raise InvalidInput(
                f"{SFT_LOSS} compares no rollouts, so group_size={options.group_size} would be ignored: "
                "leave it out"
            )
        return PreparedBatch(tuple(inputs), None, options.reward_scale, options.advantage)
    for one in inputs:
        _refuse_unsampled(one, loss)
    if not any(one.needs_reward for one in inputs):
        return PreparedBatch(tuple(inputs), None, options.reward_scale, options.advantage)
    size = _checked_size(inputs, options)
    return PreparedBatch(tuple(inputs), size, options.reward_scale, options.advantage)


def _refuse_unsampled(one: PreparedInput, loss: LossSpec) -> None:
    if not one.sampled:
        raise InvalidInput(
            f"{one.name} has no sampling log-probabilities, which loss {loss.name!r} needs; "
            f"{SFT_LOSS} does not"
        )
    if one.needs_reward and (one.reward is None or not math.isfinite(one.reward)):
        raise InvalidInput(f"{one.name} has reward {one.reward}: it must be graded, or be given one")


def _checked_size(inputs: Sequence[PreparedInput], options: BatchOptions) -> int:
    size = len(inputs) if options.group_size is None else options.group_size
    odd = len(inputs) % size
    if odd:
        raise PartialGroup(
            f"{len(inputs)} inputs are not whole groups of {size}: the last group has {odd} member(s); "
            "a rollout is compared with all others of its group, so leave the group out or complete it"
        )
    if options.group_size is None and size == 1:
        raise PartialGroup(
            "one input without group_size is a group of one, which has nothing to be compared with; "
            "group_size=1 takes the reward itself as its advantage"
        )
    for first in range(0, len(inputs), size):
        tasks = {one.task: one.name for one in inputs[first : first + size] if one.task}
        if options.group_size is not None and len(tasks) > 1:
            raise PartialGroup(
                f"the group of inputs {first}..{first + size - 1} mixes tasks ({', '.join(tasks.values())}): "
                "groups are consecutive inputs of one task; sort the inputs, or correct group_size"
            )
    return size


def turns_of(name: str, samples: Sequence[Sample]) -> list[Turn]:
    """Turns by the extension property: a prompt that repeats all earlier tokens continues the row."""
    turns: list[Turn] = []
    before: list[int] = []
    for number, sample in enumerate(samples):
        if len(sample.output_logprobs) != len(sample.output_ids):
            raise InvalidInput(
                f"{name} sample {number}: {len(sample.output_ids)} output tokens and "
                f"{len(sample.output_logprobs)} logprobs"
            )
        prompt = list(sample.prompt_ids)
        extends = bool(before) and prompt[: len(before)] == before
        turns.append(
            Turn(
                new_prompt_ids=prompt[len(before) :] if extends else prompt,
                sampled_ids=sample.output_ids,
                sampled_logprobs=sample.output_logprobs,
                versions=[TokenVersions(num_tokens=len(sample.output_ids))],
                restarts_context=not extends,
            )
        )
        before = prompt + list(sample.output_ids)
    return turns


def refuse_no_numbers(given: InlineInput) -> None:
    """Raises InvalidInput for a log-probability or a temperature that is none."""
    refuse_no_temperature(given.name, given.temperature)
    for number, sample in enumerate(given.samples):
        refuse_no_logprob(f"{given.name} sample {number}", sample.output_logprobs)


def refuse_no_logprob(name: str, logprobs: Iterable[float]) -> None:
    """Raises InvalidInput for a value that is none, NaN included."""
    for value in logprobs:
        if not MIN_LOGPROB <= value <= MAX_LOGPROB:
            raise InvalidInput(
                f"{name}: the log-probability {value:g} of a trained token is none, "
                f"they are from {MIN_LOGPROB:g} to 0"
            )


def refuse_no_temperature(name: str, temperature: float) -> None:
    """Raises InvalidInput for a value that none samples at, NaN included."""
    low, high = _TEMPERATURES
    if not low <= temperature <= high:
        raise InvalidInput(f"{name}: temperature is {temperature:g}, it must be from {low:g} to {high:g}")


def rows_of(tokens: EpisodeTokens, weight: float | None = None) -> tuple[PreparedRow, ...]:
    """The rows of an episode that have something to train, without turns that could not be read. weight: of
    each trained token."""
    return tuple(
        PreparedRow(
            row.token_ids,
            row.trained,
            row.logprobs,
            row.turns,
            tokens.temperature,
            weights=None if weight is None else [weight * trained for trained in row.trained],
        )
        for row in (each.readable for each in tokens.rows)
        if any(row.trained)
    )


def row_of(given: RowInput) -> PreparedRow:
    """The row that a caller spelled out. Raises InvalidInput where its arrays disagree."""
    length = len(given.token_ids)
    for what in ("weights", "logprobs", "advantages"):
        values = getattr(given, what)
        if values and len(values) != length:
            raise InvalidInput(f"{given.name}: {length} token_ids and {len(values)} {what}")
    finite = (*given.weights, *given.advantages)
    if not all(map(math.isfinite, finite)):
        raise InvalidInput(f"{given.name}: a weight or an advantage is not finite")
    chosen = given.weights or given.advantages
    if not chosen:
        raise InvalidInput(f"{given.name}: a row needs weights or advantages: which tokens are trained?")
    trained = [value != 0.0 for value in chosen]
    if length < 2 or trained[0]:
        raise InvalidInput(f"{given.name}: a row has 2 tokens or more, and nothing predicts the first")
    refuse_no_logprob(given.name, compress(given.logprobs, trained))
    refuse_no_temperature(given.name, given.temperature)
    return PreparedRow(
        token_ids=given.token_ids,
        trained=trained,
        logprobs=given.logprobs or [math.nan] * length,
        turns=[0] * length,
        temperature=given.temperature,
        weights=given.weights or None,
        advantages=given.advantages or None,
    )
