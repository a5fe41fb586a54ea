"""A run that makes no step ends with the reason, or goes on while `why` shows the reason."""

from dataclasses import replace
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.support import (
    TRAIN,
    announce_graded,
    arith,
    explain,
    finished,
    register,
    run_spec,
    sampling,
    submit,
    until,
)

from scenario_runner.domain.facts import Advanced, GroupSettled, Stopping
from scenario_runner.domain.learning import WithoutStep, alarm, histogram, nothing_to_learn
from scenario_runner.domain.runs import Prices, RunState
from scenario_runner.usecases.explaining import _own_facts
from scenario_runner.usecases.views import find_run, view_of
from scenario_runner.wire.runs import run_to_wire
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.run_config import Training

ZERO = "excluded(zero_spread)"


async def settle(
    planner: PlannerHarness, group: int, rewards: tuple[float, float], reason: str = "zero_spread"
) -> None:
    """Grade a group of two, and let the trainer exclude it; then open the next."""
    members = planner.members(group)
    grades = [planner.graded(member, reward) for member, reward in zip(members, rewards, strict=True)]
    word = GroupSettled(planner.group_id(group), planner.run_id, "excluded", reason, 0, tuple(members))
    await planner.apply(*grades, word)
    await planner.plan_all()


async def train(planner: PlannerHarness, group: int, step: int) -> None:
    members = planner.members(group)
    await planner.apply(*map(planner.graded, members), planner.settled(planner.group_id(group), members))
    await planner.apply(Advanced(planner.run_id, step, step))
    await planner.plan_all()


async def without_step(planner: PlannerHarness) -> WithoutStep:
    _, waits, _, _ = await planner.do(lambda unit: _own_facts(unit, planner.run_id))
    return waits.without_step


async def test_a_run_that_never_makes_a_step_fails_with_outcomes_and_rewards(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=4), num_tasks=3)
    for group in range(2):
        await settle(planner, group, (0.0, 0.0))
    await settle(planner, 2, (0.0, 1.0), "stale")
    await settle(planner, 3, (0.0, 0.0))
    assert (await planner.run()).state is RunState.RUNNING
    await settle(planner, 4, (0.0, 0.0))
    run = await planner.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.FAILED)
    assert run.failure == (
        "nothing to learn: 5 groups in a row were settled without a step: "
        "4 had no spread (every reward was 0.000), 1 excluded(stale); "
        "rewards of 10 episodes: 0.000 x 9, 1.000 x 1; what may help: "
        "easier tasks, rewards that tell attempts apart, longer turns or episodes, or demonstrations first "
        "(upcycle train --sft); see whether the engine follows new versions; or raise stale_after, "
        "or max_staleness for groups of evaluations, or a higher no_step_groups"
    )
    assert (await planner.announced())[f"run.stopping/{planner.run_id}"] == 1
    await check_conservation(planner)


async def test_a_step_begins_the_count_again_and_the_reason_names_it(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=3), num_tasks=3)
    for group in (0, 1):
        await settle(planner, group, (1.0, 1.0))
    await train(planner, 2, step=1)
    for group in (3, 4):
        await settle(planner, group, (1.0, 1.0))
    assert (await planner.run()).state is RunState.RUNNING
    assert dict((await without_step(planner)).groups) == {ZERO: 2}
    await settle(planner, 5, (1.0, 1.0))
    run = await planner.run()
    assert (run.state, run.ending, run.ends_early) == (RunState.DRAINING, RunState.COMPLETED, True)
    assert "3 groups in a row were settled without a step after step 1: 3 had no spread" in run.failure
    assert "what may help: harder tasks: these are solved" in run.failure
    assert (await planner.announced())[f"run.stopping/{planner.run_id}"] == 1
    await planner.apply(Stopping(planner.run_id))
    assert (await planner.run()).state is RunState.COMPLETED
    assert (await planner.run()).failure == run.failure
    await check_conservation(planner)


async def test_what_a_person_should_know_is_a_notice_while_the_run_goes_on(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(prompts=2, no_step_groups=5), num_tasks=3)

    async def notice() -> str:
        view = await planner.do(lambda unit: view_of(unit, find_run(unit, planner.run_id)))
        return run_to_wire(view, Prices()).notice

    for group in range(3):
        await settle(planner, group, (0.0, 0.0))
    assert await notice() == ""
    await settle(planner, 3, (0.0, 0.0))  # min(no_step_groups, 2 * prompts_per_step) is 4
    assert await notice() == "no step yet: 4 of 4 groups had no spread: every reward was 0.000"
    await settle(planner, 4, (0.0, 0.0))
    assert (await planner.run()).ending is RunState.FAILED
    assert await notice() == ""


