"""Planner, trainer and ledger over one stream, in any order, agree about every episode of a run that ends.

The planner is the real one on a real database. The trainer is a model of what services/grpo_trainer does.
The stream keeps the first of two facts with one id for ten minutes, and the first of two decisions for good,
as the bus does.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from google.protobuf.message import Message
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.services.deliveries import delivered
from tests.services.scenario_runner.planning import (
    PlannerHarness,
    check_conservation,
    open_database,
    train_spec,
)

from event_bus.topology import SCENARIO_RUNNER_PLAN
from identities.entities import group_of_episode
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeState, RunState
from scenario_runner.handlers import FACTS
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events

WINDOW = timedelta(minutes=10)
DECISIONS = (trajectory_events.TrajectoryGraded, training_events.GroupSettled)
"""Each has a subject that takes one message, of the first publisher (event_bus/decisions.py)."""
KINDS: tuple[type[Message], ...] = (
    taskset_events.EpisodeCancelled,
    taskset_events.RunStopping,
    taskset_events.RunFinished,
    training_events.GroupSettled,
)
UNDER_WAY = (
    *[(action, 4 * (action == "apply")) for action in ("grade", "apply") * 4],
    *[("read", 4), ("read", 4), ("step", 0), ("land", 0)],
)
"""Two groups are graded, and a step with the first one is durable; cut off anywhere, it is less."""
ACTIONS = (
    *("grade", "grade", "grade", "relay", "relay", "apply", "apply", "read", "read"),
    *("step", "land", "announce", "announce", "die", "tick", "wait", "wait", "sweep", "sweep"),
)


@dataclass
class Stream:
    """Facts in order; a second one with the same id is dropped within the window, a decision always."""

    facts: list[Message] = field(default_factory=list)
    since: dict[str, datetime] = field(default_factory=dict)

    def publish(self, event_id: str, fact: Message, now: datetime) -> None:
        first = self.since.get(event_id)
        if first is None or (now - first > WINDOW and not isinstance(fact, DECISIONS)):
            self.since[event_id] = now
            self.facts.append(fact)


@dataclass
class Trainer:
    """What grpo_trainer does with one group per step. `durable` outlives it, the rest does not."""

    run_id: str
    stream: Stream
    durable: list[str] = field(default_factory=list)
    announced: int = 0
    read_to: int = 0
    graded: dict[str, list[str]] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    under_way: str = ""
    confirmed_at: datetime | None = None
    is_stopping: bool = False
    is_void: bool = False

    def die(self) -> None:
        self.read_to, self.graded, self.under_way = 0, {}, ""
        self.confirmed_at, self.is_stopping, self.is_void = None, False, False
        self.settled = set(self.durable)

    def read(self) -> None:
        """The next fact, as the intake takes it."""
        if self.read_to == len(self.stream.facts):
            return
        fact = self.stream.facts[self.read_to]
        self.read_to += 1
        if isinstance(fact, taskset_events.RunStopping):
            self.is_stopping = True
        elif isinstance(fact, trajectory_events.TrajectoryGraded) and not self.is_stopping:
            members = self.graded.setdefault(group_of_episode(fact.episode.episode_id), [])
            if fact.episode.episode_id not in members:
                members.append(fact.episode.episode_id)

    def step(self) -> None:
        """Begin one with a complete group."""
        ready = [one for one, members in self.graded.items() if len(members) == 2 and one not in self.settled]
        if ready and not self.is_stopping and not self.is_void and not self.under_way:
            self.under_way = ready[0]

    def land(self) -> None:
        """The step becomes durable; the one before was announced."""
        if self.under_way and self.announced == len(self.durable) and not self.is_void:
            self.durable.append(self.under_way)
            self.settled.add(self.under_way)
            self.under_way = ""

    def announce(self, now: datetime) -> None:
        """Confirm, then say it, or find it void; or, when the run stops, settle the rest."""
        if self.announced < len(self.durable) and not self.is_void:
            group_id = self.durable[self.announced]
            if self.confirmed_at is None or now - self.confirmed_at > timedelta(minutes=2):
                self.is_void, self.confirmed_at = self._is_superseded(group_id), now
                return
            self._say(group_id, "trained", now)
            step = training_events.StepCompleted(
                run_id=self.run_id, step=self.announced + 1, version=1, trajectory_ids=self._members(group_id)
            )
            self.stream.publish(f"step.completed/{self.announced}", step, now)
            self.announced, self.confirmed_at = self.announced + 1, None
        elif self.is_stopping and not self.under_way and not self.is_void:
            for group_id in set(self.graded) - self.settled:
                self._say(group_id, "excluded", now)
                self.settled.add(group_id)

    def _members(self, group_id: str) -> list[str]:
        return self.graded.get(group_id) or [f"{group_id}-e{member:03d}-a0" for member in range(2)]

    def _is_superseded(self, group_id: str) -> bool:
        for fact in self.stream.facts:
            if isinstance(fact, training_events.GroupSettled) and fact.group_id == group_id:
                return fact.outcome != "trained"
        words = (fact for fact in self.stream.facts if isinstance(fact, taskset_events.RunStopping))
        return any(fact.is_final for fact in words)

    def _say(self, group_id: str, outcome: str, now: datetime) -> None:
        members = self._members(group_id)
        fact = training_events.GroupSettled(
            group_id=group_id, run_id=self.run_id, outcome=outcome, reason="", step=1, episode_ids=members
        )
        self.stream.publish(f"group.settled/{group_id}", fact, now)


class Platform:
    """All of them, and the moves that they may make in any order."""

    def __init__(self, planner: PlannerHarness) -> None:
        self.planner = planner
        self.stream = Stream()
        self.trainer = Trainer(planner.run_id, self.stream)
        self.relayed = 0
        self.applied = 0

    async def grade(self, pick: int) -> None:
        waiting = [row for row in await self.planner.episodes() if row.state is EpisodeState.PLANNED]
        if waiting:
            episode_id = waiting[pick % len(waiting)].episode_id
            episode = EpisodeIdentity(episode_id=episode_id, run_id=self.planner.run_id)
            fact = trajectory_events.TrajectoryGraded(episode=episode)
            self.stream.publish(f"episode.outcome/{episode_id}", fact, self.planner.now)

    async def relay(self) -> None:
        """The planner's outbox goes on the bus."""
        rows = await self.planner.database.run(
            lambda sql: sql.execute(
                sa.text("SELECT id, event_id, schema, payload FROM outbox WHERE id > :after ORDER BY id"),
                {"after": self.relayed},
            ).all()
        )
        for row in rows:
            self.relayed = row.id
            for kind in KINDS:
                if kind.DESCRIPTOR.full_name == row.schema:
                    fact = json_format.Parse(row.payload, kind())
                    self.stream.publish(row.event_id, fact, self.planner.now)

    async def apply(self, pick: int) -> None:
        batch = self.stream.facts[self.applied : self.applied + 1 + pick % 5]
        facts = [FACTS.handle(delivered(one)) for one in batch if type(one) in SCENARIO_RUNNER_PLAN.events]
        await self.planner.apply(*(fact for fact in facts if fact is not None))
        self.applied += len(batch)

    async def read(self, pick: int) -> None:
        for _ in range(1 + pick % 5):
            self.trainer.read()

    async def tick(self, pick: int) -> None:
        self.planner.now += timedelta(seconds=pick % 60)

    async def wait(self, pick: int) -> None:
        """Long enough for any deadline. What was decided before is on the bus by then."""
        await self.relay()
        self.planner.now += timedelta(seconds=pick % 3000)

    def give_up(self) -> None:
        """A second trainer of the run fails for good, while this one goes on."""
        fact = training_events.SessionFailed(run_id=self.planner.run_id, kind="lineage_taken", detail="two")
        self.stream.publish(f"session.failed/{self.planner.run_id}", fact, self.planner.now)

    async def act(self, action: str, pick: int) -> None:
        planner = self.planner
        if action in ("step", "land", "die"):
            getattr(self.trainer, action)()
        elif action == "announce":
            self.trainer.announce(planner.now)
        elif action == "give_up":
            self.give_up()
        elif action in ("cancel", "stop"):
            await {"cancel": planner.cancel, "stop": planner.stop}[action](is_delivered=False)
        elif action in ("relay", "sweep"):
            await {"relay": self.relay, "sweep": planner.sweep}[action]()
        else:
            await getattr(self, action)(pick)

    async def come_to_an_end(self) -> None:
        for _ in range(60):
            for action in ("relay", "apply", "read", "step", "land", "announce", "announce", "sweep"):
                await self.act(action, 4)
            if (await self.planner.run()).state in FINAL_RUN_STATES:
                break
            self.planner.now += timedelta(seconds=30)
        for action in ("relay", "die", *["read"] * 40, "announce", "announce", "announce", "apply", "apply"):
            await self.act(action, 4)

    async def check(self) -> None:
        """The ledger's view: the first end of an episode in the stream is never denied by a later one."""
        assert (await self.planner.run()).state in (RunState.CANCELLED, RunState.COMPLETED, RunState.FAILED)
        await check_conservation(self.planner)
        ends: dict[str, str] = {}
        for fact in self.stream.facts:
            if isinstance(fact, taskset_events.EpisodeCancelled):
                ends.setdefault(fact.episode.episode_id, "cancelled")
            elif isinstance(fact, training_events.GroupSettled):
                for episode_id in fact.episode_ids:
                    end = ends.setdefault(episode_id, fact.outcome)
                    assert fact.outcome != "trained" or end == "trained", f"{episode_id}: {end}, then trained"
                    assert fact.outcome == "trained" or end != "trained", f"{episode_id}: trained, then not"
        planned = {row.episode_id: row.state.value for row in await self.planner.episodes()}
        trained = {episode_id for episode_id, end in ends.items() if end == "trained"}
        assert {episode_id for episode_id, state in planned.items() if state == "trained"} == trained
        said = {group_of_episode(episode_id) for episode_id in trained}
        assert said == set(self.trainer.durable[: self.trainer.announced])


