"""One optimizer step: the same code for the service, for parity checks and for experiments.

Denominators are of the whole step and known before the first backward, so the cut into microbatches does
not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_math.aggregation import StepTotals
from grpo_math.divergence import MismatchSums, kl_estimate, mismatch_report, mismatch_sums
from grpo_math.errors import GrpoMathError
from grpo_math.objective import Objective, decision_entropy, entropy_threshold
from grpo_math.packing import Microbatch, TrainingRow, microbatches, pack
from grpo_math.tokens import TrainedTokens
from grpo_trainer.domain.errors import Diverged
from grpo_trainer.learner.memory import is_out_of_memory, let_go, out_of_memory
from grpo_trainer.learner.packed_model import PolicyModel
from grpo_trainer.learner.ranks import ALONE, Ranks
from grpo_trainer.learner.sharding import whole

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is computed. clip_low, clip_high: bounds that the clip fractions are counted against.
    reference: the frozen policy of a KL penalty."""

    objective: Objective
    max_grad_norm: float = 1.0
    microbatch_tokens: int = 8192
    share_prefixes: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.28
    reference: PolicyModel | None = None

    def with_kl(self, factor: float) -> StepOptions:
        """With a KL weight so many times as large."""
        kl = self.objective.kl
        if kl is None or factor == 1.0:
            return self
        weighted = replace(kl, coefficient=kl.coefficient * factor)
        return replace(self, objective=replace(self.objective, kl=weighted))


@dataclass(frozen=True, slots=True)
class Gradient:
    """What accumulating the gradient of a step measured."""

    loss: float
    sums: MismatchSums
    num_rows: int
    num_row_tokens: int
    num_unique_tokens: int
    num_trained: int
    decision_entropy: float


def trained_tokens(batch: Microbatch, logprobs: Tensor, entropies: Tensor) -> TrainedTokens:
    """The losses' view of a microbatch."""
    dtype = logprobs.dtype
    proximal, reference = batch.proximal_logprobs, batch.reference_logprobs
    return TrainedTokens(
        trainer_logprobs=logprobs,
        sampler_logprobs=batch.sampler_logprobs.to(dtype),
        advantages=batch.advantages.to(dtype),
        row_of_token=batch.row_of_token,
        num_rows=batch.num_rows,
        proximal_logprobs=None if proximal is None else proximal.to(dtype),
        reference_logprobs=None if reference is None else reference.to(dtype),
        entropies=entropies,
        turn_of_token=batch.turn_of_token,
        row_shares=batch.row_shares.to(dtype),
    )


def accumulate(
    model: PolicyModel,
    rows: Sequence[TrainingRow],
    options: StepOptions,
    ranks: Ranks = ALONE,
    *,
    max_row_tokens: int,
    scored: Callable[[Microbatch, Tensor], None] | None = None,
) -> Gradient | None:
    """Adds the gradient of the step's loss to the parameters. None where no token is trained.

    rows: of this rank; all ranks call this together, and what is returned is of all of them. max_row_tokens:
    the constant of the aggregation `constant_length`. scored: called with each microbatch and the [N]
    log-probabilities that its gradient is of.
    """
    rows = [row for row in rows if row.num_trained]
    cuts = microbatches(rows, max_tokens=options.microbatch_tokens, share_prefixes=options.share_prefixes)
    batches = [batch.to(model.device) for batch in cuts]
    totals = _totals(rows, batches, ranks, max_row_tokens)
    if totals is None:
        return None
    num_dummy = int(ranks.largest(len(batches))) - len(batches)
    batches, totals = _prepared(model, batches, totals, options, ranks, num_dummy)
    total, sums = 0.0, MismatchSums()
    uncertain = [torch.empty(0, device=model.device)]
    for batch in batches:
        logprobs, entropies = model.logprobs(batch)
        tokens = trained_tokens(batch, logprobs, entropies)
        loss = options.objective(tokens, totals)
        loss.backward()  # type: ignore[no-untyped-call]
        uncertain.append(entropies.detach())
        total += float(loss.detach())
        if scored is not None:
            scored(batch, logprobs.detach())
        sums += mismatch_sums(tokens, clip_low=options.clip_low, clip_high=options.clip_high)
    _add_nothing(model, num_dummy)
    deciding = decision_entropy(ranks.joined(torch.cat(uncertain)))
    return replace(_of_all_ranks(batches, total, sums, totals, ranks), decision_entropy=deciding)


