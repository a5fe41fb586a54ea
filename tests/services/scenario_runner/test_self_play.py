"""Runs that play against themselves, in the planner: a proposal is played once, and paid by who solves it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from tests.services.scenario_runner.planning import RULES, PlannerHarness, check_conservation, train_spec
from tests.services.scenario_runner.test_new_tasks import Generator

from blob_store import BlobRef
from episodes import Split
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.domain.environments import EnvironmentLost, EpisodeFault, ScenarioTranscript
from scenario_runner.domain.facts import GroupSettled
from scenario_runner.domain.new_tasks import NewTaskRow, NewTaskState
from scenario_runner.domain.runs import EpisodeState, RunState
from scenario_runner.domain.self_play import num_that_may_propose
from scenario_runner.domain.source_groups import SourceGroup, SourceGroupState
from scenario_runner.usecases.generating import MakeTasks
from scenario_runner.usecases.offering import announce_released
from scenario_runner.usecases.supply import offer_more
from scenario_runner.usecases.views import view_of
from scenario_runner.wire.new_tasks import new_tasks_to_wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested, GroupOffered
from upcycle.errors import Unavailable
from upcycle.run_config import RunSpec
from upcycle.run_config.self_play import proposer_reward
from upcycle.task_rows import task_digest


async def read(body: BlobRef) -> ScenarioTranscript:
    """The stored proposal; its key says whose."""
    return ScenarioTranscript(body.key, f"of {body.key}", {"turns": []})


class Played:
    """A planner whose run plays against itself, groups of two; its tasks are the proposer's."""

    def __init__(self, planner: PlannerHarness) -> None:
        self.planner = planner
        self.generator = Generator()
        self.make = MakeTasks(planner.plan, self.generator, wake=lambda: None, read=read)

    async def begin(self, **options: Any) -> None:
        digests = [f"{number:064d}" for number in range(3)]
        await self.planner.do(lambda unit: unit.claim(digests, Split.TRAIN, "ts"))
        await self.planner.begin(self_play_spec(**options), num_tasks=3)

    async def grade(self, group: int, *rewards: float) -> None:
        names = self.planner.members(group)
        facts = [
            replace(self.planner.graded(name, reward), body=BlobRef(f"body-{name[-10:]}", "0" * 64, 1))
            for name, reward in zip(names, rewards, strict=True)
        ]
        await self.planner.apply(*facts)

    async def solve(self, group: int, *rewards: float) -> None:
        """Grade a group that plays a proposal, and have the trainer settle it."""
        await self.grade(group, *rewards)
        outcome = "trained" if len(set(rewards)) > 1 else "excluded"
        settled = self.planner.settled(self.planner.group_id(group), self.planner.members(group), outcome)
        await self.planner.apply(settled)

    async def go_on(self) -> None:
        """Have what was ordered made, and plan and offer all that may be."""
        await self.make()
        while await self.planner.do(lambda unit: offer_more(unit, self.planner.run_id, RULES)):
            pass
        await self.planner.plan_all()

    async def rows(self) -> list[NewTaskRow]:
        report = await self.planner.do(lambda unit: unit.new_tasks.report(self.planner.run_id))
        return sorted(report.newest, key=lambda row: row.number)

    async def solving(self) -> dict[int, int]:
        """Groups of the run that play a proposal, each with its number."""
        rows = await self.planner.episodes()
        return {int(one.group_id[-5:]): one.new_task for one in rows if one.new_task is not None}

    async def num_proposing(self) -> int:
        return len({one.group_id for one in await self.planner.episodes() if one.new_task is None})

    async def queued(self, group: int) -> SourceGroup | None:
        name = self.planner.group_id(group)
        return await self.planner.do(lambda unit: unit.source_groups.one(self.planner.run_id, name))

    async def payloads(self, like: str) -> list[str]:
        wanted = sa.text("SELECT payload FROM outbox WHERE event_id LIKE :like ORDER BY id")
        return await self.planner.database.run(
            lambda sql: [str(row) for row in sql.execute(wanted, {"like": like}).scalars()]
        )

    async def offers(self) -> list[GroupOffered]:
        return [json_format.Parse(row, GroupOffered()) for row in await self.payloads("group.offered/%")]

    async def paid(self) -> list[float]:
        """By member, of the newest offer."""
        return [round(member.reward, 9) for member in (await self.offers())[-1].members]


