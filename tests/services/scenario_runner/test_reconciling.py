"""What the trainer does not have is announced again: no run waits for a fact that the stream lost."""

import asyncio
import itertools
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from google.protobuf.message import Message
from tests.services.scenario_runner.conftest import Start
from tests.services.scenario_runner.planning import PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.source_runs import BODY, SourcesHarness, settled
from tests.services.scenario_runner.source_runs import train_spec as drawing
from tests.services.scenario_runner.support import (
    TRAIN,
    announce_graded,
    arith,
    register,
    run_spec,
    sampling,
    submit,
    until,
)
from tests.services.scenario_runner.test_two_planners import second_plan

from blob_store import ref as blob_ref
from event_bus.provision import provision
from scenario_runner.adapters.peers import PeerFacts
from scenario_runner.domain.facts import Graded, Stopping
from scenario_runner.domain.peer_facts import NOT_STARTED, SessionFact
from scenario_runner.domain.runs import RunState
from scenario_runner.usecases.overdue import MARGIN_S
from scenario_runner.usecases.reconciling import Reconcile
from sql_store.relay import prune
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1 import events_pb2 as trajectory_events
from upcycle.errors import Unavailable

DEADLINE_S = 60.0


class Trainer:
    """A trainer that holds so many ready groups; None: it does not answer."""

    def __init__(
        self, groups_ready: int | None = 0, failure: str = "", step: int = 0, groups_publishing: int = 0
    ) -> None:
        self.groups_publishing = groups_publishing
        self.step = step
        self.groups_ready = groups_ready
        self.failure = failure
        self.num_asked = 0
        self.knows_the_run = True

    async def session(self, run_id: str) -> SessionFact | None:
        self.num_asked += 1
        if self.groups_ready is None:
            return None
        if not self.knows_the_run:
            return NOT_STARTED
        return SessionFact(
            "waiting",
            self.failure,
            0.0,
            self.groups_ready,
            step=self.step,
            version=self.step + 4,
            groups_publishing=self.groups_publishing,
        )


class Outside:
    """The planner's outbox, and a Reconcile that looks at the run now."""

    def __init__(self, planner: PlannerHarness, trainer: Trainer | None = None) -> None:
        self.planner = planner
        self.trainer = trainer or Trainer()
        self.reconcile = Reconcile(planner.plan, self.trainer, deadline_s=DEADLINE_S)

    async def published(self) -> None:
        """All that waits in the outbox reached the stream."""
        await self._do("UPDATE outbox SET published_at = CURRENT_TIMESTAMP")

    async def waiting(self) -> Mapping[str, str]:
        """Payloads that are about to be published, by event id."""
        rows = await self._do("SELECT event_id, payload FROM outbox WHERE published_at IS NULL ORDER BY id")
        return {event_id: payload for event_id, payload in rows}

    async def pruned(self) -> None:
        """And a day went by since then: the outbox has nothing of it anymore."""
        await self.published()
        await self.planner.database.run(lambda sql: prune(sql, timedelta(days=-1)))

    async def later(self, seconds: float = DEADLINE_S + 1, run_id: str = "") -> int:
        """Look at the run after so long; what was announced before is published by then."""
        await self.published()
        self.planner.now += timedelta(seconds=seconds)
        run = await self.planner.do(lambda unit: unit.run(run_id or self.planner.run_id))
        assert run is not None
        return await self.reconcile(run, self.planner.now)

    async def _do(self, statement: str) -> list[Any]:
        def work(sql: sa.Connection) -> list[Any]:
            found = sql.execute(sa.text(statement))
            return list(found) if found.returns_rows else []

        return await self.planner.database.run(work)


def with_body(planner: PlannerHarness, episode_id: str) -> Graded:
    return replace(planner.graded(episode_id), body=BODY, stop_reason=1)


@pytest.fixture
async def outside(planner: PlannerHarness) -> Outside:
    """A run with two open groups of two, the first of which is complete."""
    await planner.begin(train_spec(prompts=1), num_tasks=3)
    await planner.apply(*(with_body(planner, member) for member in planner.members(0)))
    return Outside(planner)


