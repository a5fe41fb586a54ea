"""How far a policy has moved from the one that its run began from, measured beside the loss."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import torch

from grpo_math.divergence import kl_estimate
from grpo_math.packing import TrainingRow, microbatches
from grpo_trainer.learner.optimization import StepOptions, batch_scores
from grpo_trainer.learner.packed_model import PolicyModel
from grpo_trainer.learner.ranks import ALONE, Ranks


def measured_groups(group_ids: Collection[str], count: int) -> frozenset[str]:
    """`count` groups of a step, by a checksum of their ids: the same whatever the order, and no kind of task
    is preferred."""
    return frozenset(sorted(group_ids, key=lambda group: (zlib.crc32(group.encode()), group))[:count])


@torch.no_grad()
def drift_kl(
    model: PolicyModel,
    reference: PolicyModel,
    rows: Sequence[TrainingRow],
    options: StepOptions,
    ranks: Ranks = ALONE,
) -> float | None:
    """KL of `model` from `reference` in nats per trained token, by the estimator k3; None without a token.

    rows: of this rank; all ranks call this together, and what is returned is of all of them.
    """
    rows = [row for row in rows if row.num_trained]
    cuts = microbatches(rows, max_tokens=options.microbatch_tokens, share_prefixes=options.share_prefixes)
    batches = [batch.to(model.device) for batch in cuts]
    num_dummy = int(ranks.largest(len(batches))) - len(batches)
    ours, _ = batch_scores(model, batches, num_dummy)
    theirs, _ = batch_scores(reference, batches, num_dummy)
    parts = [kl_estimate(one, other.to(one.dtype), "k3") for one, other in zip(ours, theirs, strict=True)]
    total = sum(float(part.double().sum()) for part in parts)
    total, count = ranks.total([total, float(sum(part.numel() for part in parts))])
    return total / count if count else None
