"""What must not change a step's gradient, through the model, over random ragged batches; and what must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parity.padded_model import PaddedModel, padded_module
from tests.services.grpo_trainer.tiny import new_model, tiny_config
from torch import Tensor

from grpo_math.objective import LOSSES, build_objective
from grpo_math.packing import TrainingRow, pack
from grpo_trainer.domain.errors import Diverged
from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow, row_counts
from grpo_trainer.learner.optimization import StepOptions, accumulate, optimize
from grpo_trainer.learner.packed_model import PolicyModel
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows

VOCAB = 32
# transformers computes the norms in float32, whatever the dtype of the model
CLOSE = 1e-6


def shape() -> Any:
    return tiny_config(vocab_size=VOCAB)


@cache
def packed() -> PolicyModel:
    torch.manual_seed(0)
    return new_model(shape(), dtype=torch.float64)


@cache
def padded() -> PolicyModel:
    model = PaddedModel(padded_module(shape(), dtype=torch.float64))
    model.module.load_state_dict(packed().module.state_dict())
    return model


def options(loss: str = "ppo", *, aggregation: str = "token_mean", **changes: Any) -> StepOptions:
    objective = build_objective(loss, aggregation=aggregation)
    return StepOptions(**{"objective": objective, "microbatch_tokens": 10_000, **changes})


def gradient(
    rows: Sequence[TrainingRow], chosen: StepOptions | None = None, model: PolicyModel | None = None
) -> tuple[float, Tensor]:
    """Loss and flat gradient of a step."""
    model = model or packed()
    model.module.zero_grad()
    done = accumulate(model, rows, chosen or options(), max_row_tokens=16)
    assert done is not None
    parts = [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.module.parameters()]
    return done.loss, torch.cat([part.flatten() for part in parts])


def assert_same(found: tuple[float, Tensor], expected: tuple[float, Tensor], factor: float = 1.0) -> None:
    assert found[0] == pytest.approx(factor * expected[0], rel=CLOSE, abs=1e-9)
    scale = max(float(expected[1].norm()), 1e-6)
    assert float((found[1] - factor * expected[1]).norm()) < CLOSE * scale * factor


def make_row(name: str, group: str, lengths: Sequence[int], advantage: float, seed: int) -> TrainingRow:
    """Turns of (prompt, sampled) lengths in turn; sampler log-probabilities somewhere around uniform."""
    generator = torch.Generator().manual_seed(seed)
    sampled = [bool(part % 2) for part, length in enumerate(lengths) for _ in range(length)]
    turns = [part // 2 for part, length in enumerate(lengths) for _ in range(length)]
    total = len(sampled)
    return TrainingRow(
        name,
        group,
        torch.randint(VOCAB, (total,), generator=generator),
        torch.tensor(sampled),
        -3.5 + 0.3 * torch.randn(total, generator=generator),
        advantage,
        turns=torch.tensor(turns),
    )


@st.composite
def batches(draw: st.DrawFn) -> list[TrainingRow]:
    """One to three groups of two or three rows, one to three turns each."""
    rows = []
    for group in range(draw(st.integers(1, 3))):
        for member in range(draw(st.integers(2, 3))):
            pairs = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=3))
            lengths = [length for pair in pairs for length in pair]
            advantage = draw(st.sampled_from([-1.0, -0.5, 0.5, 1.0]))
            seed = draw(st.integers(0, 999))
            rows.append(make_row(f"g{group}/{member}", f"g{group}", lengths, advantage, seed))
    return rows


few = settings(max_examples=8, deadline=None)


@few
@given(rows=batches(), data=st.data())
def test_the_order_of_rows_changes_no_gradient(rows: list[TrainingRow], data: st.DataObject) -> None:
    assert_same(gradient(data.draw(st.permutations(rows))), gradient(rows))


@few
@given(
    rows=batches(),
    tokens=st.integers(1, 40),
    share=st.booleans(),
    loss=st.sampled_from(["ppo", "gspo", "decoupled", "vespo"]),
)
def test_the_cut_into_microbatches_changes_no_gradient(
    rows: list[TrainingRow], tokens: int, share: bool, loss: str
) -> None:
    cut = options(loss, microbatch_tokens=tokens, share_prefixes=share)
    assert_same(gradient(rows, cut), gradient(rows, options(loss)))


@few
@given(rows=batches(), tokens=st.integers(1, 60), loss=st.sampled_from(["ppo", "cispo", "gspo"]))
def test_packing_and_padding_change_no_gradient(rows: list[TrainingRow], tokens: int, loss: str) -> None:
    cut = options(loss, microbatch_tokens=tokens, share_prefixes=False)
    assert_same(gradient(rows, cut, padded()), gradient(rows, options(loss)))


@few
@given(rows=batches())
def test_every_group_twice_keeps_the_gradient_of_means_and_doubles_that_of_sums(
    rows: list[TrainingRow],
) -> None:
    again = [replace(row, row_id=f"{row.row_id}'", group_id=f"{row.group_id}'") for row in rows]
    for aggregation, factor in (("token_mean", 1.0), ("row_mean", 1.0), ("sum", 2.0)):
        chosen = options(aggregation=aggregation)
        assert_same(gradient([*rows, *again], chosen), gradient(rows, chosen), factor)


def longer(row: TrainingRow, ids: Sequence[int]) -> TrainingRow:
    """The row with observation tokens behind it."""
    count = len(ids)
    turns = row.turns if row.turns is not None else torch.zeros_like(row.token_ids)
    return replace(
        row,
        token_ids=torch.cat([row.token_ids, torch.tensor(ids, dtype=torch.int64)]),
        trained=torch.cat([row.trained, torch.zeros(count, dtype=torch.bool)]),
        sampler_logprobs=torch.cat([row.sampler_logprobs, torch.zeros(count)]),
        turns=torch.cat([turns, turns.new_full((count,), int(turns[-1]))]),
    )


@few
@given(rows=batches(), tail=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9))
def test_observation_tokens_at_the_end_change_no_gradient(rows: list[TrainingRow], tail: list[int]) -> None:
    for aggregation in ("token_mean", "row_mean", "turn_mean"):
        chosen = options(aggregation=aggregation)
        assert_same(gradient([longer(row, tail) for row in rows], chosen), gradient(rows, chosen))


def forked(row: TrainingRow) -> list[TrainingRow]:
    """The same tokens as two rows: the second sees the first's as its prompt, and trains the rest."""
    at = row.trained.nonzero().squeeze(1).tolist()
    half = at[len(at) // 2]
    position = torch.arange(row.token_ids.shape[0])
    first = replace(row, row_id=f"{row.row_id}/a", trained=row.trained & (position < half))
    return [first, replace(row, row_id=f"{row.row_id}/b", trained=row.trained & (position >= half))]


@few
@given(rows=batches())
def test_a_row_cut_into_a_fork_keeps_its_gradient(rows: list[TrainingRow]) -> None:
    assert_same(gradient([part for row in rows for part in forked(row)]), gradient(rows))


@few
@given(rows=batches())
def test_a_row_without_a_trained_token_changes_no_gradient(rows: list[TrainingRow]) -> None:
    silent = replace(rows[0], row_id="silent", trained=torch.zeros_like(rows[0].trained))
    for aggregation in ("token_mean", "row_mean"):
        chosen = options(aggregation=aggregation, microbatch_tokens=1)
        assert_same(gradient([*rows, silent], chosen), gradient(rows, chosen))


@few
@given(rows=batches(), loss=st.sampled_from(sorted(set(LOSSES) - {"cross_entropy", "dro", "vespo"})))
def test_on_policy_every_loss_of_ratios_has_one_gradient(rows: list[TrainingRow], loss: str) -> None:
    fresh = [on_policy(row) for row in rows]
    done = accumulate(packed(), fresh, options(loss), max_row_tokens=0)
    assert done is not None
    assert done.sums.ratio_max == pytest.approx(1.0, abs=1e-5)
    assert (done.sums.clipped_low, done.sums.clipped_high) == (0.0, 0.0)
    _, expected = gradient(fresh, options("importance_sampling"))
    _, found = gradient(fresh, options(loss))
    assert float((found - expected).norm()) < 1e-5 * max(float(expected.norm()), 1e-6)


def on_policy(row: TrainingRow) -> TrainingRow:
    """The row as the packed model itself would have sampled it."""
    with torch.no_grad():
        logprobs, _ = packed().logprobs(pack([row]))
    known = row.sampler_logprobs.double()
    known[row.trained] = logprobs
    return replace(row, sampler_logprobs=known)


@few
@given(rows=batches(), loss=st.sampled_from(["ppo", "cispo", "gspo", "importance_sampling", "decoupled"]))
def test_rows_without_advantage_have_no_gradient(rows: list[TrainingRow], loss: str) -> None:
    _, flat = gradient([replace(row, advantage=0.0) for row in rows], options(loss))
    assert float(flat.abs().max()) == 0.0


def test_a_group_without_spread_adds_nothing_but_its_tokens_in_the_denominator() -> None:
    """Why such groups are settled before a batch is cut: here they would shrink the step."""
    rows = [make_row(f"a/{n}", "a", [3, 4], sign, n) for n, sign in enumerate((1.0, -1.0))]
    tied = [make_row(f"b/{n}", "b", [3, 4], 0.0, 9 + n) for n in range(2)]
    assert_same(gradient([*rows, *tied]), gradient(rows), factor=0.5)


def episode(name: str, contexts: Sequence[TokenRow]) -> EpisodeTokens:
    return EpisodeTokens(name, tuple(contexts), 1.0, 0, 0, 0)


def test_every_row_of_a_forked_episode_carries_its_advantage() -> None:
    context = TokenRow.of([1, 2, 3], [False, True, True], [0.0, -1.0, -1.0], [0, 0, 0])
    one, other = episode("one", [context, context]), episode("other", [context])
    rows = batch_rows(
        [BatchGroup("g", (one, other), (1.0, 0.0))], credit=Credit("dr_grpo"), group_size=2
    ).rows
    credit = {row.row_id: row.advantage for row in rows}
    assert credit == {"one/0": 0.5, "one/1": 0.5, "other/0": -0.5}
    assert row_counts([one, other]) == {
        "context_forks": 1.0,
        "unreadable_turns": 0.0,
        "unreadable_fraction": 0.0,
    }


Stepper = Callable[[list[TrainingRow]], dict[str, float] | None]


def stepper() -> tuple[Any, Stepper]:
    """A fresh model that has momentum, and its step."""
    torch.manual_seed(1)
    model = new_model(shape())
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=1e-2)

    def step(rows: list[TrainingRow]) -> dict[str, float] | None:
        return optimize(model, optimizer, rows, options(), max_row_tokens=0)

    step([make_row("a/0", "a", [3, 4], 1.0, 1), make_row("a/1", "a", [3, 4], -1.0, 2)])
    return model, step