async def test_a_step_that_arrives_with_the_last_group_counts(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=2), num_tasks=3)
    words = [planner.settled(planner.group_id(group), planner.members(group), "excluded") for group in (0, 1)]
    await planner.apply(*words, Advanced(planner.run_id, 1, 1))
    assert (await planner.run()).state is RunState.RUNNING


async def test_a_run_of_held_out_tasks_ends_too(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=2), num_tasks=3)
    for group in (0, 1):
        await settle(planner, group, (0.0, 1.0), "held_out")
    failure = (await planner.run()).failure
    assert "2 excluded(held_out); rewards of 4 episodes: 0.000 x 2, 1.000 x 2" in failure
    assert "train on tasks that are not held out" in failure


async def test_the_failure_counts_groups_that_wait_for_a_batch(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=2), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(3)), planner.graded(planner.members(2)[0]))
    for group in (0, 1):
        await settle(planner, group, (0.5, 0.5))
    assert "; groups that are graded and not settled: 1; rewards of" in (await planner.run()).failure


async def test_failed_and_cancelled_groups_do_not_count(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=2), num_tasks=3)
    await settle(planner, 0, (0.0, 0.0))
    group = planner.group_id(1)
    await planner.apply(
        *(planner.failed(f"{group}-e{member:03d}-a{n}") for n in range(3) for member in (0, 1))
    )
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    assert dict(counts.groups_by_outcome) == {ZERO: 1, "failed": 1}
    assert (await planner.run()).state is RunState.RUNNING
    await planner.cancel()
    assert dict((await without_step(planner)).groups) == {ZERO: 1}


async def test_a_paused_run_with_nothing_to_learn_ends(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=2), num_tasks=3)
    await planner.pause()
    for group in (0, 1):
        await settle(planner, group, (0.0, 0.0))
    assert (await planner.run()).ending is RunState.FAILED


async def test_a_run_that_is_stopped_is_not_failed_by_what_its_trainer_excludes(
    planner: PlannerHarness,
) -> None:
    await planner.begin(train_spec(no_step_groups=1), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(0)))
    await planner.stop()
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0), "excluded"))
    assert ((await planner.run()).state, (await planner.run()).failure) == (RunState.COMPLETED, "")


async def test_a_run_without_a_limit_goes_on_for_ever(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(steps=0, no_step_groups=2), num_tasks=3)
    for group in range(70):
        await settle(planner, group, (0.0, 0.0))
    await train(planner, 70, step=1_000_000)
    run = await planner.run()
    assert (run.state, run.step) == (RunState.RUNNING, 1_000_000)
    await planner.apply(*map(planner.graded, planner.members(71)))
    await planner.stop()
    assert (await planner.run()).state is RunState.DRAINING  # its trainer may still have a step under way
    await planner.apply(planner.settled(planner.group_id(71), planner.members(71), "excluded"))
    assert (await planner.run()).state is RunState.COMPLETED
    await check_conservation(planner)


def test_limits_of_groups_without_a_step() -> None:
    assert Training(prompts_per_step=16).max_no_step_groups == 128
    assert Training(prompts_per_step=2).max_no_step_groups == 64
    assert Training(prompts_per_step=2, no_step_groups=5).max_no_step_groups == 5


def test_a_step_limit_is_reached_and_none_never_is() -> None:
    assert [Training(steps=3).reached(step) for step in (2, 3, 4)] == [False, True, True]
    assert not Training(steps=0).reached(10**9)


@pytest.mark.parametrize(
    ("rewards", "shown"),
    [
        ({}, "none"),
        ({0.0: 500, 1.0: 12}, "0.000 x 500, 1.000 x 12"),
        ({0.25: 1, 1 / 3: 2}, "0.250 x 1, 0.333333 x 2"),
        ({0.0: 1, 0.1: 2, 0.5: 3, 0.7: 4, 1.0: 5}, "0.000 x 1, 0.100 x 2, 0.500 x 3, 0.700 x 4, 1.000 x 5"),
        (
            {0.0: 1, 0.04: 2, 0.15: 4, 0.62: 8, 0.99: 16, 1.0: 32},
            "0.000 to 0.100 x 3, 0.100 to 0.200 x 4, 0.600 to 0.700 x 8, 0.900 to 1.000 x 48",
        ),
        (
            {0.2: 1, 0.21: 1, 0.25: 1, 0.31: 1, 0.35: 1, 0.4: 1},
            "0.200 to 0.220 x 2, 0.240 to 0.260 x 1, 0.300 to 0.320 x 1, "
            "0.340 to 0.360 x 1, 0.380 to 0.400 x 1",
        ),
    ],
)
def test_a_histogram_is_exact_for_few_values_and_has_ten_bins_for_many(
    rewards: dict[float, int], shown: str
) -> None:
    assert histogram(rewards) == shown