def _add_nothing(model: PolicyModel, times: int) -> None:
    """As often as other ranks have more batches, since all of them sum gradients together."""
    for _ in range(times):
        logprobs, entropies = model.logprobs(_dummy().to(model.device))
        nothing = 0.0 * (logprobs.sum() + entropies.sum())
        nothing.backward()  # type: ignore[no-untyped-call]


def _totals(
    rows: Sequence[TrainingRow], batches: Sequence[Microbatch], ranks: Ranks, max_row_tokens: int
) -> StepTotals | None:
    """The denominators of the step, over all ranks; None where no rank has a token to train. rows, batches:
    of this rank."""
    counts = [
        float(sum(batch.num_trained for batch in batches)),
        float(len(rows)),
        sum(row.trajectory_share for row in rows),
    ]
    num_tokens, num_rows, num_trajectories = ranks.total(counts)
    if not num_tokens:
        return None
    return StepTotals(int(num_tokens), int(num_rows), max_row_tokens, num_trajectories=num_trajectories)


def _dummy() -> Microbatch:
    """A microbatch without effect: FSDP gathers parameters from all ranks in every pass, so a rank with fewer
    microbatches than another computes dummies to stay synchronized."""
    ids, trained = torch.zeros(2, dtype=torch.int64), torch.tensor([False, True])
    return pack([TrainingRow("dummy", "dummy", ids, trained, torch.zeros(2), advantage=0.0)])


def _of_all_ranks(
    batches: Sequence[Microbatch], loss: float, sums: MismatchSums, totals: StepTotals, ranks: Ranks
) -> Gradient:
    """What the ranks measured, added up."""
    num_row_tokens = sum(batch.num_row_tokens for batch in batches)
    num_unique_tokens = sum(batch.num_unique_tokens for batch in batches)
    own = asdict(sums)
    ratio_max = ranks.largest(own.pop("ratio_max"))
    added = ranks.total([loss, num_row_tokens, num_unique_tokens, *own.values()])
    everyone = MismatchSums(**dict(zip(own, added[3:], strict=True)), ratio_max=ratio_max)
    return Gradient(
        loss=added[0],
        sums=everyone,
        num_rows=totals.num_rows,
        num_row_tokens=int(added[1]),
        num_unique_tokens=int(added[2]),
        num_trained=totals.num_tokens,
        decision_entropy=0.0,
    )


def _prepared(
    model: PolicyModel,
    batches: list[Microbatch],
    totals: StepTotals,
    options: StepOptions,
    ranks: Ranks,
    num_dummy: int,
) -> tuple[list[Microbatch], StepTotals]:
    """Totals of the step, and what must be known of every token before the first backward."""
    objective = options.objective
    missing = [
        objective.needs_proximal and any(b.proximal_logprobs is None for b in batches),
        objective.needs_reference and any(b.reference_logprobs is None for b in batches),
    ]
    needs_proximal, needs_reference = (count > 0 for count in ranks.total([float(m) for m in missing]))
    if needs_reference:
        if options.reference is None:
            raise GrpoMathError("a KL penalty needs a reference policy, and this step has none")
        scores, _ = batch_scores(options.reference, batches, num_dummy)
        batches = [replace(b, reference_logprobs=s) for b, s in zip(batches, scores, strict=True)]
    if not (needs_proximal or objective.top_entropy < 1 or objective.kl_in_reward):
        return batches, totals
    scores, entropies = batch_scores(model, batches, num_dummy)
    if needs_proximal:
        batches = [replace(b, proximal_logprobs=s) for b, s in zip(batches, scores, strict=True)]
    if objective.kl_in_reward:
        batches = _credited(batches, scores, totals, objective, ranks)
    if objective.top_entropy < 1:
        everyone = ranks.joined(torch.cat([torch.empty(0, device=model.device), *entropies]))
        totals = replace(totals, entropy_threshold=entropy_threshold(everyone, objective.top_entropy))
    return batches, totals


