"""What a pass returns and what its gradient is divided by: numbers worked by hand, and those of torch."""

from __future__ import annotations

import pytest
import torch
from tests.services.grpo_trainer.bench import MODEL, World
from tests.services.grpo_trainer.interactive.trainers import (
    SGD_LIKE,
    batch,
    inline,
    passing,
    sft_row,
    trainer_on,
)

from grpo_trainer.learner.gradient_sums import GradientSums
from grpo_trainer.learner.prepared import Adam, Normalize


def test_sums_stay_sums_beside_a_mean_over_tokens() -> None:
    """Means [0.5, 0] over 2 tokens and [2, 1] over 6 are together (0.5 * 2 + 2 * 6) / 8 = 1.625 and 0.75; the
    mean [1, -1] over 3 tokens as a sum adds 3 and -3."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    sums = GradientSums(torch.optim.AdamW([parameter]))

    def leaving(mean: list[float], tokens: int) -> tuple[None, int]:
        parameter.grad = torch.tensor(mean)
        return None, tokens

    sums.of_tokens([lambda: leaving([0.5, 0.0], 2)], Normalize.TOKENS)
    sums.of_tokens([lambda: leaving([1.0, -1.0], 3)], Normalize.SUM)
    sums.of_tokens([lambda: leaving([2.0, 1.0], 6)], Normalize.TOKENS)
    total = sums._total(0)
    assert total is not None
    assert total.tolist() == [4.625, -2.25]
    assert sums.apply(Adam(1e-3, max_grad_norm=0.0)) == pytest.approx(5.143259, abs=1e-5)  # root of 26.453125
    assert sums._total(0) is None


async def test_a_sum_is_the_mean_times_its_tokens(world: World) -> None:
    rows = [sft_row(seed) for seed in range(3)]  # 4 trained tokens each
    async with trainer_on(world) as trainer:
        mean = await trainer.forward_backward("a", rows, loss="cross_entropy")
        divided = await trainer.optim_step("b", SGD_LIKE, keep_head=True)
        await trainer.registry.set_head(MODEL, 0)
        total = await trainer.forward_backward("c", rows, loss="cross_entropy", normalize=Normalize.SUM)
        summed = await trainer.optim_step("d", SGD_LIKE, keep_head=True)
    assert mean.metrics["tokens"] == total.metrics["tokens"] == 12
    assert total.metrics["loss"] == pytest.approx(mean.metrics["loss"], rel=1e-6)
    assert total.metrics["loss_sum"] == pytest.approx(12 * mean.metrics["loss"], rel=1e-6)
    assert "loss_sum" not in mean.metrics
    assert summed.metrics["grad_norm"] == pytest.approx(12 * divided.metrics["grad_norm"], rel=1e-5)


async def test_two_sums_are_one_bigger_sum(world: World) -> None:
    """As a mean would not be: batches of 4 and 8 tokens weigh as they are."""
    norms = []
    async with trainer_on(world) as trainer:
        for number, cuts in enumerate(([[0, 1, 2]], [[0], [1, 2]])):
            for part in cuts:
                rows = [sft_row(seed) for seed in part]
                name = f"{number}-{part}"
                await trainer.forward_backward(name, rows, loss="cross_entropy", normalize=Normalize.SUM)
            done = await trainer.optim_step(f"o{number}", SGD_LIKE, keep_head=True)
            norms.append((done.metrics["grad_norm"], done.metrics["loss_sum"]))
            await trainer.registry.set_head(MODEL, 0)
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.parametrize("substeps", [1, 3])
async def test_a_pass_returns_the_log_probabilities_of_its_gradient(world: World, substeps: int) -> None:
    """Those of `forward`, row by row, also where rows of one group share their prompt and are cut apart."""
    inputs = [*batch(4), inline(0, 0.5)]
    async with trainer_on(world) as trainer:
        asked = passing(inputs, group_size=5)
        _, _, data = await trainer.sessions.once(MODEL, "f", b"", lambda one: one.forward(asked))
        measured = await trainer.forward_backward(
            "a", inputs, group_size=5, logprobs=True, num_substeps=substeps
        )
        silent = await trainer.forward_backward("b", inputs, group_size=5)
    assert silent.logprobs == ()
    assert len(measured.logprobs) == measured.num_datums == 5
    for found, datum in zip(measured.logprobs, data, strict=True):
        assert list(found) == pytest.approx(list(datum.logprobs), abs=1e-5)
        assert [value < 0 for value in found] == [bool(trained) for trained in datum.mask]


async def test_the_log_probabilities_of_a_pass_are_those_of_torch(world: World) -> None:
    from transformers import AutoModelForCausalLM

    row = sft_row(3)
    async with trainer_on(world) as trainer:
        measured = await trainer.forward_backward("a", [row], loss="cross_entropy", logprobs=True)
    model = AutoModelForCausalLM.from_pretrained(world.folder / "tiny-0-0")
    ids = torch.tensor([row.token_ids])
    expected = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    assert list(measured.logprobs[0]) == pytest.approx([0.0, *expected[1:].tolist()], abs=1e-5)
    assert measured.metrics["loss"] == pytest.approx(-sum(measured.logprobs[0]) / 4, abs=1e-5)
