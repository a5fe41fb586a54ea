"""The planner's decisions on a real database: whatever happens, in whatever order, conservation holds."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scenario_runner.adapters.sql_plan import SqlPlan
from scenario_runner.domain import plan as decisions
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.runs import (
    Advanced,
    EpisodeRow,
    EpisodeState,
    Fact,
    Failed,
    Graded,
    GroupSettled,
    PolicyChoice,
    Purpose,
    RegisteredTaskset,
    RunnableTask,
    RunRecord,
    RunSpec,
    RunState,
    Split,
    Training,
)
from scenario_runner.ports import PlanUnit
from scenario_runner.usecases.planning import PlanRules, apply_facts, end_run, plan_more, sweep
from sql_store import Database, migrate

T = TypeVar("T")
RULES = PlanRules(eval_episodes_in_flight=6, groups_per_transaction=3, ending_grace_s=20)
START = datetime(2026, 1, 1, tzinfo=UTC)


class World:
    """A plan on SQLite, a clock, and what the outside knows of the run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = START
        self.plan = SqlPlan(database, now=lambda: self.now)
        self.run_id = "run-000000000001"

    async def do(self, work: Callable[[PlanUnit], T]) -> T:
        return await self.plan.transact(work)

    async def submit(self, spec: RunSpec, num_tasks: int) -> None:
        tasks = tuple(RunnableTask(f"t{n}", "s", "{}", "default", f"{n:064d}") for n in range(num_tasks))
        source = PythonEnvironment("e", "/e.py")
        taskset = RegisteredTaskset("ts", "0" * 64, Split.TRAIN, source, num_tasks, tasks)
        run = RunRecord(
            self.run_id, "r", spec, Split.TRAIN, taskset.digest, RunState.RUNNING, self.now, num_tasks
        )

        def add(unit: PlanUnit) -> None:
            unit.add_taskset(taskset)
            unit.add_run(run)

        await self.do(add)

    async def plan_all(self) -> int:
        planned = 0
        while count := await self.do(lambda unit: plan_more(unit, self.run_id, RULES)):
            planned += count
        return planned

    async def hear(self, *facts: Fact) -> None:
        await self.do(lambda unit: apply_facts(unit, facts))

    async def sweep(self, *, queue_is_idle: bool = False) -> None:
        await self.do(lambda unit: sweep(unit, self.run_id, RULES, queue_is_idle=queue_is_idle))

    async def cancel(self) -> None:
        def end(unit: PlanUnit) -> None:
            run = unit.run(self.run_id)
            assert run is not None
            end_run(unit, run, RunState.CANCELLED, "run_cancelled")

        await self.do(end)

    async def run(self) -> RunRecord:
        run = await self.do(lambda unit: unit.run(self.run_id))
        assert run is not None
        return run

    async def episodes(self) -> list[EpisodeRow]:
        """Every attempt at every member."""
        return await self.do(lambda unit: _all_episodes(unit, self.run_id))

    async def announced(self) -> Counter[str]:
        """Outbox rows by the first part of their event id, with the id kept for what must be unique."""
        rows = await self.database.run(
            lambda sql: list(sql.execute(sa.text("SELECT event_id FROM outbox")).scalars())
        )
        return Counter(str(row) for row in rows)

    def graded(self, episode_id: str, reward: float = 1.0) -> Graded:
        return Graded(episode_id, self.run_id, reward, reward == 1.0, 2, 1, 1)

    def failed(self, episode_id: str, failure: str = "engine_error") -> Failed:
        return Failed(episode_id, self.run_id, failure, "detail")

    def settled(self, group_id: str, episode_ids: list[str], outcome: str = "trained") -> GroupSettled:
        reason = "" if outcome == "trained" else "zero_spread"
        return GroupSettled(group_id, self.run_id, outcome, reason, 1, tuple(episode_ids))


def _all_episodes(unit: PlanUnit, run_id: str) -> list[EpisodeRow]:
    groups = {row.group_id for row in unit.results(run_id)}
    unit.prefetch(groups)
    return [row for group_id in sorted(groups) for row in unit.members(group_id)]


@pytest.fixture
async def world(sql_url: str) -> AsyncIterator[World]:
    """On SQLite, and on Postgres where this machine has it."""
    database = await _database(sql_url)
    yield World(database)
    await database.stop()


async def _database(url: str) -> Database:
    database = Database(url)
    await database.start()
    await migrate(database, "scenario_runner")
    return database


