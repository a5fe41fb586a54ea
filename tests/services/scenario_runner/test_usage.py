"""The seconds of a run: each episode and each step once, whatever comes again, late or out of order."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.scenario_runner.planning import PlannerHarness, eval_spec, open_database, train_spec

from scenario_runner.domain.facts import Advanced, Fact
from scenario_runner.domain.runs import Counts, EpisodeState, Prices, RunRecord, RunState, RunView
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.wire.received import advanced, failed, graded
from scenario_runner.wire.runs import result_to_wire, run_to_wire
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity, Usage
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.training.v1.events_pb2 import PolicyPublished, StepCompleted
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

# In the harness a graded episode takes 2 s of engines and 8 s of its environment, a failed one 1 s and 16 s.


def seconds(run: RunRecord) -> tuple[float, float, float]:
    return run.engine_s, run.environment_s, run.trainer_s


async def test_an_episode_that_failed_half_way_counts_beside_the_one_that_replaced_it(
    planner: PlannerHarness,
) -> None:
    await planner.begin(eval_spec(group_size=2), num_tasks=1)
    first, second = planner.members(0)
    await planner.apply(planner.graded(first), planner.failed(second))
    await planner.apply(planner.graded(second[:-1] + "1"))
    run = await planner.run()
    assert run.state is RunState.COMPLETED
    assert seconds(run) == (5.0, 32.0, 0.0)  # 2 + 1 + 2, and 8 + 16 + 8
    task = RunnableTask("t0", "s", "{}", "default", "0" * 64)
    results = [result_to_wire(row, task) for row in await planner.episodes()]
    assert [one.usage.environment_s for one in results] == [8.0, 16.0, 8.0]


async def test_a_cancelled_run_counts_what_its_episodes_took_when_they_end(planner: PlannerHarness) -> None:
    await planner.begin(eval_spec(group_size=2), num_tasks=2)
    graded, playing, failing, unheard = [*planner.members(0), *planner.members(1)]
    await planner.apply(planner.graded(graded))
    await planner.cancel(is_delivered=False)
    assert (await planner.run()).state is RunState.CANCELLED
    assert seconds(await planner.run()) == (2.0, 8.0, 0.0)
    late: list[Fact] = [planner.graded(playing), planner.failed(failing)]
    await planner.apply(*late)
    await planner.apply(*late)
    assert seconds(await planner.run()) == (5.0, 32.0, 0.0)
    states = {row.episode_id: row.state for row in await planner.episodes()}
    assert states[playing] is states[failing] is states[unheard] is EpisodeState.CANCELLED


async def test_an_overdue_episode_counts_its_environment_until_the_deadline(planner: PlannerHarness) -> None:
    await planner.begin(replace(eval_spec(group_size=1), episode_deadline_s=10), num_tasks=1)
    (episode,) = [row.episode_id for row in await planner.episodes()]
    await planner.do(lambda unit: unit.note_opened([episode]))
    planner.now += timedelta(seconds=17)
    await planner.sweep()
    assert seconds(await planner.run()) == (0.0, 15.0, 0.0)
    # Its grade was in the stream first after all: engines are added, the environment counted before.
    await planner.apply(planner.graded(episode))
    assert seconds(await planner.run()) == (2.0, 15.0, 0.0)


async def test_a_step_counts_once_however_often_it_is_announced(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(), num_tasks=3)
    published = Advanced(planner.run_id, 2, 2)  # policy.published may come first, and says no seconds
    await planner.apply(Advanced(planner.run_id, 1, 1, 4.0), published, Advanced(planner.run_id, 2, 2, 7.5))
    await planner.apply(Advanced(planner.run_id, 1, 1, 4.0), Advanced(planner.run_id, 2, 2, 7.5), published)
    assert seconds(await planner.run()) == (0.0, 0.0, 7.5)


DELIVERIES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["grade", "fail", "step"])), max_size=20)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(deliveries=DELIVERIES)
def test_no_order_and_no_redelivery_counts_a_second_twice(
    tmp_path_factory: pytest.TempPathFactory, deliveries: list[tuple[int, str]]
) -> None:
    asyncio.run(_deliver(tmp_path_factory.mktemp("usage"), deliveries))


async def _deliver(folder: Path, deliveries: list[tuple[int, str]]) -> None:
    planner = PlannerHarness(await open_database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        await planner.begin(train_spec(), num_tasks=3)
        episodes = [*planner.members(0), *planner.members(1)]
        for number, kind in deliveries:
            said: dict[str, Fact] = {
                "grade": planner.graded(episodes[number]),
                "fail": planner.failed(episodes[number]),
                "step": Advanced(planner.run_id, number, number, number * 0.5),
            }
            await planner.apply(said[kind])
        outcomes = [(number, kind) for number, kind in deliveries if kind != "step"]
        first = dict(reversed(outcomes)).values()
        steps = [number * 0.5 for number, kind in deliveries if kind == "step"]
        expected = (
            sum(2.0 if kind == "grade" else 1.0 for kind in first),
            sum(8.0 if kind == "grade" else 16.0 for kind in first),
            max(steps, default=0.0),
        )
        assert seconds(await planner.run()) == expected
    finally:
        await planner.database.stop()


def test_seconds_are_read_from_the_facts_of_sampler_grader_and_trainer() -> None:
    episode = EpisodeIdentity(episode_id="e", run_id="r")
    spent = Usage(engine_s=1.5, environment_s=6.0)
    delivery: Any = None
    for fact in (
        graded(TrajectoryGraded(episode=episode, usage=spent), delivery),
        failed(EpisodeFailed(episode=episode, usage=spent), delivery),
    ):
        assert (fact.engine_s, fact.environment_s) == (1.5, 6.0)
    step = StepCompleted(run_id="r", step=3, version=4, usage=Usage(trainer_s=9.0))
    assert advanced(step, delivery) == Advanced("r", 3, 4, 9.0, ())
    assert advanced(PolicyPublished(run_id="r", step=3, version=4), delivery) == Advanced("r", 0, 4, 0.0)


async def test_a_run_has_a_cost_only_where_a_price_is_set(planner: PlannerHarness) -> None:
    await planner.submit(eval_spec(), num_tasks=1)
    run = replace(await planner.run(), engine_s=1800.0, environment_s=7200.0, trainer_s=900.0)
    view = RunView(run, Counts({}))
    usage = run_to_wire(view, Prices(engine=3.0, trainer=4.0, environment=0.01)).usage
    assert usage.cost == pytest.approx(1.5 + 1.0 + 0.02)  # half an hour, a quarter, two hours
    assert run_to_wire(view, Prices(engine=3.0)).usage.cost == 1.5
    without = run_to_wire(view, Prices()).usage
    assert (without.HasField("cost"), without.engine_s, without.trainer_s) == (False, 1800.0, 900.0)
