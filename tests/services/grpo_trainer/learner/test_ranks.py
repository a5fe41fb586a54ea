"""Several processes that compute one step: equal to one process, whatever they compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.services.grpo_trainer.batches import policy, rollouts
from tests.services.grpo_trainer.learners import (
    after_steps,
    begun,
    distance,
    options,
    spec,
    thread_of,
    weights,
)

from grpo_trainer.domain.errors import Diverged
from grpo_trainer.learner.torch_learner import LearnerThread, TorchLearner

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 4


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[LearnerThread]:
    with thread_of(options(2)) as thread:
        yield thread


@pytest.fixture(scope="module")
def one_rank() -> Iterator[LearnerThread]:
    with thread_of(options(1)) as thread:
        yield thread


CASES = [
    ("qwen3", True, {}),
    pytest.param("llama", False, {"loss": "decoupled"}, marks=pytest.mark.study),
    pytest.param(
        "qwen3", True, {"lr_schedule": "linear", "warmup_steps": 1, "steps": STEPS}, marks=pytest.mark.study
    ),
    ("qwen3", False, {"loss_config": {"top_entropy": 0.5, "entropy_bonus": 0.01}}),
    (
        "llama",
        True,
        {"advantage": "m_grpo", "loss_config": {"kl_coefficient": 0.1}, "kl_placement": "reward"},
    ),
]


@pytest.mark.parametrize(("architecture", "tied", "config"), CASES)
async def test_two_ranks_take_the_steps_of_one(
    architecture: str,
    tied: bool,
    config: dict[str, object],
    one_rank: LearnerThread,
    two_ranks: LearnerThread,
    tmp_path: Path,
) -> None:
    base = policy(tmp_path / "base", architecture, tied=tied)
    ends = []
    for number, thread in enumerate((one_rank, two_ranks)):
        async with begun(thread, base, spec(**config)) as learner:
            measured = [await learner.step(rollouts(seed)) for seed in range(STEPS)]
            ends.append((measured, await weights(learner, tmp_path / str(number)), await learner.snapshot()))
    (alone, expected, proof), (together, found, shared_proof) = ends
    assert distance(expected, load_file(base / "model.safetensors")) > 4e-3
    assert distance(expected, found) <= 1e-6
    for one, two in zip(alone, together, strict=True):
        same = {
            name: two.values[name]
            for name in one.values
            if name not in ("learner_s", "rank_s", "tokens_per_s")
        }
        assert same == pytest.approx({name: one.values[name] for name in same}, rel=1e-4, abs=1e-6)
    for (ids, logprobs), (other_ids, others) in zip(proof.canary, shared_proof.canary, strict=True):
        assert ids == other_ids
        assert others == pytest.approx(logprobs, abs=1e-5)


async def test_a_rank_without_work_computes_dummies_to_stay_in_step(
    one_rank: LearnerThread, two_ranks: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    found = []
    for number, thread in enumerate((one_rank, two_ranks)):
        async with begun(thread, base, spec()) as learner:
            assert (await learner.step(rollouts(1, groups=1, members=2))).applied
            found.append(await weights(learner, tmp_path / str(number)))
    assert distance(*found) <= 1e-6


async def test_what_two_ranks_saved_goes_on_with_one(
    one_rank: LearnerThread, two_ranks: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    async with begun(two_ranks, base, spec()) as learner:
        await learner.step(rollouts(1))
        await (await learner.snapshot()).save(tmp_path / "state")
        await learner.step(rollouts(2))
        expected = await weights(learner, tmp_path / "expected")
    for number, thread in enumerate((one_rank, two_ranks)):
        learner = TorchLearner(thread)
        await learner.resume(spec(), base, tmp_path / "state")
        await learner.step(rollouts(2))
        assert distance(expected, await weights(learner, tmp_path / str(number))) <= 1e-6
        await learner.close()


async def test_a_batch_that_diverges_is_refused_by_all_ranks(
    two_ranks: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    async with begun(two_ranks, base, spec()) as learner:
        with pytest.raises(Diverged):
            await learner.step(rollouts(1, reward=1e300))
        assert (
            distance(await weights(learner, tmp_path / "after"), load_file(base / "model.safetensors")) == 0
        )
        assert (await learner.step(rollouts(2))).applied


async def test_two_sessions_take_turns_on_two_ranks(
    one_rank: LearnerThread, two_ranks: LearnerThread, tmp_path: Path
) -> None:
    base = policy(tmp_path / "base")
    expected = await after_steps(one_rank, base, spec(), seeds=[1], folder=tmp_path / "expected")
    async with begun(two_ranks, base, spec()) as first, begun(two_ranks, base, spec(seed=1)) as second:
        await second.step(rollouts(2))
        await first.step(rollouts(1))
        assert distance(expected, await weights(first, tmp_path / "first")) <= 1e-6
