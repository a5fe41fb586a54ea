"""Evaluations whose closed groups the planner offers to the run of the tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, World

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.api.taskset.v1.events_pb2 import GroupOffered
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

EVALUATION = "run-0000000000e1"
EIGHT = (1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)
"""Rewards of a group that teaches something."""


@dataclass
class Evaluation:
    """Makes groups of an evaluation: same index, same bytes. Its groups are twice as large as the run's."""

    world: World
    run_id: str = EVALUATION
    group_size: int = 8

    def group_id(self, index: int) -> str:
        return f"{self.run_id}-g{index:05d}"

    async def offer(
        self,
        index: int,
        rewards: Sequence[float] = EIGHT,
        *,
        split: common.Split.ValueType = common.SPLIT_TRAIN,
        before_start: bool = False,
        said_digest: str = "",
        **changes: Any,
    ) -> GroupOffered:
        """Store the bodies of a group; returns the fact without announcing it. split: as the fact says it;
        body_split: as the bodies do; said_digest: of the fact alone."""
        body = {"purpose": common.PURPOSE_EVAL, "split": changes.pop("body_split", common.SPLIT_TRAIN)}
        episodes = Episodes(self.world, self.run_id, self.group_size)
        facts = await episodes.facts(index, rewards, **{**body, **changes})
        return GroupOffered(
            group_id=self.group_id(index),
            run_id=RUN,
            source_run_id=self.run_id,
            model=MODEL,
            group_size=self.group_size,
            task_digest=said_digest or facts[0].episode.task_digest,
            split=split,
            before_start=before_start,
            members=map(_member, facts),
        )

    async def offered(self, index: int, rewards: Sequence[float] = EIGHT, **changes: Any) -> str:
        """Store a group and offer it to the run; returns its id."""
        self.world.stream.append(await self.offer(index, rewards, **changes))
        return self.group_id(index)

    async def all_offered(self, indexes: Iterable[int], **changes: Any) -> list[str]:
        """As `offered`, several."""
        return [await self.offered(index, **changes) for index in indexes]


def settled_id(group_id: str) -> str:
    """Event id under which the run settles a group of an evaluation."""
    return f"group.settled/{RUN}/{group_id}"


def _member(fact: TrajectoryGraded) -> taskset.OfferedTrajectory:
    return taskset.OfferedTrajectory(
        trajectory_id=fact.episode.trajectory_id,
        episode_id=fact.episode.episode_id,
        member=fact.episode.member,
        reward=fact.reward,
        success=fact.success,
        body=fact.body,
        sampled_by=fact.sampled_by,
        stop_reason=fact.stop_reason,
    )
