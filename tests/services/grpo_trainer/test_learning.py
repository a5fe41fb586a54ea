"""A policy that solves a third of a multi-turn task solves nearly all of it after 30 steps of the learner."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.services.grpo_trainer import toy_policy
from tests.services.grpo_trainer.toy_tasks import TASKS

from grpo_trainer.adapters.torch_learner import LearnerOptions, LearnerThread, TorchLearner
from grpo_trainer.domain.spec import TrainingSpec

START = Path(__file__).parent / "data" / "hop_start.safetensors"
PROMPTS, GROUP = 16, 8


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_grpo_with_the_default_loss_learns_to_hop(tmp_path: Path) -> None:
    model = toy_policy.load_start(START)
    model.save_pretrained(tmp_path / "base")
    before = toy_policy.success(model, "hop", count=256)
    assert 0.25 < before < 0.45
    thread = LearnerThread(LearnerOptions(num_threads=2))
    learner = TorchLearner(thread)
    spec = TrainingSpec("run-toy", "toy", GROUP, prompts_per_step=PROMPTS, learning_rate=1e-3)
    await learner.begin(spec, tmp_path / "base")
    generator, seeds = torch.Generator().manual_seed(11), random.Random(12)
    for step in range(30):
        drawn = [seeds.randrange(1 << 30) for _ in range(PROMPTS)]
        tasks = [TASKS["hop"](seed) for seed in drawn for _ in range(GROUP)]
        groups = toy_policy.groups_of(toy_policy.play(model, tasks, generator), GROUP)
        numbers = await learner.step(groups)
        # On policy the only gap between sampler and trainer is the numerics of two attention kernels.
        assert numbers.values["mismatch_kl"] < 1e-6
        assert abs(numbers.values["ratio_max"] - 1) < 1e-3
        await learner.export(tmp_path / f"v{step}")
        state = load_file(tmp_path / f"v{step}" / "model.safetensors")
        model.load_state_dict(state, strict=False)
    thread.close()
    assert toy_policy.success(model, "hop", count=256) >= 0.85
    assert toy_policy.success(model, "hop", count=256, greedy=True) >= 0.85
    assert numbers.values["entropy"] > 0.02
