"""Property: offers, repeats, own groups, restarts and the word to stop, in any order: each offered group has
one end, or none where no step follows any more; and what is held out trains through no door.

The learner computes nothing here: what is looked at is who is told what.
"""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.grpo_trainer.bench import MODEL, RUN, Episodes, Trainer, World, submission
from tests.services.grpo_trainer.crashes import trained_once
from tests.services.grpo_trainer.evaluations import Evaluation
from tests.services.grpo_trainer.fakes import Recorder
from tests.support.waiting import until

from event_bus import Decision
from grpo_trainer.domain.following import UNSCALED, Scales
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import SessionPhase
from grpo_trainer.learner.protocol import BatchGroup, Canary, StepNumbers
from grpo_trainer.runs.deps import RunDeps
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import events_pb2 as taskset_events
from upcycle.api.training.v1 import events_pb2 as events

DOORS: dict[str, dict[str, Any]] = {
    "fits": {},
    "flat": {"rewards": (1.0, 1.0, 1.0)},
    "held out by the fact": {"split": common.SPLIT_HELD_OUT},
    "held out by the gate": {"task_digest": "gate-task"},
    "held out by the body": {"body_split": common.SPLIT_HELD_OUT},
    "of another task than it says": {"task_digest": "gate-task", "said_digest": "digest-0"},
    "of another line": {"version": 3, "before_start": True},
    "unassigned": {"split": common.SPLIT_UNASSIGNED},
}
MAY_TRAIN = {"fits"}


class Idle:
    """A Learner and Snapshot that steps at once; all its versions are the base."""

    def __init__(self) -> None:
        self._base = Path()

    async def begin(self, spec: TrainingSpec, base: Path) -> None:
        self._base = base

    async def resume(self, spec: TrainingSpec, base: Path, tensors: Path) -> None:
        self._base = base

    def check(self, group: BatchGroup) -> None:
        """It takes everything."""

    async def step(self, groups: Sequence[BatchGroup], scales: Scales = UNSCALED) -> StepNumbers:
        return StepNumbers({}, applied=True)

    async def snapshot(self) -> Idle:
        return self

    async def close(self) -> None:
        """Nothing is held."""

    @property
    def canary(self) -> Canary:
        return (([1, 2], [-1.0]),)

    async def save(self, directory: Path) -> None:
        await asyncio.to_thread(directory.mkdir)
        await asyncio.to_thread((directory / "tensors").write_bytes, b"none")

    async def export(self, directory: Path) -> None:
        await asyncio.to_thread(shutil.copytree, self._base, directory)


def idle(deps: RunDeps) -> RunDeps:
    return dataclasses.replace(deps, new_learner=Idle)


@dataclasses.dataclass(frozen=True)
class Op:
    """own, offer: of a group by number; repeat: of an earlier fact by number; pause: let the trainer work;
    restart: of its process; stop: the planner ends the run."""

    kind: str
    number: int = 0


OPS = st.one_of(
    st.builds(Op, st.just("offer"), st.integers(0, 23)),
    st.builds(Op, st.sampled_from(["own", "repeat"]), st.integers(0, 9)),
    st.builds(Op, st.sampled_from(["pause", "restart"])),
)


class KeepsFirst(Recorder):
    """Keeps the first fact about each group, as planner and ledger do. A process that is restarted between a
    release and the next durable state may find another reason for it, never another outcome."""

    def check(self, known: Message, word: Decision) -> None:
        if isinstance(known, events.GroupSettled) and isinstance(word.event, events.GroupSettled):
            assert (known.outcome, known.step) == (word.event.outcome, word.event.step)
        else:
            super().check(known, word)


