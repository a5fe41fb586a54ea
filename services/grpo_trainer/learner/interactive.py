"""A learner whose passes and updates are called one at a time."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from grpo_math.divergence import MismatchSums
from grpo_math.losses import CrossEntropy
from grpo_math.objective import Objective
from grpo_math.packing import Microbatch, TrainingRow, pack, row_cuts
from grpo_trainer.domain.errors import InvalidInput, InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.core import CANARY_ROWS, step_options
from grpo_trainer.learner.gradient_sums import GradientSums
from grpo_trainer.learner.interactive_rows import CreditedRow, credited_rows, num_without_spread, weighted
from grpo_trainer.learner.optimization import Gradient, StepOptions, accumulate, mismatch_metrics
from grpo_trainer.learner.packed_model import PackedModel
from grpo_trainer.learner.prepared import Adam, DatumValues, LossSpec, MeasuredPass, Normalize, PreparedBatch
from grpo_trainer.learner.torch_learner import LearnerThread, TorchLearner, misfit
from upcycle.run_config import loss_refusals

_AS_GIVEN: Final = Objective(CrossEntropy(), aggregation="sum")
"""-sum(weight * logprob): its gradient is the one that the client computed."""


class TorchInteractiveLearner(TorchLearner):
    """A learner whose gradients accumulate over calls. A failed call leaves the gradients as they were."""

    def __init__(self, thread: LearnerThread) -> None:
        super().__init__(thread)
        self._gradients: GradientSums | None = None

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        """A fresh optimizer on the weights of a HF directory. Raises InvalidTrainingSpec, OutOfMemory."""
        self._refuse(spec)
        await super().begin(spec, base)
        self._gradients = GradientSums(self._loaded()[1])

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        """The learner as it was when `tensors` was saved. Raises BrokenArtifact, OutOfMemory."""
        self._refuse(spec)
        await super().resume(spec, base, tensors)
        self._gradients = GradientSums(self._loaded()[1])

    def _refuse(self, spec: TrainingSpec) -> None:
        if not spec.schedule.is_flat:
            raise InvalidTrainingSpec(
                f"lr_schedule={spec.lr_schedule} with warmup_steps={spec.warmup_steps}: interactive "
                "training has no fixed number of steps; give each optim_step its learning_rate"
            )
        if self._thread.options.ranks > 1:
            raise InvalidTrainingSpec(
                f"interactive training computes in one process, this trainer has "
                f"{self._thread.options.ranks} ranks: start one with GRPO_TRAINER_RANKS=1"
            )

    async def close(self) -> None:
        """Free the memory of model and gradients."""
        self._gradients = None
        await super().close()

    async def forward(self, batch: PreparedBatch) -> tuple[DatumValues, ...]:
        """Log-probabilities of all rows under the present weights. Raises InvalidInput."""
        return await self._thread.run(lambda: self._forward(self._rows(batch)))

    async def forward_backward(
        self, batch: PreparedBatch, loss: LossSpec, num_substeps: int, *, logprobs: bool = False
    ) -> MeasuredPass:
        """Adds the gradient of a loss; the update divides the sum by its tokens, unless loss.normalize says
        otherwise. logprobs: return those of the rows. Raises InvalidInput."""
        return await self._thread.run(lambda: self._forward_backward(batch, loss, num_substeps, logprobs))

    async def backward(self, batch: PreparedBatch, weights: Sequence[Sequence[float]]) -> MeasuredPass:
        """Adds the gradient of -sum(weights * logprobs), per datum of `forward`. Raises InvalidInput."""
        return await self._thread.run(lambda: self._backward(batch, weights))

    async def apply(self, adam: Adam) -> Mapping[str, float]:
        """One update with all accumulated gradients. Raises Diverged, with the weights untouched."""
        return {"grad_norm": await self._thread.run(lambda: self._sums().apply(adam))}

    async def drop(self) -> None:
        """Forget the accumulated gradients."""
        await self._thread.run(lambda: self._sums().drop())

    def _sums(self) -> GradientSums:
        if self._gradients is None:
            raise RuntimeError("the learner was not begun")
        return self._gradients

    def _rows(self, batch: PreparedBatch) -> list[CreditedRow]:
        """Rows that this model can take, with their credit."""
        config = self._loaded()[0].module.config
        for one in batch.inputs:
            for row in one.rows:
                if (why := misfit(config, row.token_ids)) is not None:
                    raise InvalidInput(f"{one.name}: {why}")
        return credited_rows(batch)

    def _options(self, loss: LossSpec) -> StepOptions:
        if self._spec is None:
            raise RuntimeError("the learner was not begun")
        if refused := loss_refusals(loss.name, loss.config):
            raise InvalidInput("; ".join(refused))
        options = step_options(self._spec, self._thread.options, loss)
        if not options.objective.needs_reference:
            return options
        return replace(options, reference=self._thread.group.core(self._session).reference())

    def _forward(self, credited: Sequence[CreditedRow]) -> tuple[DatumValues, ...]:
        model, _ = self._loaded()
        options = self._thread.options
        logprobs: dict[str, Tensor] = {}
        rows, share_prefixes = [one.row for one in credited], options.share_prefixes
        for cut in row_cuts(rows, max_tokens=options.microbatch_tokens, share_prefixes=share_prefixes):
            logprobs.update(_logprobs(model, cut, share_prefixes=share_prefixes))
        return tuple(_datum(one, logprobs[one.row.row_id]) for one in credited)

    def _forward_backward(
        self, batch: PreparedBatch, loss: LossSpec, num_substeps: int, logprobs: bool
    ) -> MeasuredPass:
        model, _ = self._loaded()
        options, credited = self._options(loss), self._rows(batch)
        rows = [one.row for one in credited]
        longest = max(row.num_trained for row in rows)
        size = math.ceil(len(rows) / min(num_substeps, len(rows)))
        slices = [rows[first : first + size] for first in range(0, len(rows), size)]
        scores = _Scores()
        passes = [_mean_pass(model, part, options, longest, scores) for part in slices]
        parts = self._sums().of_tokens(passes, loss.normalize)
        self._thread.group.core(self._session).canary_rows = rows[:CANARY_ROWS]
        measured = _measured(batch, credited, parts, loss.normalize)
        return replace(measured, logprobs=tuple(map(scores.of, credited))) if logprobs else measured

    def _backward(self, batch: PreparedBatch, weights: Sequence[Sequence[float]]) -> MeasuredPass:
        model, _ = self._loaded()
        credited = self._rows(batch)
        if len(weights) != len(credited):
            raise InvalidInput(f"the forward pass had {len(credited)} datums, weights are of {len(weights)}")
        rows = [
            weighted(one, _per_token(number, one.row, values))
            for number, (one, values) in enumerate(zip(credited, weights, strict=True))
        ]
        options = replace(self._options(LossSpec()), objective=_AS_GIVEN)
        part = self._sums().as_given(lambda: _gradient(model, rows, options))
        self._thread.group.core(self._session).canary_rows = [one.row for one in credited[:CANARY_ROWS]]
        measured = _measured(batch, credited, [part])
        # The sum of weighted log-probabilities is not the client's loss, so it is left out.
        return replace(measured, metrics={k: v for k, v in measured.metrics.items() if k != "loss"})


class _Scores:
    """Log-probabilities of the trained tokens of rows, by row id, as a pass computes them."""

    def __init__(self) -> None:
        self._by_row: dict[str, Tensor] = {}

    def add(self, batch: Microbatch, logprobs: Tensor) -> None:
        """Those of one microbatch [N]."""
        counts = torch.bincount(batch.row_of_token, minlength=batch.num_rows).tolist()
        parts = torch.split(logprobs.float().cpu(), counts)
        self._by_row.update(zip(batch.row_ids, parts, strict=True))

    def of(self, credited: CreditedRow) -> Sequence[float]:
        """Per token of a row from its second on; 0 where it is not trained. An array: 4 bytes a value, since
        the results of many passes are remembered."""
        row = credited.row
        return array("f", _spread(row, self._by_row.get(row.row_id, torch.empty(0))).tolist())


def _gradient(
    model: PackedModel,
    rows: Sequence[TrainingRow],
    options: StepOptions,
    longest: int = 0,
    scores: _Scores | None = None,
) -> Gradient:
    scored = None if scores is None else scores.add
    gradient = accumulate(model, rows, options, max_row_tokens=longest, scored=scored)
    if gradient is None:
        raise InvalidInput("no token of the batch is trained")
    if not math.isfinite(gradient.loss):
        raise InvalidInput(f"the loss of the batch is {gradient.loss}: nothing was accumulated")
    return gradient


def _mean_pass(
    model: PackedModel, rows: Sequence[TrainingRow], options: StepOptions, longest: int, scores: _Scores
) -> Callable[[], tuple[Gradient, int]]:
    """One slice of a batch, to be called: leaves the mean gradient over its tokens."""

    def work() -> tuple[Gradient, int]:
        gradient = _gradient(model, rows, options, longest, scores)
        return gradient, gradient.num_trained

    return work


@torch.no_grad()
def _logprobs(model: PackedModel, rows: Sequence[TrainingRow], *, share_prefixes: bool) -> dict[str, Tensor]:
    """[N] of each row, by its id."""
    batch = pack(rows, share_prefixes=share_prefixes).to(model.device)
    values, _ = model.logprobs(batch)
    parts = torch.split(values.cpu(), [row.num_trained for row in rows])
    return {row.row_id: part for row, part in zip(rows, parts, strict=True)}


def _datum(credited: CreditedRow, logprobs: Tensor) -> DatumValues:
    row = credited.row
    trained = row.trained[1:]
    policy = _spread(row, logprobs)
    sampler = torch.where(trained, row.sampler_logprobs[1:], 0.0)
    sampler = torch.where(torch.isfinite(sampler), sampler, policy)  # unknown: the ratio is 1
    return DatumValues(
        input_index=credited.input_index,
        group_index=credited.group_index,
        reward=credited.reward,
        advantage=credited.advantage,
        logprobs=policy.tolist(),
        sampling_logprobs=sampler.tolist(),
        mask=trained.float().tolist(),
        token_ids=row.token_ids[1:].tolist(),
    )


def _spread(row: TrainingRow, values: Tensor) -> Tensor:
    """[L-1] values of the trained tokens [N] at their places, 0 at the others."""
    trained = row.trained[1:]
    return torch.zeros(trained.shape[0]).masked_scatter(trained, values.float())


def _per_token(number: int, row: TrainingRow, values: Sequence[float]) -> Tensor:
    """[L] weights of a row, of which the caller knows all but the first."""
    length = row.token_ids.shape[0] - 1
    if len(values) != length:
        raise InvalidInput(f"datum {number} has {length} tokens, and {len(values)} weights came for it")
    weights = torch.tensor([0.0, *values])
    if not torch.isfinite(weights[row.trained]).all():
        raise InvalidInput(f"datum {number}: a weight is not finite; is the loss?")
    return weights


def _measured(
    batch: PreparedBatch,
    credited: Sequence[CreditedRow],
    parts: Sequence[Gradient],
    normalize: Normalize = Normalize.TOKENS,
) -> MeasuredPass:
    tokens = sum(part.num_trained for part in parts)
    loss = sum(part.loss * part.num_trained for part in parts)
    metrics = {
        **mismatch_metrics(sum((part.sums for part in parts), MismatchSums())),
        "loss": loss / tokens,
        **({"loss_sum": loss} if normalize is Normalize.SUM else {}),
        "tokens": float(tokens),
        "row_tokens": float(sum(part.num_row_tokens for part in parts)),
        "datums": float(len(credited)),
        "num_trajectories": float(len(batch.inputs)),
        "untrainable": float(sum(one.is_untrainable for one in batch.inputs)),
        "groups_without_spread": float(num_without_spread(batch)),
    }
    rewards = [one.reward for one in batch.inputs if one.reward is not None]
    if rewards:
        metrics["reward_mean"] = sum(rewards) / len(rewards)
    trajectory_ids = tuple(one.trajectory_id for one in batch.inputs if one.trajectory_id)
    return MeasuredPass(metrics, len(credited), trajectory_ids, batch.groups)