def self_play_spec(**options: Any) -> RunSpec:
    spec = train_spec(no_step_groups=10_000)
    assert spec.training is not None
    return replace(spec, training=replace(spec.training, self_play="s:repair", **options))


@pytest.fixture
def played(planner: PlannerHarness) -> Played:
    return Played(planner)


@pytest.mark.parametrize(
    ("pass_rate", "reward"), [(0.0, -0.8), (1.0, -0.8), (0.5, 0.1), (0.125, 0.775), (0.875, -0.575)]
)
def test_the_formula_of_the_paper(pass_rate: float, reward: float) -> None:
    assert proposer_reward(pass_rate, 0.8) == pytest.approx(reward)


def test_as_many_propose_as_can_be_played() -> None:
    assert num_that_may_propose(16, 8, 0, 0) == 2
    assert num_that_may_propose(4, 8, 0, 0) == 1, "one always may where nothing else is under way"
    assert num_that_may_propose(4, 8, 1, 0) == num_that_may_propose(4, 8, 0, 1) == 0
    assert num_that_may_propose(16, 8, 0, 2) == num_that_may_propose(16, 8, 16, 0) == 0
    assert num_that_may_propose(16, 8, 8, 0) == 1


async def test_a_proposal_is_played_by_one_group_and_paid_by_who_solves_it(played: Played) -> None:
    await played.begin()
    assert await played.num_proposing() == 2, "of four groups, so that two can play what they propose"
    await played.grade(0, 1.0, 1.0)
    await played.go_on()
    assert [order.proposal for order in played.generator.asked] == [
        {"answer": f"of body-{name[-10:]}", "trajectory": {"turns": []}} for name in played.planner.members(0)
    ]
    assert {order.scenario for order in played.generator.asked} == {"repair"}
    assert await played.solving() == {2: 0, 3: 1}
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    assert await played.offers() == [], "one proposal is still played"
    await played.solve(3, 1.0, 1.0)
    await played.go_on()
    (offer,) = await played.offers()
    assert (offer.group_id, offer.source_run_id) == (played.planner.group_id(0), played.planner.run_id)
    assert offer.split == common_pb2.SPLIT_TRAIN
    assert await played.paid() == [0.1, -0.8]
    assert [row.detail for row in await played.rows()] == ["1 of 2 solved it", "2 of 2 solved it"]
    await check_conservation(played.planner)


async def test_a_proposer_is_asked_for_as_an_evaluation_and_its_solvers_as_training(played: Played) -> None:
    await played.begin()
    await played.grade(0, 1.0, 0.0)
    await played.go_on()
    requested = await played.payloads("episode.requested/%")
    rows = [json_format.Parse(row, EpisodeRequested()).episode for row in requested]
    purposes = {int(row.group_id[-5:]): row.purpose for row in rows}
    assert purposes[0] == purposes[1] == common_pb2.PURPOSE_EVAL
    assert purposes[2] == common_pb2.PURPOSE_TRAIN
    planned = SqlPlannedEpisodes(played.planner.database, now=lambda: played.planner.now)
    to_play = await planned.to_play(played.planner.members(2)[0])
    assert (to_play.scenario, to_play.args_json) == ("repair", '{"n":1}')
    states = {row.episode_id: row.state for row in await played.planner.episodes()}
    assert {states[name] for name in played.planner.members(0)} == {EpisodeState.EVALUATED}
    digest = task_digest("e", "repair", '{"n":1}')
    assert (await played.planner.do(lambda unit: unit.splits([digest])))[digest] is Split.TRAIN


async def test_an_answer_that_is_no_proposal_is_paid_least_and_orders_nothing(played: Played) -> None:
    await played.begin(self_play_alpha=0.5)
    await played.grade(0, 0.0, 1.0)
    await played.go_on()
    await played.solve(2, 0.0, 0.0)
    await played.go_on()
    assert len(played.generator.asked) == 1
    assert await played.paid() == [-1.0, -0.5]


async def test_two_that_propose_the_same_share_its_group_and_its_pay(played: Played) -> None:
    await played.begin()
    played.generator.answers = [{"n": 7}, {"n": 7}]
    await played.grade(0, 1.0, 1.0)
    await played.go_on()
    assert Counter(row.state for row in await played.rows()) == {
        NewTaskState.PLAYING: 1,
        NewTaskState.DUPLICATE: 1,
    }
    assert await played.solving() == {2: 0}
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    assert await played.paid() == [0.1, 0.1]


