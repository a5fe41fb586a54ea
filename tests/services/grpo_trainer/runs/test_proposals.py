"""What a run proposed to itself: graded at once, and trained in the group that is offered, with what it is
paid."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace
from typing import Any, cast

from tests.services.grpo_trainer.learner.test_unreadable_turns import rollout
from tests.services.grpo_trainer.runs.test_assembly import graded, spec
from tests.services.grpo_trainer.runs.test_offers import RUN, SPEC, assembler, group, member

from blob_store import BlobRef, ref
from episodes import GroupReason
from grpo_trainer import wire
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.steps import _rates
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.learner.rows import Credit, batch_rows
from grpo_trainer.runs.group_buffer import GroupBuffer
from grpo_trainer.runs.groups import GroupAssembler
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import GroupOffered
from upcycle.api.taskset.v1.taskset_pb2 import OfferedTrajectory
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

SELF_PLAY: dict[str, Any] = {"self_play": "hide:find", "advantage": "hierarchical"}


def offered(*rewards: float, run_id: str = RUN) -> GroupOffered:
    """A proposer's group as the planner offers it."""
    members = [
        OfferedTrajectory(
            trajectory_id=f"traj-{number}",
            episode_id=str(number),
            member=number,
            reward=reward,
            success=True,
            body=ref.to_wire(BlobRef("k", "s", 1)),
            sampled_by=common_pb2.VersionSpan(oldest=9, newest=9),
        )
        for number, reward in enumerate(rewards)
    ]
    return GroupOffered(
        group_id="g0",
        run_id=RUN,
        source_run_id=run_id,
        group_size=4,
        task_digest="d",
        split=common_pb2.SPLIT_TRAIN,
        members=members,
    )


async def test_the_grade_of_a_proposal_makes_no_group() -> None:
    deps = cast(Any, SimpleNamespace(bodies=None, facts=None, instruments=None))
    buffer = GroupBuffer(spec(self_play="hide:find"), SettledGroups("run-1"), {}, deps)
    handling = asyncio.create_task(buffer.run())
    for number in range(3):
        buffer.put(dataclasses.replace(graded(0, number, 1.0, number + 1), evaluated=True))
        buffer.put(graded(1, number, 0.0, number + 4))
    while not buffer.is_drained:
        await asyncio.sleep(0)
    handling.cancel()
    assert buffer.assembler.num_open == 1
    assert buffer.ended.success == 0.0, "a proposal is no success at a task"


def test_a_graded_episode_that_was_asked_for_as_an_evaluation_is_known_by_its_identity() -> None:
    for purpose, evaluated in ((common_pb2.PURPOSE_EVAL, True), (common_pb2.PURPOSE_TRAIN, False)):
        fact = TrajectoryGraded(body=ref.to_wire(BlobRef("k", "s", 1)))
        fact.episode.purpose = purpose
        assert wire.graded_from_wire(fact, 1, {}).evaluated is evaluated


def test_what_the_run_offers_itself_is_a_proposal_with_its_pay() -> None:
    own = wire.offer_from_wire(offered(0.1, -0.8), 3, {})
    assert [(one.reward, one.proposal) for one in own.members] == [(0.1, True), (-0.8, True)]
    other = wire.offer_from_wire(offered(0.1, -0.8, run_id="run-2"), 3, {})
    assert not any(one.proposal for one in other.members)


def test_proposals_that_are_paid_alike_are_compared_with_others_only_where_the_run_says_so() -> None:
    same = wire.offer_from_wire(offered(-0.8, -0.8), 3, {})
    plain = assembler(self_play="hide:find").offer(same)
    assert isinstance(plain, Settlement)
    assert plain.reason is GroupReason.ZERO_SPREAD
    taken = assembler(**SELF_PLAY).offer(same)
    assert isinstance(taken, CompleteGroup)
    assert taken.proposes
    solvers = assembler(**SELF_PLAY).offer(group(rewards=(1.0, 1.0)))
    assert isinstance(solvers, Settlement)


def test_each_role_is_compared_with_its_own() -> None:
    """Solvers at their mean of 0.5; the four proposals of both groups at theirs of -0.25."""
    pairs = {"p": (0.7, -0.9), "q": (-0.8, 0.0), "s": (1.0, 0.0)}
    groups = [
        BatchGroup(name, (rollout(f"{name}0", 5), rollout(f"{name}1", 5)), paid, proposes=name != "s")
        for name, paid in pairs.items()
    ]
    rows = batch_rows(groups, credit=Credit("hierarchical"), group_size=2).rows
    assert {row.row_id[:2]: round(row.advantage, 9) for row in rows} == {
        "p0": 0.95,
        "p1": -0.65,
        "q0": -0.55,
        "q1": 0.25,
        "s0": 0.5,
        "s1": -0.5,
    }


def test_a_step_says_apart_what_was_proposed() -> None:
    proposals = [dataclasses.replace(member(0, n, paid), proposal=True) for n, paid in enumerate((0.1, -1.0))]
    rates = _rates([*proposals, member(1, 0, 1.0), member(1, 1, 0.0)])
    assert (rates["reward_mean"], rates["success_rate"]) == (0.5, 0.5)
    assert (rates["proposal_fraction"], rates["proposal_valid_rate"]) == (0.5, 0.5)
    assert rates["proposal_reward_mean"] == -0.45
    assert _rates(proposals)["reward_mean"] == -0.45, "of a step with nothing else"


def test_a_settled_proposal_is_not_offered_again() -> None:
    settled = SettledGroups(RUN)
    one = GroupAssembler(dataclasses.replace(SPEC, **SELF_PLAY), settled)
    one.settle("g0")
    assert one.offer(wire.offer_from_wire(offered(0.1, -0.8), 3, {})) is None