async def test_a_complete_group_is_announced_again_as_it_was_under_the_same_ids(outside: Outside) -> None:
    assert await outside.later() == 1
    waiting = dict(await outside.waiting())
    assert waiting.pop(f"run.submitted/{outside.planner.run_id}")
    first, second = outside.planner.members(0)
    fact = json_format.Parse(waiting.pop(f"episode.outcome/{first}"), trajectory_events.TrajectoryGraded())
    assert (fact.episode.episode_id, fact.episode.member, fact.episode.group_size) == (first, 0, 2)
    assert (fact.reward, fact.success, fact.num_turns, fact.stop_reason) == (1.0, True, 2, 1)
    assert (fact.sampled_by.oldest, fact.sampled_by.newest) == (1, 1)
    assert blob_ref.from_wire(fact.body) == BODY
    assert (fact.usage.engine_s, fact.usage.environment_s) == (2.0, 8.0)
    assert waiting.keys() == {f"episode.outcome/{second}"}
    assert await outside.later() == 1  # and again, for as long as it is not settled


async def test_a_trainer_that_does_not_know_the_run_gets_no_group_before_the_run(outside: Outside) -> None:
    """It reads a run from its `run.submitted` on. A grade that stands before that in the stream is not read,
    and for 600 s the stream takes no second one."""
    outside.trainer.knows_the_run = False
    assert await outside.later() == 0
    assert (await outside.waiting()).keys() == {f"run.submitted/{outside.planner.run_id}"}
    outside.trainer.knows_the_run = True
    assert await outside.later() == 1


async def test_all_groups_of_a_large_step_are_announced(planner: PlannerHarness) -> None:
    """The trainer may have the first ones, and wait for the last."""
    await planner.begin(train_spec(prompts=70, staleness=0), num_tasks=70)
    await planner.apply(*(with_body(planner, one) for at in range(70) for one in planner.members(at)))
    outside = Outside(planner, Trainer(groups_ready=64))
    assert await outside.later() == 70
    assert sum(key.startswith("episode.outcome/") for key in await outside.waiting()) == 140


async def test_nothing_is_announced_again_within_the_deadline_or_twice_in_it(outside: Outside) -> None:
    assert await outside.later(DEADLINE_S - 1) == 0
    assert await outside.later(2) == 0  # a run is looked at once in a deadline
    assert outside.trainer.num_asked == 0
    assert await outside.later(DEADLINE_S) == 1


@pytest.mark.parametrize(
    "trainer",
    [Trainer(groups_ready=1), Trainer(groups_publishing=1), Trainer(groups_ready=None)],
    ids=["has it", "is publishing it", "does not answer"],
)
async def test_a_trainer_that_has_all_or_cannot_take_it_is_left_alone(
    outside: Outside, trainer: Trainer
) -> None:
    outside.reconcile._trainer = trainer
    assert await outside.later() == 0
    assert not await outside.waiting()


async def test_a_group_with_a_member_under_way_is_not_announced(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(prompts=1), num_tasks=3)
    await planner.apply(with_body(planner, planner.members(0)[0]))
    assert await Outside(planner).later() == 0


async def test_a_short_group_is_announced_with_its_size(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(prompts=1), num_tasks=3)
    first, second = planner.members(0)
    await planner.apply(with_body(planner, first))
    for attempt in range(3):
        await planner.apply(planner.failed(f"{second[:-1]}{attempt}"))
    outside = Outside(planner)
    assert await outside.later() == 1
    assert list(await outside.waiting()) == [  # in the order in which the trainer must read them
        f"run.submitted/{planner.run_id}",
        f"group.shortened/{planner.group_id(0)}/1",
        f"episode.outcome/{first}",
    ]


