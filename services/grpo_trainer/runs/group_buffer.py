"""GroupBuffer of one session: its facts in stream order, exclusions announced at once, complete groups made
ready to train.

Bodies of complete groups are fetched here while earlier steps train. A group counts as settled only after
its settlement is published, so a crash in between decides it again, alike, and publishes it under the same
id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from grpo_trainer.domain.ended import EndedEpisodes
from grpo_trainer.domain.errors import Untrainable, UnusableTrajectory
from grpo_trainer.domain.lengths import Drawn, Lengths
from grpo_trainer.domain.offers import Completion, OfferedGroup
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.signal import leaves_out
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionState
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.token_rows import EpisodeTokens
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory, Settlement
from grpo_trainer.learner.protocol import BatchGroup
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.runs.batches import BatchCutter
from grpo_trainer.runs.deps import RunDeps
from grpo_trainer.runs.groups import GroupAssembler

log = logging.getLogger(__name__)

_MAX_PUBLISHED: Final = 4096
"""Settlements that can be published again; the planner asks for one within minutes."""


@dataclass(frozen=True, slots=True)
class GroupShortened:
    """A member of the group failed for good."""

    group_id: str
    expected_members: int
    sequence: int


@dataclass(frozen=True, slots=True)
class MemberQuarantined:
    """The store set a trajectory aside: its group does not train, where it has not yet."""

    group_id: str
    trajectory_id: str
    reason: str
    sequence: int


@dataclass(frozen=True, slots=True)
class RunOver:
    """run.finished: every episode of the run is settled. saves: the run completed, so its newest version
    becomes a checkpoint, also where the stream lost run.stopping."""

    sequence: int
    saves: bool = False


@dataclass(frozen=True, slots=True)
class RunStopping:
    """run.stopping: no fact after this one trains. saves: the newest version becomes a checkpoint, which the
    gate judges."""

    sequence: int
    saves: bool = True


Fact = GradedTrajectory | GroupShortened | MemberQuarantined | OfferedGroup | RunStopping | RunOver


class GroupBuffer:
    """What a session knows about its groups. All methods run on the event loop; state changes between
    awaits only."""

    def __init__(
        self, spec: TrainingSpec, settled: SettledGroups, counts: dict[str, int], deps: RunDeps
    ) -> None:
        self.spec = spec
        self.settled = settled
        self.counts = counts
        self.cutter = BatchCutter(spec)
        self.assembler = GroupAssembler(spec, settled)
        self.changed = asyncio.Event()
        self.over = False
        self.retired = False
        self.saves = True
        self._stop_sequence: int | None = None
        self.seen = 0
        self.retry = RetryUntilAvailable()
        self._bodies = deps.bodies
        self._facts = deps.facts
        self._instruments = deps.instruments
        self._inbox: deque[Fact] = deque()
        self._arrived = asyncio.Event()
        self._quarantined: dict[str, MemberQuarantined] = {}
        self._published: dict[str, Settlement] = {}
        self._replayed = 0
        self.ended = EndedEpisodes({})
        self._fetches: dict[str, list[asyncio.Task[EpisodeTokens | UnusableTrajectory]]] = {}
        self._fetching = asyncio.Semaphore(32)

    def begin(self, state: SessionState) -> None:
        """Go on from a state, before the first fact is handled: from which tasks must never train, where the
        weights came from, and which facts an earlier process handled."""
        held_out = frozenset(state.held_out_tasks)
        self.assembler = GroupAssembler(self.spec, self.settled, held_out, state.lineage)
        self.ended = EndedEpisodes(state.metrics)
        self._replayed, self.seen = state.seen, state.cursor

    def put(self, fact: Fact) -> None:
        """A fact about this run, in stream order. Where a run plays itself a proposal's grade trains
        nothing: its group comes as an offer, once what it proposed was played."""
        if self.spec.self_play and isinstance(fact, GradedTrajectory) and fact.evaluated:
            return
        self._inbox.append(fact)
        self._arrived.set()

    @property
    def stopping(self) -> bool:
        """The run is to end early."""
        return self._stop_sequence is not None

    @property
    def run_over(self) -> bool:
        """The planner ended the run, whether or not that fact was handled."""
        return self.over or any(isinstance(fact, RunOver) for fact in self._inbox)

    @property
    def first_unsettled_sequence(self) -> int | None:
        """Sequence of the earliest fact that a replay must find again; None when there is none."""
        found = (self.assembler.first_unsettled_sequence, self._stop_sequence)
        return min((one for one in found if one is not None), default=None)

    def held(self) -> list[CompleteGroup]:
        """Groups that have a member here and are not settled, complete or not."""
        return [*self.cutter.waiting, *self.assembler.open_groups]

    def drawn(self, batch: Iterable[CompleteGroup]) -> Drawn:
        """What a step of these groups leaves: what still waits, and what was thrown away for its age."""
        trained = {group.group_id for group in batch}
        waiting = (group for group in self.held() if group.group_id not in trained)
        return Drawn(Lengths.of(waiting), self.cutter.stale)

    def step_taken(self) -> None:
        """A step has counted what is counted from step to step."""
        self.cutter.forget_stale()
        self.ended.step_taken()

    @property
    def is_drained(self) -> bool:
        """Every fact that was put is handled."""
        return not self._inbox

    async def run(self) -> None:
        """Handle facts for ever."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._inbox:
                await self._handle(self._inbox[0])
                self._inbox.popleft()
                self.changed.set()

    async def _handle(self, fact: Fact) -> None:
        self.seen = fact.sequence
        if isinstance(fact, GradedTrajectory | OfferedGroup) and fact.group_id in self.settled:
            await self._answer_again(fact)
            return
        if (self.retired or self.stopping) and not isinstance(fact, RunOver):
            return  # no step follows; the planner cancels what is left
        match fact:
            case GradedTrajectory() | GroupShortened() | OfferedGroup():
                await self._take(self._assembled(fact))
            case MemberQuarantined(group_id):
                if group_id not in self.settled:
                    self._quarantined[group_id] = fact
            case RunStopping(sequence, saves):
                self._stop_sequence, self.saves = sequence, saves
            case RunOver(_, saves):
                self.over, self.saves = True, self.saves if self.stopping else saves

    def _assembled(self, fact: GradedTrajectory | GroupShortened | OfferedGroup) -> Completion | None:
        match fact:
            case GradedTrajectory():
                self.ended.add(fact)
                return self.assembler.add(fact)
            case GroupShortened(group_id, expected_members, sequence):
                return self.assembler.shorten(group_id, expected_members, sequence)
            case OfferedGroup():
                return self.assembler.offer(fact)

    async def _take(self, completion: Completion | None) -> None:
        if isinstance(completion, Settlement):
            await self.settle(completion)
        elif completion is not None:
            self.cutter.add(completion)
            self._fetches[completion.group_id] = [self._fetch(member) for member in completion.members]

    def _fetch(self, member: GradedTrajectory) -> asyncio.Task[EpisodeTokens | UnusableTrajectory]:
        async def work() -> EpisodeTokens | UnusableTrajectory:
            async with self._fetching:
                try:
                    return await self.retry.until_available(lambda: self._bodies.tokens(member))
                except UnusableTrajectory as error:
                    return error  # a value: whether it is ever looked at depends on the group's fate

        return asyncio.create_task(work(), name=f"fetch/{member.trajectory_id}")

    async def settle(self, settlement: Settlement) -> None:
        """Announce an exclusion or a release, unless the planner has ended the group, then remember it."""
        extra = {"group_id": settlement.group_id, "reason": settlement.reason.value}
        log.info(f"group_{settlement.outcome.value}", extra=extra)
        await self.retry.until_available(lambda: self._facts.publish_settled(self.spec, settlement))
        self.remember(settlement)
        self._note_published([settlement])

    def note_announced(self, step: StepRecord | None) -> None:
        """All events of a step are published."""
        self._note_published(() if step is None else step.settlements)

    def _note_published(self, settlements: Iterable[Settlement]) -> None:
        """The group.settled of these groups is in the stream. A service that tells of one of them once
        more has not read it: it is published again, under its id."""
        self._published |= {settlement.group_id: settlement for settlement in settlements}
        while len(self._published) > _MAX_PUBLISHED:
            del self._published[next(iter(self._published))]

    async def _answer_again(self, fact: GradedTrajectory | OfferedGroup) -> None:
        settlement, facts = self._published.get(fact.group_id), self._facts
        if settlement is not None:
            known = settlement
            await self.retry.until_available(lambda: facts.publish_settled_again(self.spec, known))
        elif fact.sequence > self._replayed:
            is_offered = isinstance(fact, OfferedGroup)
            await self.retry.until_available(
                lambda: facts.repeat_settled(self.spec, fact.group_id, is_offered=is_offered)
            )

    def remember(self, settlement: Settlement) -> None:
        """The group is over; nothing about it will be looked at again."""
        self.assembler.settle(settlement.group_id)
        self.cutter.remove(settlement.group_id)
        self._quarantined.pop(settlement.group_id, None)
        self._forget(settlement.group_id)
        self.counts[settlement.label] = self.counts.get(settlement.label, 0) + 1
        self._instruments.count_settled(self.spec, settlement)

    async def contents(self, group: CompleteGroup) -> BatchGroup:
        """The group with its tokens. Raises UnusableTrajectory for the first member that cannot be
        trained, and where one was quarantined."""
        if (aside := self._quarantined.get(group.group_id)) is not None:
            raise UnusableTrajectory(f"{aside.trajectory_id} was quarantined: {aside.reason}")
        rollouts = []
        for member, fetch in zip(group.members, self._fetches[group.group_id], strict=True):
            tokens = await fetch
            if isinstance(tokens, UnusableTrajectory):
                raise tokens
            rollouts.append(tokens.untrained if leaves_out(self.spec, member) else tokens)
        if not any(tokens.num_trained for tokens in rollouts):
            raise Untrainable(f"{group.group_id}: no token of it may be trained")
        return BatchGroup(
            group.group_id,
            tuple(rollouts),
            tuple(member.reward for member in group.members),
            tuple(member.turn_rewards for member in group.members),
            tuple(member.parts for member in group.members),
            proposes=group.proposes,
        )

    def close(self) -> None:
        """Cancel what is being fetched."""
        for group_id in list(self._fetches):
            self._forget(group_id)

    def _forget(self, group_id: str) -> None:
        for task in self._fetches.pop(group_id, []):
            task.cancel()
