"""A plan with several runs: evaluations whose groups a training run draws, driven by facts."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from google.protobuf import json_format
from tests.services.deliveries import delivered
from tests.services.scenario_runner.planning import RULES, PlannerHarness, swept

from blob_store import BlobRef
from episodes import Purpose, Split
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.domain.facts import Fact, Graded, GroupSettled
from scenario_runner.domain.recorded_sessions import GradedSession
from scenario_runner.domain.runs import EpisodeRow, RunRecord, RunState, RunView
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.handlers import FACTS
from scenario_runner.usecases.planning import plan_more
from scenario_runner.usecases.revisions import store
from scenario_runner.usecases.source_runs import take_sources
from scenario_runner.usecases.submitting import SubmitRun, TraceContext
from scenario_runner.usecases.supply import offer_more
from scenario_runner.usecases.views import find_run, view_of
from sql_store import Database
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.run_config import PolicyChoice, RunSpec, Training
from upcycle.session_query import SessionQuery

BODY = BlobRef("trajectories/x.pb.zst", "a" * 64, 1234)
NUM_TASKS = 6


class Registry:
    """Implements Registry: knows every model, at one head."""

    def __init__(self) -> None:
        self.head = 4

    async def check_policy(self, policy: PolicyChoice) -> None:
        """Every model exists."""

    async def head_version(self, model: str) -> int:
        return self.head


class Sessions:
    """Implements RecordedSessions: what the trajectory store has."""

    def __init__(self) -> None:
        self.found: list[GradedSession] = []
        self.asked: list[tuple[str, SessionQuery]] = []

    async def graded(self, model: str, query: SessionQuery) -> list[GradedSession]:
        self.asked.append((model, query))
        return self.found


class SourcesHarness:
    """Several runs on one plan."""

    def __init__(self, planner: PlannerHarness) -> None:
        self.planner = planner
        self.registry = Registry()
        self.numbers = itertools.count(1)
        self.sessions = Sessions()

    @property
    def database(self) -> Database:
        return self.planner.database

    async def register(
        self,
        name: str = "ts",
        split: Split = Split.TRAIN,
        environment: str = "e",
        num_tasks: int = NUM_TASKS,
        digests: str = "",
    ) -> None:
        """digests: what the digests begin with; the name by default."""
        start = digests or name
        tasks = tuple(
            RunnableTask(f"{name}{n}", "s", "{}", "default", f"{start}-{n}".rjust(64, "0"))
            for n in range(num_tasks)
        )
        source = PythonEnvironment(environment, "/e.py")
        taskset = RegisteredTaskset(name, start.rjust(64, "0"), split, source, num_tasks, tasks)
        await self.planner.do(lambda unit: store(unit, taskset))

    async def submit(self, spec: RunSpec) -> str:
        """Through the use case; one second passes, so that runs have an order."""
        self.planner.now += timedelta(seconds=1)
        submit = SubmitRun(
            self.planner.plan,
            self.registry,
            new_id=lambda kind: f"{kind}-{next(self.numbers):04d}",
            wake=lambda: None,
            sessions=self.sessions,
        )
        view = await submit(f"request-{next(self.numbers)}", spec, TraceContext("", {}))
        return view.run.run_id

    async def submit_unchecked(self, spec: RunSpec) -> str:
        """Without the limits of a spec."""
        run_id = f"run-{next(self.numbers):04d}"
        self.planner.now += timedelta(seconds=1)
        now = self.planner.now

        def add(unit: PlanUnit) -> None:
            taskset = unit.taskset(spec.taskset)
            assert taskset is not None
            state, split = RunState.RUNNING, taskset.split
            run = RunRecord(run_id, run_id, spec, split, taskset.digest, state, now, taskset.num_tasks)
            unit.add_run(run)
            take_sources(unit, run, self.registry.head)

        await self.planner.do(add)
        return run_id

    async def evaluation(self, **grade: Any) -> str:
        """A finished evaluation of every task, two members each."""
        run_id = await self.submit(eval_spec())
        await self.play(run_id, **grade)
        return run_id

    async def play(self, run_id: str, *, num_groups: int | None = None, **grade: Any) -> list[str]:
        """Grade what an evaluation plans, group by group; returns the groups. num_groups: only so many."""
        played: list[str] = []
        while num_groups is None or len(played) < num_groups:
            await self.plan(run_id)
            group = await self.next_group(run_id)
            if group is None:
                break
            await self.grade(run_id, group, **grade)
            played.append(group)
        return played

    async def next_group(self, run_id: str) -> str | None:
        rows = await self.planner.do(lambda unit: unit.unsettled(run_id))
        return min((row.group_id for row in rows), default=None)

    async def grade(
        self, run_id: str, group_id: str, versions: Sequence[int] = (4, 4), body: BlobRef | None = BODY
    ) -> None:
        """Two members: one succeeds. A second passes."""
        self.planner.now += timedelta(seconds=1)
        facts = [
            replace(graded(run_id, f"{group_id}-e{member:03d}-a0", version, float(member)), body=body)
            for member, version in enumerate(versions)
        ]
        await self.planner.apply(*facts)

    async def plan(self, run_id: str) -> int:
        """All that may be planned or offered, as the planner's loop does; returns how many groups."""
        count = 0
        for work in (offer_more, plan_more):
            while more := await self.planner.do(_planned(work, run_id)):
                count += more
        return count

    async def sweep(self, run_id: str) -> None:
        await self.planner.do(lambda unit: swept(unit, run_id))

    async def view(self, run_id: str) -> RunView:
        return await self.planner.do(lambda unit: view_of(unit, find_run(unit, run_id)))

    async def run(self, run_id: str) -> RunRecord:
        return (await self.view(run_id)).run

    async def report(self, run_id: str, source_run_id: str) -> SourceReport:
        view = await self.view(run_id)
        return next(report for report in view.sources if report.run_id == source_run_id)

    async def change(self, run_id: str, work: Callable[[PlanUnit, RunRecord], None]) -> None:
        await self.planner.do(lambda unit: work(unit, find_run(unit, run_id)))

    async def episodes(self, run_id: str) -> list[EpisodeRow]:
        return await self.planner.do(lambda unit: unit.results(run_id))

    async def offers(self, run_id: str) -> list[taskset_events.GroupOffered]:
        """Every group.offered for a run, in order."""
        rows = await self.outbox("group.offered/%")
        offers = [json_format.Parse(row, taskset_events.GroupOffered()) for row in rows]
        return [one for one in offers if one.run_id == run_id]

    async def settled_by_planner(self) -> list[Fact | None]:
        """group.settled that the planner published itself, as it receives them."""
        rows = await self.outbox("group.settled/%")
        events = [json_format.Parse(row, training_events.GroupSettled()) for row in rows]
        return [FACTS.handle(delivered(event)) for event in events]

    async def outbox(self, like: str, column: str = "payload") -> list[str]:
        wanted = sa.text(f"SELECT {column} FROM outbox WHERE event_id LIKE :like ORDER BY id")  # noqa: S608
        return await self.database.run(lambda sql: list(sql.execute(wanted, {"like": like}).scalars()))


