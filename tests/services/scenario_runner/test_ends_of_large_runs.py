"""The end of a run with very many episodes: no transaction of the planner reads all of them."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import RULES, PlannerHarness, train_spec
from tests.services.scenario_runner.test_sweeps import Others
from tests.services.test_restarts import fill

from episodes import Split
from identities.entities import episode_id, group_id
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.adapters.tables import EPISODE, GROUP
from scenario_runner.domain.runs import EpisodeState, GroupRow, RunState
from scenario_runner.loops import SweepLoop
from sql_store import MigratedDatabase

T = TypeVar("T")
GROUP_SIZE: Final = 2
_SWEEPS: Final = 20


class CountedDatabase(MigratedDatabase):
    """Counts the steps of SQLite's machine of each transaction, in hundreds."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "scenario_runner")
        self.steps: list[int] = []

    async def run(self, fn: Callable[[sa.Connection], T]) -> T:
        def counted(connection: sa.Connection) -> T:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            self.steps.append(0)
            raw.set_progress_handler(self._step, 100)
            try:
                return fn(connection)
            finally:
                raw.set_progress_handler(None, 100)

        return await super().run(counted)

    def _step(self) -> int:
        self.steps[-1] += 1
        return 0


class LargeRun:
    """A training run that was stopped, of which one group is not settled."""

    def __init__(self, database: CountedDatabase) -> None:
        self.database = database
        self.planner = PlannerHarness(database)
        others: Any = Others()
        outcomes = BusOutcomes(others)
        self.loop = SweepLoop(
            self.planner.plan, others, others, outcomes, RULES, now=lambda: self.planner.now
        )

    async def begin(self, num_groups: int) -> None:
        """With so many groups that were trained, and one that was offered to the trainer."""
        planner = self.planner
        await planner.submit(train_spec(GROUP_SIZE, prompts=1, staleness=0, steps=0), num_tasks=10)
        names = [group_id(planner.run_id, position) for position in range(num_groups)]
        await fill(self.database, GROUP, [
            {"group_id": name, "run_id": planner.run_id, "position": position, "taskset": "ts",
             "expected_members": GROUP_SIZE, "num_graded": GROUP_SIZE, "outcome": "trained",
             "at_step": position}
            for position, name in enumerate(names)
        ])  # fmt: skip
        await fill(self.database, EPISODE, [
            {"episode_id": episode_id(name, member, 0), "run_id": planner.run_id, "group_id": name,
             "member": member, "state": EpisodeState.TRAINED.value, "reward": 0.5, "success": True,
             "split": Split.TRAIN.value, "taskset": "ts"}
            for name in names for member in range(GROUP_SIZE)
        ])  # fmt: skip
        await planner.do(lambda unit: self._count(unit, num_groups))
        await planner.plan_all()
        await planner.apply(*(planner.graded(name) for name in planner.members(num_groups)))
        await planner.stop()

    def _count(self, unit: PlanUnit, num_groups: int) -> None:
        run = unit.run(self.planner.run_id)
        assert run is not None
        graded = num_groups * GROUP_SIZE
        unit.update_run(
            replace(
                run,
                step=num_groups,
                next_position=num_groups,
                num_graded=graded,
                num_successes=graded,
                reward_sum=graded / 2,
            )
        )

    async def end(self, num_groups: int) -> int:
        """The last group is settled, and the run is swept until it is over. Returns the steps of the longest
        transaction."""
        self.database.steps.clear()
        planner = self.planner
        await planner.apply(planner.settled(planner.group_id(num_groups), planner.members(num_groups)))
        for _ in range(_SWEEPS):
            if (await planner.run()).state is RunState.COMPLETED:
                return max(self.database.steps)
            await self.loop._sweep_all()
        raise AssertionError(f"the run is {(await planner.run()).state} after {_SWEEPS} sweeps")


@pytest.fixture
async def large(tmp_path: Path) -> AsyncIterator[Callable[[int], Any]]:
    begun: list[CountedDatabase] = []

    async def begin(num_groups: int) -> LargeRun:
        begun.append(CountedDatabase(f"sqlite:///{tmp_path}/{num_groups}.sqlite"))
        await begun[-1].start()
        run = LargeRun(begun[-1])
        await run.begin(num_groups)
        return run

    yield begin
    for database in begun:
        await database.stop()


async def test_no_transaction_is_longer_for_a_run_with_more_episodes(large: Callable[[int], Any]) -> None:
    few, many = [await (await large(number)).end(number) for number in (2500, 12_500)]
    assert many <= 1.2 * few, f"{few} hundreds of steps with 5,000 episodes, {many} with 25,000"


async def test_what_was_miscounted_is_corrected(
    large: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = await large(2500)
    planner = run.planner
    wrong = planner.group_id(2100)

    def miscount(unit: PlanUnit) -> None:
        found, group = unit.run(planner.run_id), unit.group(wrong)
        assert found is not None
        assert group is not None
        unit.update_run(replace(found, num_graded=1, reward_sum=7.0))
        unit.update_group(replace(group, num_graded=0))

    await planner.do(miscount)
    await run.end(2500)
    ended = await planner.run()
    assert (ended.num_graded, ended.num_successes, ended.reward_sum) == (5002, 5002, 2502.0)
    group: GroupRow = await planner.do(lambda unit: unit.group(wrong))
    assert group.num_graded == GROUP_SIZE
    (record,) = [one for one in caplog.records if one.message == "run_was_miscounted"]
    assert (record.__dict__["graded"], record.__dict__["groups"]) == (5002, 1)


async def test_a_run_that_changes_while_it_is_counted_is_counted_anew(large: Callable[[int], Any]) -> None:
    run = await large(2500)
    planner = run.planner

    async def change() -> None:
        """A row that a planner of another version wrote."""
        late = sa.update(EPISODE).where(EPISODE.c.episode_id == planner.members(2)[0])
        await run.database.run(lambda sql: sql.execute(late.values(state="excluded", reward=1.0)))

    await planner.apply(planner.settled(planner.group_id(2500), planner.members(2500)))
    counted = await run.loop._recounts(await planner.run())
    assert counted is not None
    assert counted.num_graded == 5002
    await change()
    await run.loop._sweep_all()
    assert (await planner.run()).reward_sum == 2502.5
