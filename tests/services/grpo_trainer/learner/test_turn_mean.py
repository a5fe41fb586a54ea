"""M-GRPO's triple mean: trajectories, their turns, the tokens of a turn; forks have no extra vote."""

from __future__ import annotations

import torch
from tests.services.grpo_trainer.batches import config_of

from grpo_math.aggregation import StepTotals, token_weights
from grpo_math.objective import build_objective
from grpo_math.packing import pack
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.optimization import StepOptions, accumulate, trained_tokens
from grpo_trainer.learner.packed_model import PackedModel, new_module
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows


def context(*turns: int) -> TokenRow:
    """Two prompt tokens, then turns of that many sampled tokens, with an observation before each."""
    made = TokenRow.of([1, 2], [False] * 2, [0.0] * 2, [0] * 2)
    for number, sampled in enumerate(turns):
        made.token_ids.extend([3, *range(4, 4 + sampled)])
        made.trained.extend([False, *[True] * sampled])
        made.logprobs.extend([0.0, *[-2.0] * sampled])
        made.turns.extend([number] * (sampled + 1))
    return made


def group() -> BatchGroup:
    """One trajectory of a single row, one that forked: two turns, then one in a new row."""
    plain = EpisodeTokens("traj-a", (context(2, 1),), 1.0, 0, 0, 0)
    forked = EpisodeTokens("traj-b", (context(1, 2), context(4)), 1.0, 0, 0, 0)
    return BatchGroup("g", (plain, forked), (1.0, 0.0))


def test_weights_of_worked_examples() -> None:
    rows = batch_rows([group()], credit=Credit("m_grpo"), group_size=2).rows
    assert [row.trajectory_share for row in rows] == [1.0, 2 / 3, 1 / 3]
    batch = pack(rows)
    scores = torch.zeros(batch.num_trained, dtype=torch.float64)
    totals = StepTotals(batch.num_trained, 3, num_trajectories=2.0)
    weights = token_weights("turn_mean", trained_tokens(batch, scores, scores), totals)
    whole = [1 / (2 * 2 * 2)] * 2 + [1 / (2 * 2)]
    fork = [1 / (2 * 3)] + [1 / (2 * 3 * 2)] * 2 + [1 / (2 * 3 * 4)] * 4
    torch.testing.assert_close(weights, torch.tensor(whole + fork, dtype=torch.float64))
    assert float(weights.sum()) == 1.0


def test_the_step_counts_trajectories_not_rows() -> None:
    torch.manual_seed(0)
    model = PackedModel(new_module(config_of("qwen3", tied=True), dtype=torch.float64))
    rows = batch_rows([group()], credit=Credit("m_grpo"), group_size=2).rows
    objective = build_objective("cross_entropy", aggregation="turn_mean")
    losses = []
    for tokens in (8, 4096):
        found = accumulate(model, rows, StepOptions(objective, microbatch_tokens=tokens), max_row_tokens=0)
        assert found is not None
        losses.append(found.loss)
    assert abs(losses[0] - losses[1]) <= 1e-12