Moves = list[tuple[str, int]]
Ordered = tuple[int, Moves, list[str], Moves]
ORDERS: st.SearchStrategy[Ordered] = st.tuples(
    st.integers(0, len(UNDER_WAY)),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), max_size=6),
    st.lists(st.sampled_from(["cancel", "stop", "give_up"]), min_size=1, max_size=2),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), max_size=40),
)
"""How far the run comes, what happens then, how it is ended, what happens after that."""


@pytest.mark.timeout(300)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=ORDERS)
@example(
    (
        11,
        [("land", 0)],
        ["give_up"],
        [("apply", 0), ("announce", 0), ("relay", 0), ("announce", 0), ("wait", 571)],
    )
)
def test_planner_trainer_and_ledger_agree_in_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, order: Ordered
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), _moves(*order)))


@pytest.mark.study
@pytest.mark.timeout(900)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(order=ORDERS)
def test_planner_trainer_and_ledger_agree_in_a_hundred_and_fifty_orders(
    tmp_path_factory: pytest.TempPathFactory, order: Ordered
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), _moves(*order)))


def _moves(reached: int, before: Moves, ending: list[str], after: Moves) -> Moves:
    return [*UNDER_WAY[:reached], *before, (ending[0], 0), *after, *((one, 0) for one in ending[1:])]


async def _play(folder: Path, moves: list[tuple[str, int]]) -> None:
    planner = PlannerHarness(await open_database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        await planner.begin(train_spec(prompts=1, staleness=3, steps=50), num_tasks=3)
        platform = Platform(planner)
        for action, pick in moves:
            await platform.act(action, pick)
            await check_conservation(planner)
        await platform.come_to_an_end()
        await platform.check()
    finally:
        await planner.database.stop()
