"""A plan on a real database, driven by facts, and the equation that must hold at each instant."""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from google.protobuf import json_format
from tests.services.deliveries import delivered

from episodes import Purpose, Split
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain import plan as decisions
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.facts import Fact, Failed, Graded, GroupSettled, SessionFailed, Stopping
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeRow, EpisodeState, RunRecord, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.handlers import FACTS
from scenario_runner.usecases.ending import conclude, end_run, stop_early
from scenario_runner.usecases.next_tasks import num_groups
from scenario_runner.usecases.overdue import overdue
from scenario_runner.usecases.planning import PlanRules, apply_facts, pause, plan_more, resume, sweep
from scenario_runner.wire import received
from sql_store import Database, migrate
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.run_config import PolicyChoice, RunSpec, Training

T = TypeVar("T")
RULES = PlanRules(eval_episodes_in_flight=6, groups_per_transaction=3, ending_grace_s=20)
START = datetime(2026, 1, 1, tzinfo=UTC)
NO_COMMAND = datetime.max.replace(tzinfo=UTC)


class PlannerHarness:
    """A plan on SQLite, a clock, and what the outside knows of the run."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = START
        self.plan = SqlPlan(database, now=lambda: self.now)
        self.run_id = "run-000000000001"

    async def do(self, work: Callable[[PlanUnit], T]) -> T:
        return await self.plan.transact(work)

    async def submit(self, spec: RunSpec, num_tasks: int) -> None:
        await self.submit_families({"default": num_tasks}, spec)

    async def submit_families(self, sizes: Mapping[str, int], spec: RunSpec) -> None:
        """A run over a taskset of so many tasks of each family, in order."""
        families = [family for family, size in sizes.items() for _ in range(size)]
        num_tasks = len(families)
        tasks = tuple(
            RunnableTask(f"t{n}", "s", "{}", family, f"{n:064d}") for n, family in enumerate(families)
        )
        source = PythonEnvironment("e", "/e.py")
        taskset = RegisteredTaskset("ts", "0" * 64, Split.TRAIN, source, num_tasks, tasks)
        run = RunRecord(
            self.run_id, "r", spec, Split.TRAIN, taskset.digest, RunState.RUNNING, self.now, num_tasks
        )

        def add(unit: PlanUnit) -> None:
            unit.add_taskset(taskset)
            unit.add_run(replace(run, num_tasks=num_groups(unit, spec, taskset)))

        await self.do(add)

    async def plan_all(self) -> int:
        planned = 0
        while count := await self.do(lambda unit: plan_more(unit, self.run_id, RULES)):
            planned += count
        return planned

    async def begin(self, spec: RunSpec, num_tasks: int) -> None:
        """Submit a run and plan all that may be."""
        await self.submit(spec, num_tasks)
        await self.plan_all()

    async def apply(self, *facts: Fact) -> None:
        await self.do(lambda unit: apply_facts(unit, facts))

    async def sweep(self, **known: Any) -> None:
        """What the planner decides about overdue episodes is the first that is decided about them. known: of
        `swept`."""
        await self.do(lambda unit: swept(unit, self.run_id, **known))

    async def cancel(self, *, is_delivered: bool = True) -> None:
        """is_delivered: `run.stopping` came back through the stream."""
        await self.change(lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled"))
        if is_delivered:
            await self.apply(Stopping(self.run_id))

    async def change(self, work: Callable[[PlanUnit, RunRecord], None]) -> None:
        def change(unit: PlanUnit) -> None:
            run = unit.run(self.run_id)
            assert run is not None
            work(unit, run)
            conclude(unit, self.run_id)

        await self.do(change)

    async def pause(self) -> None:
        await self.change(pause)

    async def resume(self) -> None:
        """A moment after whatever came before."""
        self.now += timedelta(seconds=1)
        await self.change(resume)

    async def stop(self, *, is_delivered: bool = True) -> None:
        """is_delivered: `run.stopping` came back through the stream."""
        await self.change(lambda unit, run: stop_early(unit, run, "enough"))
        if is_delivered:
            await self.apply(Stopping(self.run_id))

    async def give_up(self, *, is_delivered: bool = True) -> None:
        """The trainer fails for good. is_delivered: the planner's messages came back through the stream."""
        await self.apply(SessionFailed(self.run_id, "out_of_memory", "a batch of one row does not fit"))
        if is_delivered and (await self.announced())[f"run.stopping/{self.run_id}/final"]:
            await self.apply(Stopping(self.run_id, is_final=True))
            await self.apply(*await self.settled_by_planner())

    async def run(self) -> RunRecord:
        run = await self.do(lambda unit: unit.run(self.run_id))
        assert run is not None
        return run

    async def episodes(self) -> list[EpisodeRow]:
        """Every attempt at every member."""
        return await self.do(lambda unit: _all_episodes(unit, self.run_id))

    async def settled_by_planner(self) -> list[GroupSettled]:
        """What the planner said in the trainer's stead, as it comes back when the trainer is silent."""
        rows = await self.database.run(
            lambda sql: list(
                sql.execute(
                    sa.text("SELECT payload FROM outbox WHERE event_id LIKE 'group.settled/%' ORDER BY id")
                ).scalars()
            )
        )
        events = [json_format.Parse(row, training_events.GroupSettled()) for row in rows]
        facts = [FACTS.handle(delivered(event)) for event in events]
        return [fact for fact in facts if isinstance(fact, GroupSettled)]

    async def announced(self) -> Counter[str]:
        """Outbox rows by the first part of their event id, with the id kept for what must be unique."""
        rows = await self.database.run(
            lambda sql: list(sql.execute(sa.text("SELECT event_id FROM outbox")).scalars())
        )
        return Counter(str(row) for row in rows)

    def group_id(self, group: int) -> str:
        return f"{self.run_id}-g{group:05d}"

    def members(self, group: int) -> list[str]:
        """Episodes of a group of two, as first planned."""
        return [f"{self.group_id(group)}-e{member:03d}-a0" for member in range(2)]

    def graded(self, episode_id: str, reward: float = 1.0) -> Graded:
        return Graded(
            episode_id, self.run_id, reward, reward == 1.0, 2, 1, 1, engine_s=2.0, environment_s=8.0
        )

    def failed(self, episode_id: str, failure: str = "engine_error") -> Failed:
        return Failed(episode_id, self.run_id, failure, "detail", engine_s=1.0, environment_s=16.0)

    def settled(self, group_id: str, episode_ids: list[str], outcome: str = "trained") -> GroupSettled:
        reason = "" if outcome == "trained" else "zero_spread"
        return GroupSettled(group_id, self.run_id, outcome, reason, 1, tuple(episode_ids))