def state(model: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.module.parameters()])


def test_a_batch_with_nothing_to_learn_does_not_step() -> None:
    model, step = stepper()
    before = state(model)
    masked = make_row("a/0", "a", [3, 4], 1.0, 1)
    assert step([]) is None
    assert step([replace(masked, trained=torch.zeros_like(masked.trained))]) is None
    assert torch.equal(state(model), before)  # momentum would still move the weights


@pytest.mark.parametrize("sampler", [float("nan"), float("-inf"), -1e4, 0.0])
def test_hostile_sampler_logprobs_leave_finite_weights(sampler: float) -> None:
    model, step = stepper()
    row = make_row("a/0", "a", [3, 4], 1.0, 1)
    poisoned = row.sampler_logprobs.clone()
    poisoned[row.trained.nonzero()[0]] = sampler
    values = step([replace(row, sampler_logprobs=poisoned), make_row("a/1", "a", [1, 1], -1.0, 2)])
    assert values is not None
    assert torch.isfinite(state(model)).all()


def test_a_completion_of_one_token_trains() -> None:
    loss, flat = gradient([make_row("a/0", "a", [1, 1], 1.0, 1), make_row("a/1", "a", [1, 1], -1.0, 2)])
    assert loss == pytest.approx(loss)
    assert float(flat.norm()) > 0


def test_a_loss_that_is_not_finite_leaves_the_weights_alone() -> None:
    model, step = stepper()
    before = state(model)
    with pytest.raises(Diverged):
        step([replace(make_row("a/0", "a", [3, 4], 1.0, 1), advantage=float("inf"))])
    assert torch.equal(state(model), before)