async def test_a_grade_that_beat_the_planners_timeout_is_announced_and_the_timeout_is_not(
    planner: PlannerHarness,
) -> None:
    """Both have one id, and the outbox has the timeout under it."""
    await planner.begin(train_spec(prompts=1), num_tasks=3)
    members = planner.members(0)
    await planner.do(lambda unit: unit.note_opened(members))
    planner.now += timedelta(seconds=train_spec().episode_deadline_s + MARGIN_S + 1)
    await planner.sweep()
    await planner.apply(*(with_body(planner, member) for member in members))
    outside = Outside(planner)
    assert await outside.later() == 1
    waiting = await outside.waiting()
    assert {key for key in waiting if key.startswith("episode.outcome/")} == {
        f"episode.outcome/{member}" for member in members
    }
    assert all('"reward"' in waiting[f"episode.outcome/{member}"] for member in members)


async def test_a_settled_group_is_not_announced(outside: Outside) -> None:
    planner = outside.planner
    await planner.apply(planner.settled(planner.group_id(0), planner.members(0)))
    assert await outside.later() == 0


async def test_the_end_of_a_run_is_announced_until_it_is_delivered_back(outside: Outside) -> None:
    planner = outside.planner
    await planner.stop(is_delivered=False)
    outside.trainer.groups_ready = 1
    assert await outside.later() == 1
    assert f"run.stopping/{planner.run_id}" in await outside.waiting()


async def test_the_end_of_a_run_is_announced_from_its_row_when_the_outbox_has_it_no_more(
    outside: Outside,
) -> None:
    planner = outside.planner
    await planner.stop(is_delivered=False)
    stopping = f"run.stopping/{planner.run_id}"
    first = json_format.Parse((await outside.waiting())[stopping], taskset_events.RunStopping())
    await outside.pruned()
    assert await outside.later() == 1
    waiting = await outside.waiting()
    again = json_format.Parse(waiting[stopping], taskset_events.RunStopping())
    assert (again.ending, again.is_final, again.stopping_at) == (first.ending, False, first.stopping_at)
    assert list(waiting)[-1] == stopping  # after it a trainer takes no group


async def test_a_lost_session_failed_is_asked_for(outside: Outside) -> None:
    outside.trainer.failure = "out of memory: a batch of one row does not fit"
    await outside.later()
    run = await outside.planner.run()
    assert (run.ending, "out of memory" in run.failure) == (RunState.FAILED, True)
    assert f"run.stopping/{run.run_id}/final" in await outside.waiting()


async def test_two_planners_announce_the_same_group_once(outside: Outside, sql_url: str) -> None:
    planner = outside.planner
    await outside.published()
    planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
    run = await planner.run()
    async with second_plan(planner, sql_url) as plan:
        other = Reconcile(plan, outside.trainer, deadline_s=DEADLINE_S)
        both = (outside.reconcile(run, planner.now), other(run, planner.now))
        assert tuple(await asyncio.gather(*both)) == (1, 1)
    assert sum(key.startswith("episode.outcome/") for key in await outside.waiting()) == 2
    await check_conservation(planner)


