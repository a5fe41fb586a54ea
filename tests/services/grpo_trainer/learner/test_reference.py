"""The divergence from the run's base policy, in the loss and in the reward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.services.grpo_trainer.batches import policy, rollouts
from tests.services.grpo_trainer.learners import (
    after_steps,
    begun,
    distance,
    options,
    same,
    spec,
    thread_of,
    weights,
)

from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.following import Scales
from grpo_trainer.learner.core import LearnerOptions, step_options
from grpo_trainer.learner.torch_learner import LearnerThread, TorchLearner

KL = {"kl_coefficient": 5.0}


@pytest.fixture(scope="module")
def thread() -> Iterator[LearnerThread]:
    with thread_of(options(1)) as made:
        yield made


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3_plus"])
async def test_a_policy_pays_nothing_until_it_left_its_base(
    estimator: str, thread: LearnerThread, tmp_path: Path
) -> None:
    base, found = policy(tmp_path / "base"), []
    for number, of in enumerate((spec(), spec(loss_config=KL, kl_estimator=estimator))):
        for steps in (1, 3):
            folder = tmp_path / f"{number}-{steps}"
            found.append(await after_steps(thread, base, of, seeds=range(steps), folder=folder))
    free_1, free_3, bound_1, bound_3 = found
    assert distance(free_1, bound_1) <= 1e-6
    assert distance(free_3, bound_3) > 1e-4


async def test_the_divergence_in_the_reward_does_not_depend_on_the_cut(tmp_path: Path) -> None:
    base, found = policy(tmp_path / "base"), []
    of = spec(loss_config=KL, kl_placement="reward", kl_estimator="k1")
    for tokens in (20, 4096):
        with thread_of(replace(options(1), microbatch_tokens=tokens)) as cut:
            folder = tmp_path / str(tokens)
            found.append(await after_steps(cut, base, of, seeds=range(3), folder=folder))
    assert distance(*found) <= 1e-6


async def test_the_divergence_in_the_reward_matters(thread: LearnerThread, tmp_path: Path) -> None:
    base = policy(tmp_path / "base")
    bound = spec(loss_config=KL, kl_placement="reward", kl_estimator="k1")
    found = [
        await after_steps(thread, base, of, seeds=range(3), folder=tmp_path / name)
        for name, of in (("free", spec()), ("bound", bound))
    ]
    assert distance(*found) > 1e-4


async def test_the_reference_of_a_resumed_run_is_its_base(thread: LearnerThread, tmp_path: Path) -> None:
    base, of = policy(tmp_path / "base"), spec(loss_config=KL)
    async with begun(thread, base, of) as learner:
        await learner.step(rollouts(0))
        await (await learner.snapshot()).save(tmp_path / "state")
        await learner.step(rollouts(1))
        expected = await weights(learner, tmp_path / "expected")
    learner = TorchLearner(thread)
    await learner.resume(of, base, tmp_path / "state")
    await learner.step(rollouts(1))
    assert distance(expected, await weights(learner, tmp_path / "found")) == 0
    await learner.close()


REFUSED = [
    ({"kl_estimator": "k1"}, "without kl_coefficient"),
    ({"loss_config": KL, "kl_estimator": "k4"}, "kl_estimator 'k4' does not exist"),
    ({"loss_config": KL, "kl_placement": "both"}, "kl_placement 'both' does not exist"),
    ({"loss_config": {**KL, "kl_bias_correction": 1}, "kl_placement": "reward"}, "kl_bias_correction"),
    ({"loss_config": {"sampler_weight_high": 2}}, "count the sampler twice"),
    ({"loss": "dro", "loss_config": {"proximal_anchor": 1}}, "no anchor to choose"),
    ({"loss_config": {"sampler_weight_drop": 1}}, "without sampler_weight_high"),
    ({"aggregation": "token_median"}, "aggregation 'token_median'"),
    ({"advantage": "m_grp"}, "did you mean 'm_grpo'"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_what_does_not_fit_is_an_error_at_the_start(config: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidTrainingSpec, match=reason):
        spec(**config)


def test_a_sampler_weight_fits_beside_a_proximal_anchor() -> None:
    config = {"proximal_anchor": 1, "sampler_weight_high": 2, "sampler_weight_drop": 1}
    objective = step_options(spec(loss_config=config), LearnerOptions()).objective
    assert objective.needs_proximal
    assert objective.sampler_weight is not None


def test_m_grpo_averages_over_turns() -> None:
    assert step_options(spec(advantage="m_grpo"), LearnerOptions()).objective.aggregation == "turn_mean"
    chosen = spec(advantage="m_grpo", aggregation="token_mean")
    assert step_options(chosen, LearnerOptions()).objective.aggregation == "token_mean"


async def test_a_scaled_weight_is_that_weight_for_one_step(thread: LearnerThread, tmp_path: Path) -> None:
    base, found = policy(tmp_path / "base"), []
    for number, (weight, factor) in enumerate(((5.0, 1.0), (2.5, 2.0), (2.5, 1.0))):
        of = spec(loss_config={"kl_coefficient": weight})
        async with begun(thread, base, of) as learner:
            for seed in range(3):
                values = (await learner.step(rollouts(seed), Scales(kl=factor))).values
                assert values["kl_weight"] == weight * factor
            found.append(await weights(learner, tmp_path / str(number)))
    whole, scaled, other = found
    assert same(whole, scaled)
    assert distance(scaled, other) > 1e-4