def train_spec(group_size: int = 2, prompts: int = 2, staleness: int = 1, steps: int = 100) -> RunSpec:
    training = Training(steps=steps, prompts_per_step=prompts, max_staleness=staleness)
    return RunSpec("ts", Purpose.TRAIN, PolicyChoice("m"), group_size, training=training)


def eval_spec(group_size: int = 2) -> RunSpec:
    return RunSpec("ts", Purpose.EVAL, PolicyChoice("m"), group_size)


async def test_a_training_run_fills_its_slots_and_no_more(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    assert await world.plan_all() == 4
    assert await world.plan_all() == 0
    episodes = await world.episodes()
    assert [row.episode_id for row in episodes] == [
        f"{world.run_id}-g{group:05d}-e{member:03d}-a0" for group in range(4) for member in range(2)
    ]
    announced = await world.announced()
    assert announced[f"episode.requested/{episodes[0].episode_id}"] == 1
    assert announced[f"episode.requested/{episodes[0].episode_id}/d1"] == 1


async def test_two_planners_take_turns(world: World, sql_url: str) -> None:
    await world.submit(train_spec(), num_tasks=3)
    other = Database(sql_url)
    await other.start()
    plans = [world.plan, SqlPlan(other, now=lambda: world.now)]
    planned = await asyncio.gather(
        *(plan.transact(lambda unit: plan_more(unit, world.run_id, RULES)) for plan in plans * 3)
    )
    await other.stop()
    assert sum(planned) == 4
    assert len(await world.episodes()) == 8
    assert set((await world.announced()).values()) == {1}


async def test_a_slot_is_freed_only_when_its_group_is_settled(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.plan_all()
    group = f"{world.run_id}-g00000"
    members = [f"{group}-e00{n}-a0" for n in range(2)]
    await world.hear(*(world.graded(member) for member in members))
    assert await world.plan_all() == 0
    await world.hear(world.settled(group, members))
    assert await world.plan_all() == 1
    states = {row.episode_id: (row.state, row.reason) for row in await world.episodes()}
    assert states[members[0]] == (EpisodeState.TRAINED, "step 1")


async def test_an_evaluation_plays_every_task_in_a_bounded_window(world: World) -> None:
    await world.submit(eval_spec(), num_tasks=5)
    assert await world.plan_all() == 3  # 6 episodes in flight / group of 2
    played: set[str] = set()
    while (await world.run()).state is RunState.RUNNING:
        waiting = [row for row in await world.episodes() if row.is_unsettled]
        assert len(waiting) <= RULES.eval_episodes_in_flight
        played.update(row.episode_id for row in waiting)
        await world.hear(*(world.graded(row.episode_id, 0.5) for row in waiting[:3]))
        await world.plan_all()
    run = await world.run()
    assert run.state is RunState.COMPLETED
    assert (run.num_graded, run.reward_mean, run.success_rate) == (10, 0.5, 0.0)
    assert len(played) == 10
    assert sorted({row.task_position for row in await world.episodes()}) == [0, 1, 2, 3, 4]
    assert (await world.announced())[f"run.finished/{world.run_id}"] == 1


async def test_a_fact_heard_twice_changes_nothing(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.plan_all()
    group = f"{world.run_id}-g00000"
    first, second = [f"{group}-e00{n}-a0" for n in range(2)]
    facts: list[Fact] = [world.graded(first), world.failed(second), world.graded(f"{group}-e001-a1")]
    facts += [world.settled(group, [first, f"{group}-e001-a1"])]
    await world.hear(*facts)
    before = await world.episodes(), await world.run(), await world.announced()
    await world.hear(*facts, *facts)
    # And contradictions that come late lose: the first terminal state stands.
    await world.hear(world.failed(first), world.graded(second), world.settled(group, [], "excluded"))
    assert (await world.episodes(), await world.run(), await world.announced()) == before


async def test_a_settled_group_cancels_the_members_it_did_not_wait_for(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.plan_all()
    group = f"{world.run_id}-g00000"
    await world.hear(world.graded(f"{group}-e000-a0"), world.settled(group, [f"{group}-e000-a0"], "excluded"))
    states = [(row.state.value, row.reason) for row in await world.episodes() if row.group_id == group]
    assert states == [("excluded", "zero_spread"), ("cancelled", "group_settled")]
    assert (await world.announced())[f"episode.cancelled/{group}-e001-a0"] == 1


async def test_the_last_step_ends_a_run_at_once(world: World) -> None:
    await world.submit(train_spec(steps=1), num_tasks=3)
    await world.plan_all()
    trained, graded = f"{world.run_id}-g00000", f"{world.run_id}-g00001-e000-a0"
    members = [f"{trained}-e00{n}-a0" for n in range(2)]
    await world.hear(*map(world.graded, members), world.graded(graded), world.settled(trained, members))
    await world.hear(Advanced(world.run_id, 1, 1))
    run = await world.run()
    assert (run.state, run.policy_version) == (RunState.COMPLETED, 1)
    counts = await world.do(lambda unit: unit.counts(world.run_id))
    assert {state.value: count for state, count in counts.by_state.items()} == {"trained": 2, "cancelled": 6}
    assert (await world.announced())[f"run.finished/{world.run_id}"] == 1
    assert await world.plan_all() == 0


async def test_graded_leftovers_of_a_cancelled_run_get_a_grace_period(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.plan_all()
    graded = f"{world.run_id}-g00001-e000-a0"
    await world.hear(world.graded(graded))
    await world.cancel()
    run = await world.run()
    assert (run.state, run.ending) == (RunState.DRAINING, RunState.CANCELLED)
    assert [row.episode_id for row in await world.episodes() if row.is_unsettled] == [graded]
    assert await world.plan_all() == 0
    await world.sweep()
    assert (await world.run()).state is RunState.DRAINING
    world.now += timedelta(seconds=21)
    await world.sweep()
    assert (await world.run()).state is RunState.CANCELLED
    assert not [row for row in await world.episodes() if row.is_unsettled]


async def test_what_is_overdue_fails_by_name_and_what_was_lost_is_queued_again(world: World) -> None:
    await world.submit(replace(eval_spec(group_size=1), episode_deadline_s=10), num_tasks=2)
    await world.plan_all()
    opened, lost = [row.episode_id for row in await world.episodes()]
    await world.do(lambda unit: unit.note_opened([opened]))
    world.now += timedelta(seconds=11)
    await world.sweep(queue_is_idle=False)
    announced = await world.announced()
    assert announced[f"episode.outcome/{opened}"] == 1
    assert announced[f"episode.requested/{opened[:-1]}1"] == 1
    assert f"episode.requested/{lost}/d2" not in announced  # it may still be in the queue
    await world.sweep(queue_is_idle=True)
    assert (await world.announced())[f"episode.requested/{lost}/d2"] == 1
    await world.sweep(queue_is_idle=True)
    assert f"episode.requested/{lost}/d3" not in await world.announced()


async def test_a_grade_that_crossed_our_own_timeout_stands(world: World) -> None:
    await world.submit(replace(train_spec(), episode_deadline_s=10), num_tasks=3)
    await world.plan_all()
    slow, other = [f"{world.run_id}-g0000{n}-e000-a0" for n in range(2)]
    await world.do(lambda unit: unit.note_opened([slow, other]))
    world.now += timedelta(seconds=11)
    await world.sweep()
    states = {row.episode_id: row.state for row in await world.episodes()}
    assert states[slow] is EpisodeState.FAILED
    assert states[slow[:-1] + "1"] is EpisodeState.PLANNED
    # The grade was in the stream first, so our failure was dropped there as its duplicate.
    await world.hear(world.graded(slow), world.graded(slow))
    episodes = {row.episode_id: row for row in await world.episodes()}
    assert (episodes[slow].state, episodes[slow].reason) == (EpisodeState.GRADED, "")
    assert episodes[slow[:-1] + "1"].reason == "graded_after_all"
    assert (await world.run()).num_graded == 1
    # Too late for its group: the ledger still has to hear that nobody will use it.
    group = other.rsplit("-e", 1)[0]
    await world.hear(world.settled(group, [], "excluded"), world.graded(other))
    assert (await world.announced())[f"episode.cancelled/{other}"] == 1
    assert {row.episode_id: row.state for row in await world.episodes()}[other] is EpisodeState.FAILED
    await _check(world)


async def test_a_cancelled_run_is_over_at_once_when_nothing_is_graded(world: World) -> None:
    await world.submit(train_spec(), num_tasks=3)
    await world.plan_all()

    await world.cancel()
    await world.sweep()
    run = await world.run()
    assert run.state is RunState.CANCELLED
    counts = await world.do(lambda unit: unit.counts(world.run_id))
    assert (counts.requested, counts.settled, counts.in_flight, counts.groups_open) == (8, 8, 0, 0)


def test_each_epoch_is_a_permutation_and_epochs_differ() -> None:
    order = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=0, count=150)]
    epochs = [order[start : start + 50] for start in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    resumed = [index for _, index in decisions.tasks_from(seed=7, num_tasks=50, position=70, count=20)]
    assert resumed == order[70:90]
    assert decisions.task_at(7, 50, 70) == order[70]


def test_every_attempt_samples_with_its_own_seed() -> None:
    seeds = {decisions.episode_seed(1, f"g-e000-a{attempt}") for attempt in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert decisions.episode_seed(1, "x") == decisions.episode_seed(1, "x") != decisions.episode_seed(2, "x")


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["grade", "fail", "settle", "exclude", "plan", "sweep", "late", "tick", "open", "stray"]
        ),
        st.integers(0, 10_000),
    ),
    max_size=40,
)


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.EVAL])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_conservation_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, purpose: Purpose, actions: list[tuple[str, int]]
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), purpose, actions))