async def test_what_another_group_proposes_again_is_played_again(played: Played) -> None:
    """The policy has changed since."""
    await played.begin()
    played.generator.answers = [{"n": 7}, {"n": 7}]
    await played.grade(0, 1.0, 0.0)
    await played.grade(1, 1.0, 0.0)
    await played.go_on()
    assert [row.state for row in await played.rows()] == [NewTaskState.PLAYING, NewTaskState.PLAYING]
    assert await played.solving() == {2: 0, 3: 1}


async def test_a_proposal_that_cannot_be_measured_is_left_out_of_its_offer(played: Played) -> None:
    await played.begin()
    played.generator.answers = [EpisodeFault("scenario_error", "not readable"), {"n": 1}]
    await played.grade(0, 1.0, 1.0)
    await played.go_on()
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    assert await played.offers() == []
    queued = await played.queued(0)
    assert queued is not None
    assert (queued.state, queued.reason) == (SourceGroupState.LEFT_OUT, "incomplete_group")
    await check_conservation(played.planner)


async def test_a_proposal_of_a_held_out_task_is_never_played(played: Played) -> None:
    await played.begin()
    held_out = task_digest("e", "repair", '{"n":1}')
    await played.planner.do(lambda unit: unit.claim([held_out], Split.HELD_OUT, "bench"))
    await played.grade(0, 1.0, 1.0)
    await played.go_on()
    first, second = await played.rows()
    assert (first.state, first.slug, second.state) == (NewTaskState.HELD_OUT, "", NewTaskState.PLAYING)
    assert await played.solving() == {2: 1}


async def test_attempts_that_fail_for_good_do_not_hold_up_the_proposer(played: Played) -> None:
    await played.begin()
    await played.grade(0, 1.0, 0.0)
    await played.go_on()
    for attempt in range(3):
        for name in played.planner.members(2):
            await played.planner.apply(played.planner.failed(f"{name[:-1]}{attempt}"))
    assert [row.detail for row in await played.rows()] == ["0 of 0 solved it"]
    queued = await played.queued(0)
    assert queued is not None
    assert queued.state is SourceGroupState.LEFT_OUT
    await check_conservation(played.planner)


async def test_a_proposer_that_fails_for_good_makes_no_group_of_the_trainer_wait(played: Played) -> None:
    """The trainer knows the group as an offer alone, and gets none where too few are left."""
    await played.begin()
    left, failing = played.planner.members(0)
    await played.planner.apply(played.planner.graded(left))
    for attempt in range(3):
        await played.planner.apply(played.planner.failed(f"{failing[:-1]}{attempt}"))
    assert await played.payloads("group.shortened/%") == []
    await check_conservation(played.planner)


async def test_an_environment_that_is_gone_is_asked_until_the_deadline_of_an_episode(played: Played) -> None:
    await played.begin()
    played.generator.answers = [EnvironmentLost("it hung up")] * 2
    await played.grade(0, 1.0, 0.0)
    with pytest.raises(Unavailable, match="it hung up"):
        await played.make()
    assert [row.state for row in await played.rows()] == [NewTaskState.WANTED]
    played.planner.now += timedelta(seconds=2 * self_play_spec().episode_deadline_s)
    await played.make()
    assert [(row.state, row.detail) for row in await played.rows()] == [(NewTaskState.FAILED, "it hung up")]
    assert await played.queued(0) is not None


async def test_a_run_of_whose_proposals_none_is_ever_played_ends_and_says_so(played: Played) -> None:
    """No trainer hears of groups that are left out: nothing else would end it."""
    await played.begin(no_step_groups=6)
    played.generator.answers = [EpisodeFault("scenario_error", "not readable")] * 100
    for group in range(12):
        if (await played.planner.run()).ending is not None:
            break
        await played.grade(group, 1.0, 1.0)
        await played.go_on()
    run = await played.planner.run()
    assert run.ending is RunState.FAILED, f"{run.next_position} groups are planned"
    assert "6 left_out(incomplete_group)" in run.failure
    assert "new tasks" in run.failure


