"""Planner's slots and trainer's cutter in a simulated clock: tasks of unequal length on some engine places.

A task's log duration is normal, an episode's varies around its task's. A training step takes one unit of
time; the places sample as many mean episodes in that time as a step takes.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from tests.services.grpo_trainer.fakes import START

from blob_store import BlobRef
from episodes import Purpose, Split
from grpo_trainer.domain.lengths import Drawn, Lengths
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepPlan
from grpo_trainer.domain.trajectories import CompleteGroup, GradedTrajectory
from grpo_trainer.runs.batches import BatchCutter
from scenario_runner.domain.plan import groups_wanted, open_group_limit
from scenario_runner.domain.runs import RunRecord, RunState
from upcycle.run_config import PolicyChoice, RunSpec, Training

RUN, PROMPTS, GROUP = "run-1", 16, 8
_MEAN_TOKENS = 100.0


@dataclass(frozen=True)
class Spread:
    """Standard deviations of log durations: of tasks, and of episodes of one task."""

    task: float
    episode: float


@dataclass
class Seen:
    """What a simulated run did. Lengths in units of the task whose log duration is 0."""

    drawn: list[float] = field(default_factory=list)
    trained: list[list[float]] = field(default_factory=list)
    thrown_away: list[float] = field(default_factory=list)
    ages: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def after(self, steps: int) -> list[float]:
        """Lengths of the tasks that trained after the first steps."""
        return [length for step in self.trained[steps:] for length in step]


@dataclass
class _Task:
    length: float
    seconds: list[float]
    began: int | None = None
    left: int = GROUP


class SimulatedRun:
    """One run of `steps` steps."""

    def __init__(self, training: Training, places: float, spread: Spread, seed: int) -> None:
        """places: episodes that engines play at once, in batches of PROMPTS x GROUP."""
        self.seen = Seen()
        self._spec = TrainingSpec(
            RUN,
            "m",
            GROUP,
            prompts_per_step=PROMPTS,
            max_staleness=training.max_staleness,
            stale_after=training.stale_after,
            steps=10**6,
        )
        spec = RunSpec("t", Purpose.TRAIN, PolicyChoice("m"), GROUP, training=training)
        self._run = RunRecord(RUN, "r", spec, Split.TRAIN, "d", RunState.RUNNING, datetime.now(UTC), 10)
        self._cutter = BatchCutter(self._spec)
        self._free = round(PROMPTS * GROUP * places)
        mean = math.exp((spread.task**2 + spread.episode**2) / 2)
        self._unit, self._spread = self._free / (PROMPTS * GROUP * mean), spread
        self._random = np.random.default_rng(seed)
        self._tasks: dict[str, _Task] = {}
        self._queue: deque[tuple[str, float]] = deque()
        self._events: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._now, self._version, self._open = 0.0, 0, 0
        self._training: tuple[CompleteGroup, ...] = ()

    def played(self, steps: int) -> Seen:
        """Until that many steps are taken."""
        self._fill()
        while self._version < steps:
            self._now, _, group_id = heapq.heappop(self._events)
            if group_id:
                self._end_of_episode(group_id)
            else:
                self._version += 1
                self._open -= len(self._training)
                self._training = ()
            if not self._training:
                self._train()
            self._fill()
        self.seen.seconds = self._now
        return self.seen

    def _fill(self) -> None:
        for _ in range(groups_wanted(self._run, self._open, open_group_limit(self._run, 256))):
            group_id = f"{RUN}-g{len(self.seen.drawn):05d}"
            log_length = self._random.normal() * self._spread.task
            noise = self._random.normal(size=GROUP) * self._spread.episode
            self._tasks[group_id] = _Task(math.exp(log_length), list(np.exp(log_length + noise)))
            self._queue.extend((group_id, second) for second in self._tasks[group_id].seconds)
            self.seen.drawn.append(math.exp(log_length))
            self._open += 1
        while self._free and self._queue:
            group_id, second = self._queue.popleft()
            self._free -= 1
            task = self._tasks[group_id]
            task.began = self._version if task.began is None else task.began
            self._push(second * self._unit, group_id)

    def _push(self, after: float, what: str) -> None:
        heapq.heappush(self._events, (self._now + after, next(self._order), what))

    def _end_of_episode(self, group_id: str) -> None:
        self._free += 1
        task = self._tasks[group_id]
        task.left -= 1
        if not task.left:
            self._cutter.add(self._group(group_id, task))

    def _group(self, group_id: str, task: _Task) -> CompleteGroup:
        members = tuple(
            GradedTrajectory(
                trajectory_id=f"traj-{group_id}-{number}",
                episode_id=f"{group_id}-{number}",
                run_id=RUN,
                group_id=group_id,
                member=number,
                group_size=GROUP,
                reward=float(number % 2),
                success=number % 2 == 1,
                body=BlobRef("k", "s", 1),
                oldest_version=task.began or 0,
                newest_version=self._version,
                task_digest="d",
                may_train=True,
                sequence=1,
                trace_headers={},
                num_tokens=max(1, round(_MEAN_TOKENS * second)),
            )
            for number, second in enumerate(task.seconds)
        )
        return CompleteGroup(group_id, members, 1)

    def _train(self) -> None:
        cut = self._cutter.cut(self._version)
        for thrown in cut.stale:
            self.seen.thrown_away.append(self._tasks[thrown.group_id].length)
            self._open -= 1
        if not cut.groups:
            return
        self._training = cut.groups
        self.seen.trained.append([self._tasks[one.group_id].length for one in cut.groups])
        self.seen.ages += [self._version - one.effective_version for one in cut.groups]
        for one in cut.groups:
            self._cutter.remove(one.group_id)
        self._count(cut.groups)
        self._push(1.0, "")

    def _count(self, groups: tuple[CompleteGroup, ...]) -> None:
        drawn = Drawn(Lengths.of(self._cutter.waiting), self._cutter.stale)
        plan = StepPlan(
            self._spec, self._version + 1, self._version, groups, 0.0, "", self.seen.metrics, drawn=drawn
        )
        self.seen.metrics = dict(plan.record({}, at=START, traceparent="").metrics)
        self._cutter.forget_stale()
