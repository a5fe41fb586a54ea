"""How token losses become one number: a weight per token from the totals of the whole optimizer step.

loss = sum_n weight_n * loss_n. Because the totals are of the step and not of the microbatch, the gradient
does not depend on how the step is cut into microbatches or spread over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from grpo_math.errors import GrpoMathError, unknown_name
from grpo_math.tokens import TrainedTokens


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Totals over all microbatches and ranks of one optimizer step, known before the first backward.

    entropy_threshold: nats; only read by an objective that trains the most uncertain tokens.
    num_trajectories: sum of the rows' shares of their trajectories; 0: every row is a whole trajectory.
    """

    num_tokens: int
    num_rows: int
    max_row_tokens: int = 0
    entropy_threshold: float | None = None
    num_trajectories: float = 0.0

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_rows < 1:
            raise GrpoMathError(
                f"a step needs trained tokens, got {self.num_tokens} in {self.num_rows} rows; "
                "skip the step instead"
            )


def _token_mean(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """1/tokens of the step: every token weighs the same (DAPO). No length bias between rows."""
    return torch.full_like(tokens.advantages, 1.0 / totals.num_tokens)


def _row_mean(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """Mean over rows of each row's token mean (GRPO): a long row's tokens weigh less."""
    return tokens.spread_over_rows(1.0 / (totals.num_rows * tokens.row_lengths()))


def _row_sum(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """Mean over rows of each row's sum (LUSPO)."""
    return torch.full_like(tokens.advantages, 1.0 / totals.num_rows)


def _constant_length(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """Sum over a constant, rows * max_row_tokens (Dr. GRPO)."""
    if totals.max_row_tokens < 1:
        raise GrpoMathError("constant_length needs max_row_tokens >= 1 in the step's totals")
    return torch.full_like(tokens.advantages, 1.0 / (totals.num_rows * totals.max_row_tokens))


def _sum(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """Plain sum (Tinker): the caller scales the advantages."""
    return torch.ones_like(tokens.advantages)


def _turn_mean(tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """Mean over trajectories of the mean over turns of the mean over the turn's tokens (M-GRPO,
    WebAgent-R1). A trajectory that forked into several rows counts once: each row by its share of the turns.

    Failures are longer than successes, so this shrinks the negative gradient on failures; prefer
    token_mean."""
    if tokens.turn_of_token is None:
        raise GrpoMathError("turn_mean needs turn_of_token, and the tokens carry none")
    width = int(tokens.turn_of_token.max()) + 1 if tokens.turn_of_token.numel() else 1
    slot = tokens.row_of_token * width + tokens.turn_of_token
    ones = torch.ones_like(tokens.advantages)
    per_turn = ones.new_zeros(tokens.num_rows * width).index_add(0, slot, ones)
    turns = (per_turn.view(tokens.num_rows, width) > 0).sum(dim=1).clamp(min=1)
    shares = ones.new_ones(tokens.num_rows) if tokens.row_shares is None else tokens.row_shares.to(ones.dtype)
    num_trajectories = totals.num_trajectories or totals.num_rows
    return (shares / turns)[tokens.row_of_token] / (num_trajectories * per_turn[slot])


Aggregation = Callable[[TrainedTokens, StepTotals], Tensor]

AGGREGATIONS: Final[dict[str, Aggregation]] = {
    "token_mean": _token_mean,
    "row_mean": _row_mean,
    "row_sum": _row_sum,
    "constant_length": _constant_length,
    "sum": _sum,
    "turn_mean": _turn_mean,
}

DEFAULT_AGGREGATION: Final = "token_mean"


def token_weights(name: str, tokens: TrainedTokens, totals: StepTotals) -> Tensor:
    """[N] constant weight of each token's loss under the named aggregation. Raises UnknownName."""
    if name not in AGGREGATIONS:
        raise unknown_name("aggregation", name, AGGREGATIONS)
    return AGGREGATIONS[name](tokens, totals).to(tokens.advantages.dtype)