async def test_a_run_none_of_whose_solvers_is_ever_graded_twice_ends_too(played: Played) -> None:
    await played.begin(no_step_groups=2)
    for group in (0, 1):
        await played.grade(group, 1.0, 0.0)
    await played.go_on()
    for group in (2, 3):
        names = played.planner.members(group)
        await played.planner.apply(played.planner.graded(names[0], 1.0))
        for attempt in range(3):
            await played.planner.apply(played.planner.failed(f"{names[1][:-1]}{attempt}"))
    assert (await played.planner.run()).ending is RunState.FAILED


async def test_a_run_none_of_whose_offers_the_trainer_can_take_ends(played: Played) -> None:
    """As its own groups do: what it plans counts in `no_step_groups`, left out by the planner too."""
    await played.begin(no_step_groups=2)
    run_id = played.planner.run_id
    for group in (0, 1):
        await played.grade(group, 0.0, 0.0)
        await played.go_on()
        name, members = played.planner.group_id(group), tuple(played.planner.members(group))
        released = GroupSettled(name, run_id, "released", "quarantined", 0, members, source_run_id=run_id)
        await played.planner.apply(released)
    run = await played.planner.run()
    assert run.ending is RunState.FAILED
    assert "2 released(quarantined)" in run.failure


async def test_an_environment_whose_answers_are_a_bug_is_asked_until_the_deadline(played: Played) -> None:
    """Each look at it would meet the same, for ever, and what its group proposed would train nothing."""
    await played.begin()
    played.generator.answers = [RecursionError("a schema without end")] * 2
    await played.grade(0, 1.0, 0.0)
    with pytest.raises(Unavailable, match="without end"):
        await played.make()
    played.planner.now += timedelta(seconds=2 * self_play_spec().episode_deadline_s)
    await played.make()
    (row,) = await played.rows()
    assert (row.state, row.detail) == (NewTaskState.FAILED, "a schema without end")


async def test_a_planner_that_starts_again_goes_on_from_its_rows(played: Played) -> None:
    """Facts that come twice, an order that is filled twice, and another process between any two steps."""
    await played.begin()
    await played.grade(0, 1.0, 1.0)
    await played.grade(0, 1.0, 1.0)
    again = Played(played.planner)
    await again.go_on()
    await played.go_on()
    assert (len(again.generator.asked), len(played.generator.asked)) == (2, 0)
    for _ in range(2):
        await again.solve(2, 1.0, 0.0)
        await played.solve(3, 0.0, 0.0)
        await played.go_on()
        await again.go_on()
    assert len(await played.offers()) == 1
    assert await played.paid() == [0.1, -0.8]
    await check_conservation(played.planner)


async def test_a_run_that_stops_releases_what_it_offered_and_waits_for_no_proposal(played: Played) -> None:
    await played.begin()
    await played.grade(0, 1.0, 0.0)
    await played.grade(1, 1.0, 1.0)
    await played.go_on()
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    assert len(await played.offers()) == 1
    await played.planner.stop()
    run = await played.planner.run()
    await played.planner.do(lambda unit: announce_released(unit, run))
    (released,) = await played.planner.settled_by_planner()
    assert (released.group_id, released.outcome) == (played.planner.group_id(0), "released")
    assert set(released.episode_ids) == set(played.planner.members(0))
    await played.planner.apply(released)
    assert (await played.planner.run()).state is RunState.COMPLETED
    await check_conservation(played.planner)


async def test_an_offer_that_trained_is_settled_and_counts(played: Played) -> None:
    await played.begin()
    await played.grade(0, 1.0, 0.0)
    await played.go_on()
    await played.solve(2, 1.0, 0.0)
    await played.go_on()
    name, members = played.planner.group_id(0), tuple(played.planner.members(0))
    run_id = played.planner.run_id
    await played.planner.apply(GroupSettled(name, run_id, "trained", "", 1, members, source_run_id=run_id))
    view = await played.planner.do(lambda unit: view_of(unit, _run(unit, run_id)))
    assert (view.sources[0].run_id, view.sources[0].trained) == (run_id, 1)
    assert view.new_tasks is not None
    (shown,) = new_tasks_to_wire(view.new_tasks).newest
    assert (shown.proposed_by, shown.state) == (members[0], "retired")
    assert new_tasks_to_wire(view.new_tasks).success_rate == 0.5


def _run(unit: Any, run_id: str) -> Any:
    return unit.run(run_id)
