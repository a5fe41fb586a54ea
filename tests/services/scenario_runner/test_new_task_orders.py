"""Orders for new tasks that go wrong: an environment whose schema is none, or that
is down, a replica that was faster."""

from collections import Counter
from dataclasses import dataclass

import pytest
from tests.services.scenario_runner import test_mix
from tests.services.scenario_runner.planning import PlannerHarness
from tests.services.scenario_runner.test_new_tasks import SCHEMA, Made, new_spec

from episodes import Split
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.environments import EnvironmentLost, GeneratedTask, TaskOrder
from scenario_runner.domain.new_tasks import NewTaskState
from scenario_runner.usecases.generating import MakeTasks
from upcycle.errors import Unavailable
from upcycle.task_rows import task_digest


@pytest.fixture
def made(planner: PlannerHarness) -> Made:
    return Made(planner)


class OddSchema:
    """A served environment that was changed meanwhile."""

    def __init__(self, schema: object) -> None:
        self.schema = schema
        self.num_asked = 0

    async def generate(self, _: TaskOrder) -> GeneratedTask:
        self.num_asked += 1
        return GeneratedTask({"n": 1}, self.schema)  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", [{"properties": ["n"]}, {"properties": 3}, [], None])
async def test_a_schema_that_is_none_ends_the_order(made: Made, schema: object) -> None:
    odd = OddSchema(schema)
    made.make = MakeTasks(made.planner.plan, odd, wake=lambda: None)
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)
    await made.make()
    (row,) = (await made.report()).newest
    assert row.state is NewTaskState.FAILED
    assert "gives a schema of scenario 's' that is none" in row.detail
    assert odd.num_asked == 1


@dataclass
class Overtaken:
    """Another replica fills the order while this one's generator works, with another task."""

    faster: MakeTasks

    async def generate(self, _: TaskOrder) -> GeneratedTask:
        await self.faster()
        return GeneratedTask({"n": 99}, SCHEMA)


async def test_a_replica_that_was_too_late_claims_nothing(made: Made) -> None:
    faster = made.make
    made.make = MakeTasks(made.planner.plan, Overtaken(faster), wake=lambda: None)
    made.generator.answers = [{"n": 7}]
    await made.begin(new_spec())
    await made.play(0, 0.0, 0.0)

    (row,) = (await made.report()).newest
    assert (row.state, row.args_json) == (NewTaskState.PLAYING, '{"n":7}')
    late = task_digest("e", "s", '{"n":99}')
    sides = await made.planner.do(lambda unit: unit.splits([row.digest, late]))
    assert sides == {row.digest: Split.TRAIN, late: Split.UNASSIGNED}


class DownEnvironment:
    """The environment of one taskset does not answer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_made = 0

    async def generate(self, order: TaskOrder) -> GeneratedTask:
        if order.source.name == self.name:
            raise EnvironmentLost("hung up")
        self.num_made += 1
        return GeneratedTask({"n": self.num_made}, SCHEMA)


@pytest.mark.parametrize("share", [0.1, 0.5])
async def test_an_environment_that_is_down_holds_up_its_own_taskset_alone(made: Made, share: float) -> None:
    """share: a tenth leaves four open, a half leaves more than are asked for at once."""
    made.make = MakeTasks(made.planner.plan, DownEnvironment("of-b"), wake=lambda: None)
    await test_mix.begin(made.planner, test_mix.mixed("b:share=0.8", spec=new_spec(share=share)))
    for group in range(20):
        try:
            await made.play(group, 0.0, 0.0)
        except Unavailable:
            await made.planner.plan_all()

    def states(unit: PlanUnit) -> Counter[tuple[str, NewTaskState]]:
        rows = unit.new_tasks.report(made.planner.run_id).newest
        return Counter((unit.source_of(row.taskset).name, row.state) for row in rows)

    found = await made.planner.do(states)
    assert found["of-b", NewTaskState.WANTED] >= 3
    assert found["of-ts", NewTaskState.WANTED] == 0
    assert found["of-ts", NewTaskState.PLAYING] + found["of-ts", NewTaskState.RETIRED] >= 3