async def _play(folder: Path, purpose: Purpose, actions: list[tuple[str, int]]) -> None:
    world = World(await _database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        await world.submit(train_spec(steps=5) if purpose is Purpose.TRAIN else eval_spec(), num_tasks=4)
        for action, pick in actions:
            await _act(world, action, pick)
            await _check(world)
        await _drain(world)
    finally:
        await world.database.stop()


async def _act(world: World, action: str, pick: int) -> None:
    if action == "plan":
        await world.plan_all()
    elif action == "tick":
        world.now += timedelta(seconds=pick % 200)
    elif action == "sweep":
        await world.sweep(queue_is_idle=bool(pick % 2))
    elif action == "stray":
        unknown = Failed("x-e000-a0", "run-other", "engine_error", "")
        await world.hear(world.graded(f"{world.run_id}-g99999-e000-a0"), unknown)
    else:
        await _act_on_an_episode(world, action, pick)


async def _act_on_an_episode(world: World, action: str, pick: int) -> None:
    episodes = await world.episodes()
    if action in ("settle", "exclude"):
        graded = [row for row in episodes if row.state is EpisodeState.GRADED]
        if graded:
            group = graded[pick % len(graded)].group_id
            members = [row.episode_id for row in graded if row.group_id == group]
            await world.hear(world.settled(group, members, "trained" if action == "settle" else "excluded"))
            await world.hear(Advanced(world.run_id, pick % 3, pick % 3))
        return
    candidates = [row for row in episodes if action == "late" or row.state is EpisodeState.PLANNED]
    if not candidates:
        return
    chosen = candidates[pick % len(candidates)].episode_id
    if action == "open":
        await world.do(lambda unit: unit.note_opened([chosen]))
        return
    facts: list[Fact] = [world.graded(chosen, 0.5), world.failed(chosen)]
    wanted = {"grade": facts[:1], "fail": facts[1:], "late": facts if pick % 2 else facts[::-1]}
    await world.hear(*wanted[action])


async def _check(world: World) -> None:
    run = await world.run()
    episodes = await world.episodes()
    counts = await world.do(lambda unit: unit.counts(world.run_id))
    assert counts.requested == counts.settled + counts.in_flight == len(episodes)
    slots = decisions.group_slots(run, RULES.eval_episodes_in_flight)
    assert counts.groups_open <= slots
    announced = await world.announced()
    assert all(count == 1 for count in announced.values())
    assert sum(key.startswith("episode.requested/") and "/d" not in key for key in announced) == len(episodes)
    for (_, _), attempts in itertools.groupby(episodes, key=lambda row: (row.group_id, row.member)):
        rows = list(attempts)
        assert [row.attempt for row in rows] == list(range(len(rows)))
        assert len(rows) <= decisions.MAX_ATTEMPTS
        superseded = [
            row for row in rows if row.state is EpisodeState.FAILED or row.reason == "graded_after_all"
        ]
        assert len(superseded) >= len(rows) - 1
    if run.state not in (RunState.RUNNING, RunState.DRAINING):
        assert counts.in_flight == 0
        assert announced[f"run.finished/{world.run_id}"] == 1


async def _drain(world: World) -> None:
    """From wherever it is, the run can be brought to its end."""
    if (await world.run()).spec.purpose is Purpose.TRAIN:
        await world.hear(Advanced(world.run_id, 5, 5))
        world.now += timedelta(seconds=60)
        await world.sweep()
    for _ in range(100):
        run = await world.run()
        if run.state not in (RunState.RUNNING, RunState.DRAINING):
            break
        await world.plan_all()
        waiting = [row.episode_id for row in await world.episodes() if row.is_unsettled]
        await world.hear(*(world.graded(episode_id) for episode_id in waiting))
        await world.sweep()
    await _check(world)
    assert (await world.run()).state in (RunState.COMPLETED, RunState.FAILED)
