"""Whole steps of the trainer's learner on a GPU: weights, states, adapters, and a lack of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.gpu.sizes import CUDA, groups, policy
from tests.services.grpo_trainer.learners import begun, distance, same, spec, thread_of, weights
from torch import Tensor

from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.packed_model import ModelOptions
from grpo_trainer.learner.torch_learner import LearnerOptions, TorchLearner

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]
ON_GPU = LearnerOptions(device=CUDA, microbatch_tokens=1500)
FLEX = replace(ON_GPU, model=ModelOptions(attention="flex"))
SLOW = {"learning_rate": 1e-4}


async def trained(
    given: LearnerOptions, base: Path, of: TrainingSpec, folder: Path, *, steps: int = 3
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Weights after some steps, and the metrics of the last."""
    numbers: dict[str, float] = {}
    with thread_of(given) as thread:
        async with begun(thread, base, of) as learner:
            for seed in range(steps):
                numbers = dict((await learner.step(groups(seed))).values)
            return await weights(learner, folder), numbers


@pytest.mark.parametrize("lora", [{}, {"lora_rank": 4}])
@pytest.mark.parametrize("given", [FLEX, ON_GPU], ids=["flex", "buckets"])
async def test_steps_on_a_gpu_are_steps_on_the_host(
    given: LearnerOptions, lora: dict[str, int], tmp_path: Path
) -> None:
    base, of = policy(tmp_path / "base"), spec(**SLOW, **lora)
    host = replace(given, device="cpu", model=ModelOptions())
    expected, theirs = await trained(host, base, of, tmp_path / "host")
    found, ours = await trained(given, base, of, tmp_path / "gpu")
    start, _ = await trained(host, base, of, tmp_path / "start", steps=0)
    # Adam divides by the gradient's size, so an element whose gradient is rounding may differ by its rate.
    assert distance(found, start) > 5e-5
    assert mean_distance(found, expected) < 1e-6
    for name in ("loss", "grad_norm", "entropy", "mismatch_kl", "decision_entropy"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6), name


def mean_distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    total = sum(float((a[name].double() - b[name].double()).abs().sum()) for name in a)
    return total / sum(tensor.numel() for tensor in a.values())


@pytest.mark.parametrize("given", [FLEX, ON_GPU], ids=["flex", "buckets"])
async def test_a_resumed_state_goes_on_to_the_same_weights(given: LearnerOptions, tmp_path: Path) -> None:
    base, of = policy(tmp_path / "base"), spec(**SLOW)
    with thread_of(given) as thread:
        async with begun(thread, base, of) as learner:
            await learner.step(groups(0))
            await (await learner.snapshot()).save(tmp_path / "state")
            await learner.step(groups(1))
            straight = await weights(learner, tmp_path / "straight")
        learner = TorchLearner(thread)
        await learner.resume(of, base, tmp_path / "state")
        await learner.step(groups(1))
        resumed = await weights(learner, tmp_path / "resumed")
        await learner.close()
    assert same(straight, resumed) or given is ON_GPU
    assert mean_distance(straight, resumed) < 1e-7


@pytest.mark.parametrize(("saves", "loads"), [(CUDA, "cpu"), ("cpu", CUDA)])
async def test_a_state_of_one_device_is_resumed_on_the_other(saves: str, loads: str, tmp_path: Path) -> None:
    base, of = policy(tmp_path / "base"), spec(**SLOW)
    with thread_of(replace(ON_GPU, device=saves)) as thread:
        async with begun(thread, base, of) as learner:
            await learner.step(groups(0))
            await (await learner.snapshot()).save(tmp_path / "state")
            before = await weights(learner, tmp_path / "before")
    with thread_of(replace(ON_GPU, device=loads)) as thread:
        learner = TorchLearner(thread)
        await learner.resume(of, base, tmp_path / "state")
        assert same(before, await weights(learner, tmp_path / "read"))
        assert (await learner.step(groups(1))).applied
        await learner.close()


@contextmanager
def memory_of(num_bytes: int) -> Iterator[None]:
    """A GPU on which this process may take so much."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(num_bytes / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


async def test_a_batch_that_does_not_fit_on_the_gpu_is_split_and_learns_the_same(tmp_path: Path) -> None:
    base, of = policy(tmp_path / "base"), spec(**SLOW)
    large = replace(ON_GPU, microbatch_tokens=1 << 20)
    batch = groups(7, count=24, members=4, longest=400)
    with thread_of(large) as thread:
        async with begun(thread, base, of) as learner:
            torch.cuda.reset_peak_memory_stats()
            whole = (await learner.step(batch)).values
            peak = torch.cuda.max_memory_allocated()
        async with begun(thread, base, of) as learner:
            with memory_of(peak // 2):
                split = (await learner.step(batch)).values
    assert (whole["oom_splits"], split["oom_splits"] > 0) == (0.0, True)
    assert split["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)
    assert split["loss"] == pytest.approx(whole["loss"], abs=1e-5)


async def test_a_session_leaves_the_generators_of_the_process_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3, device=CUDA)
    torch.manual_seed(5)
    with thread_of(ON_GPU) as thread:
        async with begun(thread, policy(tmp_path / "base"), spec(lora_rank=4)) as learner:
            await learner.step(groups(0))
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3, device=CUDA), expected)


async def test_a_closed_session_gives_its_memory_back(tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    with thread_of(ON_GPU) as thread:
        async with begun(thread, base, spec()) as learner:
            await learner.step(groups(0))
        kept = torch.cuda.memory_allocated()
        for _ in range(2):
            async with begun(thread, base, spec()) as learner:
                await learner.step(groups(0))
        assert torch.cuda.memory_allocated() <= kept