@torch.no_grad()
def batch_scores(
    model: PolicyModel, batches: Sequence[Microbatch], num_dummy: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities and entropies of every microbatch; num_dummy: passes for other ranks."""
    scores = [model.logprobs(batch) for batch in batches]
    for _ in range(num_dummy):
        model.logprobs(_dummy().to(model.device))
    return [logprobs for logprobs, _ in scores], [entropies for _, entropies in scores]


def _credited(
    batches: Sequence[Microbatch],
    scores: Sequence[Tensor],
    totals: StepTotals,
    objective: Objective,
    ranks: Ranks,
) -> list[Microbatch]:
    """Microbatches whose advantages hold the KL of the step."""
    kl = objective.kl
    assert kl is not None  # noqa: S101 - the caller asked objective.kl_in_reward
    apart = [
        kl_estimate(score, batch.reference_logprobs.to(score.dtype), kl.kind)
        for batch, score in zip(batches, scores, strict=True)
        if batch.reference_logprobs is not None
    ]
    mean = ranks.total([sum(float(part.double().sum()) for part in apart)])[0] / totals.num_tokens
    return [
        replace(batch, advantages=kl.credited(batch.advantages, part, mean))
        for batch, part in zip(batches, apart, strict=True)
    ]


def mismatch_metrics(sums: MismatchSums) -> dict[str, float]:
    """How far trainer and sampler are apart, by metric name."""
    report = {name: float(value) for name, value in asdict(mismatch_report(sums)).items()}
    return {**report, "clip_fraction": report["clip_fraction_low"] + report["clip_fraction_high"]}


def _smaller(rows: Sequence[TrainingRow], options: StepOptions, said: str) -> StepOptions:
    """Options under which the largest pass that holds several rows is cut. Raises OutOfMemory where each pass
    holds one row."""
    rows = [row for row in rows if row.num_trained]
    cuts = microbatches(rows, max_tokens=options.microbatch_tokens, share_prefixes=options.share_prefixes)
    several = [cut.num_unique_tokens for cut in cuts if cut.num_rows > 1]
    if not several:
        longest = max(row.token_ids.shape[0] for row in rows)
        what = f"{len(rows)} rows do not fit in memory one at a time, the longest has {longest} tokens"
        raise out_of_memory(what, said)
    return replace(options, microbatch_tokens=max(1, min(options.microbatch_tokens, max(several)) // 2))


def optimize(
    model: PolicyModel,
    optimizer: Optimizer,
    rows: Sequence[TrainingRow],
    options: StepOptions,
    ranks: Ranks = ALONE,
    *,
    max_row_tokens: int,
) -> dict[str, float] | None:
    """One step. Returns its metrics; None where nothing was left to learn, and then the optimizer did not
    move. rows: of this rank.

    Where memory does not suffice, the gradient is computed again with half the tokens per pass, down to one
    row at a time; denominators are of the whole step, so it is the same gradient. With several
    ranks the others wait inside a collective, so there the allocator's error is raised.

    Raises Diverged, with weights and optimizer untouched, where loss or gradient is not finite, and
    OutOfMemory, with the weights untouched, where not even one row fits.
    """
    began, splits = time.perf_counter(), 0
    while True:
        optimizer.zero_grad(set_to_none=True)
        try:
            gradient = accumulate(model, rows, options, ranks, max_row_tokens=max_row_tokens)
            break
        except (MemoryError, RuntimeError) as error:
            if ranks.size > 1 or not is_out_of_memory(error):
                raise
            said = str(error)
        # Outside of the handler: the error held every tensor of the failed try.
        let_go()
        options, splits = _smaller(rows, options, said), splits + 1
        log.warning("batch_split", extra={"microbatch_tokens": options.microbatch_tokens, "said": said})
    if gradient is None:
        return None
    norm = _apply(optimizer, gradient, options.max_grad_norm)
    elapsed = time.perf_counter() - began
    return {**_measured(gradient, norm, splits, elapsed), "rank_s": elapsed * ranks.size}


def _apply(optimizer: Optimizer, gradient: Gradient, max_grad_norm: float) -> float:
    """Update with the accumulated gradient; returns its norm before clipping. Raises Diverged."""
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = float(whole(torch.nn.utils.clip_grad_norm_(trained, max_grad_norm)))
    if not (torch.isfinite(torch.tensor([norm, gradient.loss])).all()):
        optimizer.zero_grad(set_to_none=True)
        raise Diverged(f"loss {gradient.loss} and gradient norm {norm}: the batch was not applied")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def _measured(gradient: Gradient, norm: float, splits: int, elapsed: float) -> dict[str, float]:
    return {
        **mismatch_metrics(gradient.sums),
        "loss": gradient.loss,
        "decision_entropy": gradient.decision_entropy,
        "grad_norm": norm,
        "rows": float(gradient.num_rows),
        "tokens": float(gradient.num_trained),
        "row_tokens": float(gradient.num_row_tokens),
        "unique_tokens": float(gradient.num_unique_tokens),
        "oom_splits": float(splits),
        "learner_s": elapsed,
        "tokens_per_s": gradient.num_row_tokens / elapsed,
    }