def swept(
    unit: PlanUnit,
    run_id: str,
    *,
    queue_is_idle: bool = False,
    queued_since: datetime | None = None,
    at_grader: Collection[str] = (),
) -> None:
    """A sweep; nothing was decided about overdue episodes before it."""
    run = unit.run(run_id)
    assert run is not None
    outcomes = [received.failed(one) for one in overdue(unit, run, at_grader)]
    none_before = NO_COMMAND if queue_is_idle else queued_since
    sweep(unit, run_id, RULES, none_queued_before=none_before, outcomes=outcomes)


def _all_episodes(unit: PlanUnit, run_id: str) -> list[EpisodeRow]:
    groups = {row.group_id for row in unit.results(run_id)}
    unit.prefetch(groups)
    return [row for group_id in sorted(groups) for row in unit.members(group_id)]


async def open_database(url: str) -> Database:
    database = Database(url)
    await database.start()
    await migrate(database, "scenario_runner")
    return database


def train_spec(
    group_size: int = 2, prompts: int = 2, staleness: int = 1, steps: int = 100, no_step_groups: int = 0
) -> RunSpec:
    training = Training(
        steps=steps, prompts_per_step=prompts, max_staleness=staleness, no_step_groups=no_step_groups
    )
    return RunSpec("ts", Purpose.TRAIN, PolicyChoice("m"), group_size, training=training)


def eval_spec(group_size: int = 2) -> RunSpec:
    return RunSpec("ts", Purpose.EVAL, PolicyChoice("m"), group_size)


async def check_conservation(planner: PlannerHarness) -> None:
    run = await planner.run()
    episodes = await planner.episodes()
    counts = await planner.do(lambda unit: unit.counts(planner.run_id))
    assert counts.requested == counts.settled + counts.in_flight == len(episodes)
    assert counts.by_state == Counter(row.state for row in episodes)
    assert counts.groups_open == len({row.group_id for row in episodes if row.is_unsettled})
    assert counts.groups_settled == sum(counts.groups_by_outcome.values())
    limit = decisions.open_group_limit(run, RULES.eval_episodes_in_flight)
    assert counts.groups_open <= limit
    assert run.engine_s == sum(row.engine_s for row in episodes)
    assert run.environment_s == sum(row.environment_s for row in episodes)
    announced = await planner.announced()
    assert all(count == 1 for count in announced.values())
    assert sum(key.startswith("episode.requested/") and key.count("/") == 1 for key in announced) == len(
        episodes
    )
    for (_, _), attempts in itertools.groupby(episodes, key=lambda row: (row.group_id, row.member)):
        rows = list(attempts)
        assert [row.attempt for row in rows] == list(range(len(rows)))
        assert len(rows) <= decisions.MAX_ATTEMPTS
        superseded = [
            row for row in rows if row.state is EpisodeState.FAILED or row.reason == "graded_after_all"
        ]
        assert len(superseded) >= len(rows) - 1
    if run.state in FINAL_RUN_STATES:
        assert counts.in_flight == 0
        assert announced[f"run.finished/{planner.run_id}"] == 1
