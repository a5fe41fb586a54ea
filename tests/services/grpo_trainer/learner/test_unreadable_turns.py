"""A turn that could not be read is unlearned where its trajectory lost, and never taught where it won."""

from __future__ import annotations

import pytest
import torch
from tests.services.grpo_trainer.batches import config_of

from grpo_math.objective import build_objective
from grpo_math.packing import pack
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.optimization import StepOptions, accumulate
from grpo_trainer.learner.packed_model import PackedModel, new_module
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows

GARBAGE, GOOD = 7, 5


def rollout(name: str, *turns: int, unreadable: frozenset[int] = frozenset()) -> EpisodeTokens:
    """Two prompt tokens, then turns of one sampled token with an observation before each."""
    row = TokenRow.of([1, 2], [False] * 2, [0.0] * 2, [0] * 2)
    for number, token in enumerate(turns):
        row.token_ids.extend([3, token])
        row.trained.extend([False, True])
        row.logprobs.extend([0.0, -3.0])
        row.turns.extend([number] * 2)
    row.unreadable = unreadable
    return EpisodeTokens(name, (row,), 1.0, 0, 0, len(turns))


def group() -> BatchGroup:
    """Rewards 1, 0, 0: advantages 2/3, -1/3, -1/3. The winner's first turn could not be read, nor could the
    second loser's only one."""
    members = (
        rollout("winner", GARBAGE, GOOD, unreadable=frozenset({0})),
        rollout("loser", GOOD),
        rollout("garbled", GARBAGE, unreadable=frozenset({0})),
    )
    return BatchGroup("g", members, (1.0, 0.0, 0.0))


def test_it_trains_where_the_credit_is_negative_and_is_masked_where_it_is_not() -> None:
    batch = batch_rows([group()], credit=Credit("dr_grpo"), group_size=3)
    assert batch.num_masked == 1
    trained = {row.row_id: row.token_ids[row.trained].tolist() for row in batch.rows}
    assert trained == {"winner/0": [GOOD], "loser/0": [GOOD], "garbled/0": [GARBAGE]}
    assert [row.advantage for row in batch.rows] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert batch.rows[0].sampler_logprobs.tolist() == [0, 0, 0, 0, 0, -3.0]


def test_where_rewards_are_tied_it_is_masked() -> None:
    tied = BatchGroup("g", group().rollouts, (1.0, 1.0, 1.0))
    batch = batch_rows([tied], credit=Credit("dr_grpo"), group_size=3)
    assert batch.num_masked == 2
    assert [row.row_id for row in batch.rows] == ["winner/0", "loser/0"]


def test_a_step_makes_the_garbage_less_likely() -> None:
    """Only the garbled loser is left to learn from: before, its one turn was masked and nothing moved."""
    torch.manual_seed(0)
    model = PackedModel(new_module(config_of("qwen3", tied=True), dtype=torch.float64))
    rows = batch_rows([group()], credit=Credit("dr_grpo"), group_size=3).rows
    garbled = [row for row in rows if row.row_id == "garbled/0"]
    options = StepOptions(build_objective("importance_sampling"))

    def likelihood() -> float:
        with torch.no_grad():
            return float(model.logprobs(pack(garbled))[0])

    before = likelihood()
    assert accumulate(model, garbled, options, max_row_tokens=1) is not None
    with torch.no_grad():
        for parameter in model.module.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    assert likelihood() < before