def test_groups_without_spread_are_listed_by_their_rewards() -> None:
    without = WithoutStep(
        {ZERO: 3, "excluded(stale)": 1}, {ZERO: {0.0: 8, 1.0: 16}, "excluded(stale)": {0.5: 4}}
    )
    assert alarm(without, 0) == (
        "no step yet: 3 of 4 groups had no spread: equal rewards within each group, from 0.000 to 1.000; "
        "1 of 4 groups were excluded(stale)"
    )
    assert "rewards of 28 episodes: 0.000 x 8, 0.500 x 4, 1.000 x 16" in nothing_to_learn(without, 0, 0)
    fifty = WithoutStep({ZERO: 50}, {ZERO: {0.0: 400}})
    assert alarm(fifty, 7) == "no step since step 7: 50 of 50 groups had no spread: every reward was 0.000"


def test_a_group_without_rewards_says_so() -> None:
    unknown = replace(WithoutStep(), groups={"excluded(odd)": 2, ZERO: 1})
    text = nothing_to_learn(unknown, 0, 0)
    assert "1 had no spread (their rewards are not known)" in text
    assert "rewards of 0 episodes: none" in text
    assert "see what excluded(odd) means in the log of grpo_trainer" in text


class Excluding:
    """Grades every episode with 0, and excludes each group as a trainer does that finds no spread in it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.members: dict[str, list[str]] = {}

    async def play(self, request: Any) -> None:
        await announce_graded(self.runner, request, 0.0, success=False)
        members = self.members.setdefault(request.episode.group_id, [])
        members.append(request.episode.episode_id)
        if len(members) < request.episode.group_size:
            return
        fact = training_events.GroupSettled(
            group_id=request.episode.group_id,
            run_id=request.episode.run_id,
            model="incident",
            outcome="excluded",
            reason="zero_spread",
            episode_ids=members,
        )
        event_id = f"group.settled/{request.episode.group_id}"
        await self.runner.bus.publish(fact, model="incident", event_id=event_id, author="trainer")


async def test_a_run_that_learns_nothing_ends_on_the_running_service(runner: Runner) -> None:
    await register(runner, arith(3))
    training = taskset_pb2.TrainingConfig(steps=5, prompts_per_step=1, max_staleness=1, no_step_groups=3)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))
    assert run.spec.training.no_step_groups == 3
    async with sampling(runner, Excluding(runner).play):
        done = (await finished(runner, run.run_id)).run
    assert done.state == taskset_pb2.RUN_STATE_FAILED
    assert "groups in a row were settled without a step: " in done.failure
    assert "had no spread (every reward was 0.000)" in done.failure
    assert done.counts.groups_by_outcome[ZERO] >= 3
    assert done.counts.groups_settled == sum(done.counts.groups_by_outcome.values())


async def test_why_names_a_run_without_a_limit_that_learns_nothing(runner: Runner) -> None:
    await register(runner, arith(3))
    training = taskset_pb2.TrainingConfig(steps=0, prompts_per_step=1, max_staleness=1, warmup_steps=7)
    run = await submit(runner, run_spec(TRAIN, 2, training=training))
    assert (run.spec.training.steps, run.spec.training.no_step_groups) == (0, 0)
    async with sampling(runner, Excluding(runner).play):
        await until(runner, run.run_id, lambda counts: counts.groups_by_outcome[ZERO] >= 70)
        why = await explain(runner, run.run_id)
    assert why.run.state == taskset_pb2.RUN_STATE_RUNNING
    (named,) = [reason for reason in why.waiting_for if reason.owner == "you"]
    assert named.what.startswith("alarm: no step yet: ")
    assert named.what.endswith(" groups had no spread: every reward was 0.000")
    assert f"upcycle runs stop {run.run_id}" in named.remedy
    assert "nothing is stuck" not in why.summary