def _planned(work: Callable[..., int], run_id: str) -> Callable[[PlanUnit], int]:
    return lambda unit: work(unit, run_id, RULES)


def graded(run_id: str, episode_id: str, version: int = 4, reward: float = 1.0) -> Graded:
    return Graded(episode_id, run_id, reward, reward == 1.0, 2, version, version, BODY, 1)


def settled(
    run_id: str, group_id: str, outcome: str = "trained", reason: str = "", *, source: str, step: int = 1
) -> GroupSettled:
    members = tuple(f"{group_id}-e{member:03d}-a0" for member in range(2))
    return GroupSettled(
        group_id, run_id, outcome, reason, step if outcome == "trained" else 0, members, source
    )


def eval_spec(taskset: str = "ts", model: str = "m", group_size: int = 2, *, online: bool = False) -> RunSpec:
    return RunSpec(taskset, Purpose.EVAL, PolicyChoice(model), group_size, trainable=online)


def train_spec(
    *sources: str,
    prompts: int = 2,
    staleness: int = 1,
    steps: int = 100,
    sampling: bool = True,
    sessions: str = "",
) -> RunSpec:
    training = Training(steps=steps, prompts_per_step=prompts, max_staleness=staleness)
    return RunSpec(
        "ts",
        Purpose.TRAIN,
        PolicyChoice("m"),
        2,
        training=training,
        source_runs=tuple(sources),
        no_sampling=not sampling,
        sessions=sessions,
    )
