"""The tables of names and limits against what they speak of: the mathematics, the trainer, the planner, the
contract."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.libs.upcycle.run_config.bad_runs import BAD_TRAININGS

from grpo_math.advantages import ADVANTAGES, AGGREGATION_OF, DEFAULT_ADVANTAGE, OF_PARTS, OF_ROLES
from grpo_math.aggregation import AGGREGATIONS
from grpo_math.divergence import KL_KINDS, KL_PLACEMENTS
from grpo_math.errors import GrpoMathError, UnknownName
from grpo_math.objective import DEFAULT_LOSS, LOSSES, KlChoice, build_objective
from grpo_trainer import wire as trainer_wire
from grpo_trainer.domain import schedules
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.learner.core import LearnerOptions, new_optimizer, step_options
from grpo_trainer.learner.rate_schedule import RateSchedule
from scenario_runner.wire import runs as planner_wire
from service_kit.errors import InvalidRequest
from upcycle import run_config
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.taskset.v1.events_pb2 import RunSubmitted

NUM_RANDOM = 800
ODD_VALUES = (-1.0, -1e-6, 0.0, 1e-6, 0.2, 0.5, 1 - 1e-6, 1.0, 1 + 1e-6, 2.0, 5.0, 1e9)
EVERY_OPTION = sorted(
    {*run_config.OBJECTIVE_OPTIONS, *(o for x in run_config.LOSSES.values() for o in x.options)}
)


def test_names_are_those_of_the_mathematics_and_of_the_curves() -> None:
    assert set(run_config.LOSSES) == set(LOSSES)
    assert set(run_config.ADVANTAGES) == {*ADVANTAGES, *OF_PARTS, *OF_ROLES}
    assert set(run_config.AGGREGATIONS) == set(AGGREGATIONS)
    assert set(AGGREGATION_OF.values()) <= set(run_config.AGGREGATIONS)
    assert run_config.KL_ESTIMATORS == KL_KINDS
    assert run_config.KL_PLACEMENTS == KL_PLACEMENTS
    curves = {schedules.CONSTANT, schedules.LINEAR, schedules.COSINE}
    assert set(run_config.SCHEDULES) == curves
    assert len({schedules.Schedule(name, 4, 0, 0.0).factor(1) for name in curves}) == 3


def mathematics_refuses(loss: str, options: Mapping[str, float], **kl: str) -> GrpoMathError | None:
    """What building the objective says."""
    try:
        build_objective(loss, options, kl=KlChoice(**kl))
    except GrpoMathError as error:
        return error
    return None


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_options_of_a_loss_are_those_that_the_mathematics_knows(loss: str) -> None:
    tried = [*EVERY_OPTION, "anchor", "ratio_level", "holds_sampler_ratio", "clip"]
    known = {one for one in tried if not isinstance(mathematics_refuses(loss, {one: 1.0}), UnknownName)}
    assert known == {*run_config.LOSSES[loss].options, *run_config.OBJECTIVE_OPTIONS}
    numeric = {f.name for f in dataclasses.fields(LOSSES[loss]) if isinstance(f.default, bool | float)}
    assert numeric == set(run_config.LOSSES[loss].options)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_each_option_has_the_limits_of_the_mathematics(loss: str) -> None:
    outcomes = Counter[bool]()
    for option in EVERY_OPTION:
        for value in ODD_VALUES:
            given = {option: value}
            refused = run_config.loss_refusals(loss, given)
            error = mathematics_refuses(loss, given)
            assert bool(refused) == (error is not None), (given, refused, error)
            outcomes[bool(refused)] += 1
    assert min(outcomes[True], outcomes[False]) > 20


def some_options(draw: random.Random, loss: str) -> dict[str, float]:
    fitting = [*run_config.LOSSES.get(loss, run_config.Loss()).options, *run_config.OBJECTIVE_OPTIONS]
    names = draw.sample(fitting, draw.choice((0, 0, 1, 2, 3)))
    if draw.random() < 0.1:
        names.append(draw.choice([*EVERY_OPTION, "clip"]))
    return {name: draw.choice(ODD_VALUES) for name in names}


def test_random_objectives_are_refused_by_both_or_by_neither() -> None:
    draw, outcomes = random.Random(7), Counter[bool]()
    for _ in range(NUM_RANDOM):
        loss = draw.choice([*sorted(LOSSES), "ppoo"])
        options = some_options(draw, loss)
        kl = {
            "estimator": draw.choice(["k3"] * 6 + ["k1", "k2"]),
            "placement": draw.choice(["loss"] * 6 + ["reward"]),
        }
        refused = run_config.loss_refusals(
            loss, options, kl_estimator=kl["estimator"], kl_placement=kl["placement"]
        )
        error = mathematics_refuses(loss, options, **kl)
        assert bool(refused) == (error is not None), (loss, options, kl, refused, error)
        outcomes[bool(refused)] += 1
    assert min(outcomes[True], outcomes[False]) > 100


USUAL_AND_ODD: dict[str, tuple[list[Any], list[Any]]] = {
    "group_size": ([2, 8], [0, 1, 1024, 1025]),
    "steps": ([1, 4, 100], [0, -1, 10**9 + 1]),
    "prompts_per_step": ([1, 16], [0, 256, 257, 2048]),
    "max_staleness": ([0, 4], [-1, 1001]),
    "stale_after": ([0, 40], [-1, 8001]),
    "min_spread": ([0.0, 0.1], [-0.1, float("nan")]),
    "solved_groups": (["train", "skip"], ["", "none"]),
    "single_sessions": (["leave_out"], ["batch", "", "mean"]),
    "drift_groups": ([0, 1], [-1, 1000]),
    "turn_credit": (["episode", "turn"], ["", "token"]),
    "turn_discount": ([1.0], [0.9, -0.1, 1.1]),
    "turn_reward_weight": ([1.0], [0.0, 0.5, -1.0]),
    "reward_schedule": (["constant"], ["fade", "", "linear"]),
    "fade_at": ([0.8], [0.5, 0.0, 1.1]),
    "fade_steps": ([10], [5, 0]),
    "task_sampler": (["uniform", "spread", "age"], ["", "oldest"]),
    "guidance": (["off", "on_failure"], ["", "always"]),
    "guidance_max_share": ([0.25], [0.5, 0.0, 1.1]),
    "new_tasks": (["off", "failed", "solved"], ["", "all"]),
    "new_tasks_share": ([0.25], [0.5, 0.0, 1.1]),
    "new_tasks_retire_after": ([2], [3, 0, 1001]),
    "new_tasks_difficulty": ([""], ["steps"]),
    "new_tasks_min_success": ([0.05], [0.1, 0.8, -0.1, 1.1]),
    "new_tasks_max_success": ([0.75], [0.9, 0.0, -0.1, 1.1]),
    "self_play": ([""], ["inject:repair", "inject", "a:a", "a:b:c", ":b"]),
    "self_play_alpha": ([0.8], [0.5, -0.1, 1.1]),
    "self_play_order": ([1], [2, 0, 9]),
    "cut_off_episodes": (["train", "leave_out"], ["", "skip"]),
    "lr_success_decay": ([0.0, 0.5], [-0.1, 1.0, float("nan")]),
    "kl_success_growth": ([0.0], [2.0, -1.0, 1001.0]),
    "process_rewards": ([[]], [["style"]]),
    "learning_rate": ([1e-5, 10.0], [0.0, -1e-5, 10.1, float("nan"), float("inf")]),
    "max_grad_norm": ([1.0], [0.0, float("inf")]),
    "loss": (sorted(set(LOSSES) - {"cross_entropy"}), ["cross_entropy", "ppoo"]),
    "advantage": ([*sorted(ADVANTAGES), *OF_PARTS], [*OF_ROLES, "grp"]),
    "checkpoint_every_steps": ([1, 10], [0]),
    "weight_decay": ([0.0, 0.1], [-0.1, float("nan")]),
    "adam_beta1": ([0.0, 0.9], [1.0, -0.1]),
    "adam_beta2": ([0.95], [1.0]),
    "aggregation": (["", *AGGREGATIONS], ["token_median"]),
    "kl_estimator": (["k3"], ["k1", "k4"]),
    "kl_placement": (["loss"], ["reward", "both"]),
    "lr_schedule": (["constant", ""], ["linear", "cosine", "cubic"]),
    "warmup_steps": ([0], [1, 3, 4, 100, -1]),
    "min_lr_fraction": ([0.0], [0.5, 1.0, 1.5, float("nan")]),
    "lora_rank": ([0, 4], [-1, 65537]),
    "lora_alpha": ([0.0], [8.0, -1.0, float("inf")]),
    "lora_targets": (["all-linear"], ["q_proj,v_proj", "", "q_proj,,v_proj"]),
    "score_failures": ([True], [False]),
}
"""Values of each field that usually fit, and such that often do not."""


def some_config(draw: random.Random) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name, (usual, odd) in USUAL_AND_ODD.items():
        config[name] = draw.choice(odd if draw.random() < 0.035 else usual)
    config["loss_config"] = some_options(draw, config["loss"]) if draw.random() < 0.2 else {}
    return config


def message_of(config: Mapping[str, Any]) -> ts.RunSpec:
    """The message of a training run with these hyperparameters and this group_size."""
    training = {name: value for name, value in config.items() if name != "group_size"}
    policy = common_pb2.PolicySelector(model="tiny")
    return ts.RunSpec(
        taskset="t",
        purpose=common_pb2.PURPOSE_TRAIN,
        policy=policy,
        group_size=config.get("group_size", 4),
        training=ts.TrainingConfig(**training),
    )


def trainer_refuses(message: ts.RunSpec) -> str:
    """What the trainer says as it begins a session, up to the model; empty where it begins."""
    try:
        spec = trainer_wire.spec_from_wire(RunSubmitted(run_id="run-1", spec=message))
    except InvalidTrainingSpec as error:
        return str(error).removeprefix("run run-1: ")
    options = step_options(spec, LearnerOptions())
    assert options.objective.aggregation in AGGREGATIONS
    rates = RateSchedule(new_optimizer([torch.nn.Parameter(torch.zeros(1))], spec), spec.schedule)
    assert 0 < rates.rate <= spec.peak_rate
    return ""


def planner_refuses(message: ts.RunSpec) -> str:
    """What SubmitRun says before it looks at tasksets and models; empty where it goes on."""
    try:
        planner_wire.spec_from_wire(message)
    except InvalidRequest as error:
        return str(error)
    return ""


def test_random_configurations_are_refused_by_planner_and_trainer_with_the_same_words() -> None:
    draw, outcomes = random.Random(11), Counter[bool]()
    for _ in range(NUM_RANDOM):
        message = message_of(some_config(draw))
        refused = planner_refuses(message)
        assert trainer_refuses(message) == refused, message
        outcomes[bool(refused)] += 1
    assert min(outcomes[True], outcomes[False]) > 100


@pytest.mark.parametrize(("config", "said"), BAD_TRAININGS)
def test_a_bad_run_is_refused_by_planner_and_trainer_with_the_same_words(
    config: dict[str, Any], said: str
) -> None:
    message = message_of(config)
    assert said in planner_refuses(message)
    assert trainer_refuses(message) == planner_refuses(message)


def test_loss_and_advantage_default_to_those_of_the_mathematics() -> None:
    training = run_config.Training()
    assert (training.loss, training.advantage) == (DEFAULT_LOSS, DEFAULT_ADVANTAGE)


def test_the_trainer_adds_no_hyperparameter_of_its_own() -> None:
    own = {one.name for one in dataclasses.fields(TrainingSpec)}
    shared = {one.name for one in dataclasses.fields(run_config.Training)}
    assert own - shared == {"run_id", "model", "group_size", "held_out_taskset", "held_out_split", "tasksets"}


@pytest.mark.parametrize("config", [{"steps": 0}, {"steps": 0, "warmup_steps": 500}, {"no_step_groups": 1}])
def test_a_run_without_an_end_may_warm_up(config: dict[str, Any]) -> None:
    assert planner_refuses(message_of(config)) == ""
