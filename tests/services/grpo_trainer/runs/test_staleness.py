"""Planner and trainer together, without clock or network: what is dispatched, and how old what trains is."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from blob_store import BlobRef
from episodes import Purpose, Split
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.runs.batches import BatchCutter
from grpo_trainer.runs.groups import GroupAssembler
from scenario_runner.domain.plan import groups_wanted, open_group_limit
from scenario_runner.domain.runs import RunRecord, RunState
from upcycle.run_config import PolicyChoice, RunSpec, Training

RUN, GROUP, PROMPTS, BOUND = "run-1", 2, 1, 1
SPEC = TrainingSpec(RUN, "m", GROUP, prompts_per_step=PROMPTS, max_staleness=BOUND, stale_after=2 * BOUND)


def planned() -> RunRecord:
    training = Training(prompts_per_step=PROMPTS, max_staleness=BOUND)
    spec = RunSpec("t", Purpose.TRAIN, PolicyChoice("m"), GROUP, training=training)
    return RunRecord(RUN, "r", spec, Split.TRAIN, "d", RunState.RUNNING, datetime.now(UTC), 10)


@dataclasses.dataclass
class Group:
    """A group that was dispatched and is not settled."""

    number: int
    dispatched_at: int
    facts: list[GradedTrajectory] = dataclasses.field(default_factory=list)

    @property
    def group_id(self) -> str:
        return f"{RUN}-g{self.number:05d}"


class Loop(RuleBasedStateMachine):
    """Any interleaving of planning, sampling, training and restarts of the trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.run = planned()
        self.limit = open_group_limit(self.run, 256)
        self.version = 0
        self.sequence = 0
        self.num_dispatched = 0
        self.open: dict[str, Group] = {}
        self.settled = SettledGroups(RUN)
        self.trained: dict[str, int] = {}
        self.stream: list[GradedTrajectory] = []
        self.restart()
        self.dispatch()

    @rule()
    def restart(self) -> None:
        """A new trainer with the old one's state replays the whole stream: a burst."""
        self.assembler, self.cutter = GroupAssembler(SPEC, self.settled), BatchCutter(SPEC)
        for fact in self.stream:
            self.receive(fact)

    def receive(self, fact: GradedTrajectory) -> None:
        done = self.assembler.add(fact)
        if isinstance(done, Settlement):
            self.settle(done.group_id)
        elif isinstance(done, CompleteGroup):
            self.cutter.add(done)

    def settle(self, group_id: str) -> None:
        self.assembler.settle(group_id)
        self.cutter.remove(group_id)
        self.open.pop(group_id, None)
        self.dispatch()

    def dispatch(self) -> None:
        for _ in range(groups_wanted(self.run, len(self.open), self.limit)):
            group = Group(self.num_dispatched, self.version)
            self.open[group.group_id] = group
            self.num_dispatched += 1

    @precondition(lambda self: any(len(group.facts) < GROUP for group in self.open.values()))
    @rule(data=st.data(), tied=st.integers(0, 4), whole=st.integers(0, 4))
    def grade(self, data: Any, tied: int, whole: int) -> None:
        """A member ends, or all that are left; tokens are of any versions since the group was dispatched."""
        waiting = [group for group in self.open.values() if len(group.facts) < GROUP]
        group = data.draw(st.sampled_from(waiting))
        for _ in range(GROUP - len(group.facts) if whole else 1):
            oldest = data.draw(st.integers(group.dispatched_at, self.version))
            self.sequence += 1
            group.facts.append(self.fact(group, oldest, float(len(group.facts)) if tied else 1.0))
            self.stream.append(group.facts[-1])
            self.receive(self.stream[-1])

    def fact(self, group: Group, oldest: int, reward: float) -> GradedTrajectory:
        member = len(group.facts)
        name = f"{group.group_id}-e{member:03d}-a0"
        return GradedTrajectory(
            trajectory_id=f"traj-{name}",
            episode_id=name,
            run_id=RUN,
            group_id=group.group_id,
            member=member,
            group_size=GROUP,
            reward=reward,
            success=reward > 0,
            body=BlobRef("k", "s", 1),
            oldest_version=oldest,
            newest_version=self.version,
            task_digest="d",
            may_train=True,
            sequence=self.sequence,
            trace_headers={},
        )

    @precondition(lambda self: self.stream)
    @rule(data=st.data())
    def repeat(self, data: Any) -> None:
        """The bus may say anything twice."""
        self.receive(data.draw(st.sampled_from(self.stream)))

    @precondition(lambda self: self.cutter.num_ready)
    @rule()
    def step(self) -> None:
        cut = self.cutter.cut(self.version)
        for one in cut.stale:
            self.settle(one.group_id)
        for group in cut.groups:
            assert group.group_id not in self.trained
            assert all(self.version - member.oldest_version <= 2 * BOUND for member in group.members)
            self.trained[group.group_id] = self.version
            self.settle(group.group_id)
        self.version += bool(cut.groups)

    @invariant()
    def never_more_groups_than_slots(self) -> None:
        assert len(self.open) <= self.limit == (BOUND + 1) * PROMPTS

    @invariant()
    def nothing_is_forgotten(self) -> None:
        assert self.num_dispatched == len(self.open) + len(self.settled)


Loop.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLoop = Loop.TestCase
