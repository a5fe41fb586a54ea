"""What an interactive pass is computed from, and what it gives back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum

from grpo_trainer.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Adam:
    """One update of AdamW. max_grad_norm: 0 leaves the gradient as it is."""

    learning_rate: float
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        wrong = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
        wrong += [f"{n} is {values[n]:g}, it must be > 0" for n in ("learning_rate", "eps") if values[n] <= 0]
        wrong += [
            f"{n} is {values[n]:g}, it must be in [0, 1)"
            for n in ("beta1", "beta2")
            if not 0 <= values[n] < 1
        ]
        wrong += [
            f"{n} is {values[n]:g}, it must be >= 0"
            for n in ("weight_decay", "max_grad_norm")
            if values[n] < 0
        ]
        decay = values["learning_rate"] * values["weight_decay"]
        if not wrong and decay > 1:
            wrong.append(
                f"learning_rate * weight_decay is {decay:g}, it must be <= 1: it is the decayed share"
            )
        if wrong:
            raise InvalidInput("; ".join(wrong))


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """What one forward and backward pass added. num_datums: rows; trajectory_ids: those of the store;
    groups: their runs and groups. logprobs: per row, of each of its tokens from the second on, under the
    weights that the gradient is of, 0 where not trained; empty if they were not asked for."""

    metrics: Mapping[str, float]
    num_datums: int
    trajectory_ids: tuple[str, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()
    logprobs: tuple[Sequence[float], ...] = ()


@dataclass(frozen=True, slots=True)
class DatumValues:
    """One row of a forward pass, per token from its second on; 0 where mask is 0."""

    input_index: int
    group_index: int | None
    reward: float
    advantage: float
    logprobs: Sequence[float]
    sampling_logprobs: Sequence[float]
    mask: Sequence[float]
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """One context, arrays of equal length L. logprobs: the sampler's, NaN where there is none; weights, if
    any: of the SFT loss; advantages, if any: per token, instead of the trajectory's."""

    token_ids: Sequence[int]
    trained: Sequence[int]
    logprobs: Sequence[float]
    turns: Sequence[int]
    temperature: float
    weights: Sequence[float] | None = None
    advantages: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class PreparedInput:
    """One trajectory. sampled: it holds the sampler's log-probabilities. task: its digest, of a stored
    trajectory or as the caller names it. run_id and group_id: of a stored trajectory.

    Without rows no token of it may be trained: its reward counts in its group, and it teaches nothing."""

    name: str
    rows: tuple[PreparedRow, ...]
    reward: float | None
    sampled: bool = True
    task: str = ""
    trajectory_id: str = ""
    oldest_version: int | None = None
    run_id: str = ""
    group_id: str = ""

    @property
    def needs_reward(self) -> bool:
        """Its credit is not in its rows."""
        return not self.rows or any(row.advantages is None for row in self.rows)

    @property
    def is_untrainable(self) -> bool:
        """No token of it is trained."""
        return not any(any(row.trained) for row in self.rows)


class Normalize(Enum):
    """What the gradient of a pass is divided by: the trained tokens of all such passes of a step, or
    nothing."""

    TOKENS = "tokens"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class LossSpec:
    """A loss by its name, and its numbers."""

    name: str = "importance_sampling"
    config: Mapping[str, float] = field(default_factory=dict)
    normalize: Normalize = Normalize.TOKENS


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """Inputs with their groups: group g holds inputs[g * size : (g + 1) * size]; None without groups."""

    inputs: tuple[PreparedInput, ...]
    group_size: int | None
    reward_scale: float
    advantage: str

    @property
    def tasks(self) -> tuple[str, ...]:
        """Digests of the tasks that are known, sorted."""
        return tuple(sorted({one.task for one in self.inputs if one.task}))

    @property
    def runs(self) -> tuple[str, ...]:
        """Runs of its stored trajectories, sorted."""
        return tuple(sorted({one.run_id for one in self.inputs if one.run_id}))

    def metrics_at(self, version: int) -> dict[str, float]:
        """Of its inputs, when weights of this version train on them."""
        versions = [one.oldest_version for one in self.inputs if one.oldest_version is not None]
        age = {"staleness_max": float(version - min(versions))} if versions else {}
        return {**age, "without_task": float(sum(not one.task for one in self.inputs))}

    def named_in(self, refusal: str) -> str:
        """The inputs of the task that a refusal names by the first letters of its digest; for people."""
        names = [one.name for one in self.inputs if one.task and one.task[:12] in refusal]
        return ", ".join(names[:5]) or "an input"

    @property
    def groups(self) -> tuple[tuple[str, str], ...]:
        """Run and group of the stored trajectories that have something to train, each once."""
        stored = (one for one in self.inputs if one.run_id and one.rows)
        return tuple(dict.fromkeys((one.run_id, one.group_id or one.trajectory_id) for one in stored))
