"""Seeded trained tokens for tests of losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_math.tokens import TrainedTokens


def tokens_of(
    trainer: Tensor | Sequence[float],
    *,
    sampler: Tensor | Sequence[float] | None = None,
    advantages: Tensor | Sequence[float] | None = None,
    rows: Sequence[int] | None = None,
    proximal: Tensor | Sequence[float] | None = None,
    turns: Sequence[int] | None = None,
) -> TrainedTokens:
    """Float64 tokens; sampler defaults to the trainer, advantages to 1, rows to one row."""
    lp = torch.as_tensor(trainer, dtype=torch.float64)
    if not lp.requires_grad:
        lp = lp.clone().requires_grad_()
    count = lp.shape[0]
    given = [0] * count if rows is None else list(rows)
    return TrainedTokens(
        trainer_logprobs=lp,
        sampler_logprobs=_as(lp.detach() if sampler is None else sampler),
        advantages=_as(torch.ones(count) if advantages is None else advantages),
        row_of_token=torch.tensor(given, dtype=torch.int64),
        num_rows=max(given, default=-1) + 1,
        proximal_logprobs=None if proximal is None else _as(proximal),
        turn_of_token=None if turns is None else torch.tensor(turns),
        entropies=torch.linspace(0.1, 1.0, count, dtype=torch.float64),
    )


def _as(values: Tensor | Sequence[float]) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float64)


def random_tokens(seed: int, rows: Sequence[int], *, spread: float = 0.4) -> TrainedTokens:
    """Tokens whose ratios lie around 1, with one advantage per row; `rows`: trained tokens of each row."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(rows)
    of_token = [index for index, length in enumerate(rows) for _ in range(length)]
    trainer = -3 * torch.rand(count, generator=generator, dtype=torch.float64) - 0.1
    sampler = trainer + spread * torch.randn(count, generator=generator, dtype=torch.float64)
    credit = torch.randn(len(rows), generator=generator, dtype=torch.float64)
    return tokens_of(
        trainer,
        sampler=sampler,
        advantages=credit[torch.tensor(of_token, dtype=torch.int64)],
        rows=of_token,
        proximal=trainer + 0.1 * torch.randn(count, generator=generator, dtype=torch.float64),
        turns=[0] * count,
    )