class Play:
    """A run, as the operations make it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.evaluation = Evaluation(world, group_size=3)
        self.offered: dict[str, str] = {}
        self.own: set[str] = set()
        self.late: set[str] = set()
        self.stopped = False
        self._facts: list[Any] = []

    async def do(self, op: Op, trainer: Trainer) -> None:
        match op.kind:
            case "own":
                await self._own(op.number)
            case "offer":
                await self._offer(op.number)
            case "repeat" if self._facts:
                self.world.stream.append(self._facts[op.number % len(self._facts)])
            case "pause":
                await self._all_that_can_train(trainer)
            case "stop":
                self.stopped = True
                self.world.stream.append(taskset_events.RunStopping(run_id=RUN, model=MODEL))

    async def _all_that_can_train(self, trainer: Trainer) -> None:
        """Until every fact is handled and what waits is too little for a step, or no step follows."""
        await until(lambda: self._is_quiet(trainer), timeout_s=60)

    def _is_quiet(self, trainer: Trainer) -> bool:
        if not trainer.sessions.all or trainer.sessions.watermark.handled < len(self.world.stream.facts):
            return False
        session = trainer.sessions.get(RUN)
        waits = session.phase is SessionPhase.WAITING and session.buffer.is_drained
        return session.phase is SessionPhase.FINISHED or (waits and session.buffer.cutter.num_ready < 2)

    async def _own(self, number: int) -> None:
        for fact in await Episodes(self.world, RUN, 2).facts(100 + number, (1.0, 0.0)):
            self._say(fact)
        if not self.stopped:
            self.own.add(f"{RUN}-g{100 + number:05d}")

    async def _offer(self, number: int) -> None:
        door = list(DOORS)[number % len(DOORS)]
        given: dict[str, Any] = {"rewards": (1.0, 0.0, 0.0), **DOORS[door]}
        self._say(await self.evaluation.offer(number, **given))
        group_id = self.evaluation.group_id(number)
        if not self.stopped:
            self.offered[group_id] = door
        elif group_id not in self.offered:
            self.late.add(group_id)

    def _say(self, fact: Any) -> None:
        self._facts.append(fact)
        self.world.stream.append(fact)


async def finished(trainer: Trainer) -> None:
    await until(
        lambda: trainer.sessions.all and trainer.sessions.get(RUN).phase is SessionPhase.FINISHED,
        timeout_s=60,
    )


async def play(folder: Path, ops: Sequence[Op], stop_at: int, steps: int) -> Play:
    world = World(folder, recorder=KeepsFirst())
    await world.publish_base()
    world.held_out["gate-set"] = ("gate-task",)
    world.stream.append(submission(gate="gate-set", steps=steps, group_size=2, max_staleness=9))
    made = Play(world)
    at = min(stop_at, len(ops))
    lives: list[list[Op]] = [[]]
    for op in (*ops[:at], Op("stop"), *ops[at:]):
        if op.kind == "restart":
            lives.append([])
        lives[-1].append(op)
    for number, life in enumerate(lives, start=1):
        async with Trainer(world, change=idle) as trainer:
            for op in life:
                await made.do(op, trainer)
            if number == len(lives):
                await finished(trainer)
                world.stream.append(taskset_events.RunFinished(run_id=RUN, model=MODEL))
    return made


def ends(made: Play) -> dict[str, Any]:
    """The one settlement of each group: two facts about a group would be two event ids."""
    settled = made.world.recorder.of(events.GroupSettled)
    by_group = {one.group_id: one for one in settled}
    assert len(by_group) == len(settled)
    return by_group


@pytest.mark.timeout(300)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ops=st.lists(OPS, min_size=1, max_size=16), stop_at=st.integers(0, 16), steps=st.sampled_from([0, 2]))
def test_each_offered_group_ends_once_and_nothing_held_out_trains(
    tmp_path_factory: pytest.TempPathFactory, ops: list[Op], stop_at: int, steps: int
) -> None:
    made = asyncio.run(play(tmp_path_factory.mktemp("run"), ops, stop_at, steps))
    found = ends(made)
    trained_once(made.world)
    assert not made.late & found.keys()
    assert found.keys() <= made.offered.keys() | made.own
    if steps == 0:  # it never retires by itself, so nothing that came in time is left without an end
        assert found.keys() == made.offered.keys() | made.own
    for group_id, fact in found.items():
        is_own = group_id in made.own
        assert fact.source_run_id == ("" if is_own else made.evaluation.run_id)
        assert fact.outcome in ({"trained", "excluded"} if is_own else {"trained", "released"})
        assert fact.outcome != "trained" or is_own or made.offered[group_id] in MAY_TRAIN
    trained = {one for step in made.world.recorder.of(events.StepCompleted) for one in step.trajectory_ids}
    said = {f"traj-{one}" for fact in found.values() if fact.outcome == "trained" for one in fact.episode_ids}
    assert trained == said


async def test_offers_of_every_kind_are_tried_and_only_fitting_ones_train(tmp_path: Path) -> None:
    """The property above in one run of all doors, so that it cannot hold for want of examples."""
    made = await play(tmp_path, [*(Op("offer", number) for number in range(16)), Op("pause")], 17, 0)
    reasons: dict[str, set[str]] = {}
    for group_id, fact in ends(made).items():
        reasons.setdefault(made.offered[group_id], set()).add(f"{fact.outcome} {fact.reason}".strip())
    assert reasons.pop("fits") == {"trained"}
    assert reasons == {
        "held out by the body": {"released quarantined"},
        "of another task than it says": {"released quarantined"},
        "flat": {"released zero_spread"},
        "held out by the fact": {"released held_out"},
        "held out by the gate": {"released held_out"},
        "of another line": {"released version"},
        "unassigned": {"released held_out"},
    }