@pytest.mark.parametrize("at", range(4))
async def test_a_planner_that_ends_at_any_point_of_it_leaves_the_rest_to_the_next(
    planner: PlannerHarness, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before it reads, asks, takes the step over, announces. The next planner begins from the tables."""
    await planner.begin(train_spec(prompts=1, steps=2), num_tasks=3)
    members = planner.members(0)
    await planner.apply(*map(planner.graded, members), planner.settled(planner.group_id(0), members))
    await planner.apply(*(with_body(planner, member) for member in planner.members(1)))
    outside, calls = Outside(planner, Trainer(step=1)), itertools.count()
    run = await planner.run()

    def until_killed(work: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if next(calls) == at:
                raise Unavailable("killed")
            return await work(*args, **options)

        return call

    with monkeypatch.context() as killed:
        for owner, name in ((planner.plan, "read"), (outside.trainer, "session"), (planner.plan, "transact")):
            killed.setattr(owner, name, until_killed(getattr(owner, name)))
        await outside.published()
        planner.now += timedelta(seconds=DEADLINE_S + MARGIN_S + 1)
        with pytest.raises(Unavailable):
            await outside.reconcile(run, planner.now)
    assert await Outside(planner, Trainer(step=1)).later() == 1
    assert (await planner.run()).step == 1
    assert {key for key in await outside.waiting() if key.startswith("episode.outcome/")} == {
        f"episode.outcome/{member}" for member in planner.members(1)
    }
    await check_conservation(planner)


async def test_an_offer_without_an_answer_is_made_again(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(drawing(evaluation, sampling=False))
    await sources.plan(run_id)
    offers = {f"group.offered/{run_id}/{one.group_id}" for one in await sources.offers(run_id)}
    outside = Outside(sources.planner)
    assert offers
    assert await outside.later(run_id=run_id) == len(offers)
    assert set(await outside.waiting()) == {f"run.submitted/{run_id}", *offers}


async def test_an_offer_older_than_the_outbox_is_made_again_from_the_rows(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(drawing(evaluation, sampling=False))
    await sources.plan(run_id)
    offers = await sources.offers(run_id)
    outside = Outside(sources.planner)
    await outside.pruned()
    assert offers
    assert not await sources.offers(run_id)
    assert await outside.later(run_id=run_id) == len(offers)
    assert await sources.offers(run_id) == offers  # to the moment of the first offer
    ids = [f"group.offered/{run_id}/{one.group_id}" for one in offers]
    assert list(await outside.waiting()) == [f"run.submitted/{run_id}", *ids]


async def test_an_offer_that_is_answered_meanwhile_is_neither_made_again_nor_counted(
    sources: SourcesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(drawing(evaluation, sampling=False))
    await sources.plan(run_id)
    first, *others = await sources.offers(run_id)
    outside = Outside(sources.planner)

    async def session(_: str) -> SessionFact:
        await sources.planner.apply(settled(run_id, first.group_id, source=evaluation))
        return SessionFact("waiting", "", 0.0, 0)

    monkeypatch.setattr(outside.trainer, "session", session)
    assert await outside.later(run_id=run_id) == len(others)
    assert f"group.offered/{run_id}/{first.group_id}" not in await outside.waiting()


async def test_a_run_goes_on_when_the_bus_lost_everything_while_its_trainer_was_away(
    start_runner: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real service and a real server, whose storage is deleted. The trainer comes back with nothing."""
    trainer = Trainer(groups_ready=None)
    monkeypatch.setattr(PeerFacts, "session", lambda _, run_id: trainer.session(run_id))
    runner = await start_runner(settle_deadline_s=1.0)
    await register(runner, arith())
    training = taskset_pb2.TrainingConfig(steps=1, prompts_per_step=2, max_staleness=1)
    run = await submit(runner, run_spec(TRAIN, training=training))
    body = blob_ref.to_wire(BODY)

    async def play(request: Any) -> None:
        await announce_graded(runner, request, float(request.episode.member), True, body=body)

    async with sampling(runner, play):
        await until(runner, run.run_id, lambda counts: counts.by_state["graded"] == 4)
    runner.nats.stop()
    shutil.rmtree(runner.nats._data_dir)
    runner.nats._data_dir.mkdir()
    runner.nats.start()
    await provision(runner.nats.url)
    trainer.groups_ready = 0

    seen: dict[str, Message] = {}
    async for delivery in runner.bus.replay([trajectory_events.TrajectoryGraded], after_sequence=0):
        seen[delivery.message.episode.episode_id] = delivery.message
        if len(seen) == 4:
            break
    assert sorted(fact.reward for fact in seen.values()) == [0.0, 0.0, 1.0, 1.0]  # type: ignore[attr-defined]


async def test_decisions_that_wait_in_the_outbox_are_counted_for_why(planner: PlannerHarness) -> None:
    """Their subjects end with their author, the others with the model."""
    await planner.begin(train_spec(prompts=1, staleness=0), num_tasks=3)
    await planner.apply(*map(planner.graded, planner.members(0)))
    await Outside(planner).published()
    await planner.cancel()
    await planner.apply(Stopping(planner.run_id, is_final=True))
    model = (await planner.run()).spec.policy.model
    waiting = await Outside(planner).waiting()
    assert f"group.settled/{planner.group_id(0)}" in waiting
    assert await planner.do(lambda unit: unit.outbox_waiting(model)) == len(waiting)
    assert await planner.do(lambda unit: unit.outbox_waiting("another")) == 0
