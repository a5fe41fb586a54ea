"""Drift from the first policy: measured beside the loss, changing nothing, left out where memory is short."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.services.grpo_trainer.batches import policy, rollouts

from grpo_math.objective import build_objective
from grpo_math.packing import TrainingRow
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.core import LearnerCore
from grpo_trainer.learner.drift import drift_kl, measured_groups
from grpo_trainer.learner.optimization import StepOptions
from grpo_trainer.learner.torch_learner import LearnerOptions, LearnerThread, TorchLearner


class Fixed(torch.nn.Module):
    """A policy that gives every trained token one log-probability."""

    device = torch.device("cpu")

    def __init__(self, logprob: float) -> None:
        super().__init__()
        self.logprob = logprob

    def logprobs(self, batch: object) -> tuple[torch.Tensor, torch.Tensor]:
        count = batch.num_trained  # type: ignore[attr-defined]
        return torch.full((count,), self.logprob), torch.zeros(count)


def row(length: int) -> TrainingRow:
    trained = torch.ones(length, dtype=torch.bool)
    trained[0] = False
    return TrainingRow("r", "g", torch.arange(length), trained, torch.zeros(length), 1.0)


def options() -> StepOptions:
    return StepOptions(build_objective("ppo"))


def test_it_is_the_estimator_k3_per_trained_token() -> None:
    """Ours -1, theirs -1.5: d = 0.5, k3 = exp(-0.5) + 0.5 - 1."""
    found = drift_kl(Fixed(-1.0), Fixed(-1.5), [row(3), row(5)], options())
    assert found == pytest.approx(math.exp(-0.5) + 0.5 - 1)
    assert drift_kl(Fixed(-1.0), Fixed(-1.0), [row(3)], options()) == 0.0
    assert drift_kl(Fixed(-1.0), Fixed(-1.5), [], options()) is None


def test_the_measured_groups_do_not_depend_on_the_order() -> None:
    names = [f"run-1-g{number:05d}" for number in range(16)]
    chosen = measured_groups(names, 3)
    assert chosen == measured_groups(names[::-1], 3)
    assert len(chosen) == 3
    assert measured_groups(names, 0) == frozenset()
    assert measured_groups(names[:2], 5) == set(names[:2])


async def steps(base: Path, **changes: object) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    spec = TrainingSpec("run-1", "tiny", 4, learning_rate=1e-3, lr_schedule="constant", **changes)  # type: ignore[arg-type]
    thread = LearnerThread(LearnerOptions(num_threads=1))
    learner = TorchLearner(thread)
    try:
        await learner.begin(spec, base)
        found = [dict((await learner.step(rollouts(seed))).values) for seed in range(3)]
        model, _ = learner._loaded()
        return found, {name: value.detach().clone() for name, value in model.module.state_dict().items()}
    finally:
        await learner.close()
        thread.close()


async def test_it_grows_with_the_steps_and_changes_no_weight(tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    measured, weights = await steps(base)
    drifts: Sequence[float] = [values["drift_kl"] for values in measured]
    assert 0 < drifts[0] < drifts[2]
    plain, same = await steps(base, drift_groups=0)
    assert not any("drift_kl" in values for values in plain)
    assert all(torch.equal(weights[name], same[name]) for name in weights)


async def test_where_the_first_policy_does_not_fit_nothing_is_measured_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: LearnerCore) -> None:
        raise MemoryError

    monkeypatch.setattr(LearnerCore, "reference", full)
    measured, _ = await steps(policy(tmp_path / "base"))
    assert not any("drift_kl" in values for values in measured)
    assert all("loss" in values for values in measured)
