"""A planner in memory: accepts orders, finishes runs when told to. test_service has one behind real gRPC."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from checkpoint_registry.domain.errors import PeerRefused
from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.jobs import GateSpec
from checkpoint_registry.domain.runs import (
    EpisodeOutcome,
    EvaluationOrder,
    EvaluationRun,
    RunOutcome,
    TasksetView,
    TrainingLoad,
)
from upcycle.errors import Unavailable

PROFILE = SamplingProfile(1.0, 1.0, 8, 128, 2048)
TASKS = {f"t{task:02d}": f"family-{task % 4}" for task in range(40)}
HELD_OUT = TasksetView("held-out", "d" * 64, True, 40, families=TASKS)
GATE = GateSpec("held-out", attempts=2, confidence=0.95, regression_margin=0.1, min_gain=0.0)


@dataclass
class PlannerDouble:
    """The planner, as the use cases ask it."""

    tasksets: dict[str, TasksetView] = field(default_factory=lambda: {HELD_OUT.name: HELD_OUT})
    older: list[TasksetView] = field(default_factory=list)
    """Revisions that are no longer the newest of their name."""
    asked: list[str] = field(default_factory=list)
    """Names of tasksets, in the order in which they were asked for."""
    runs: dict[str, EvaluationRun] = field(default_factory=dict)
    orders: dict[str, EvaluationOrder] = field(default_factory=dict)
    read_whole: list[str] = field(default_factory=list)
    """Runs whose results were asked for."""
    training: list[TrainingLoad] = field(default_factory=list)
    """What samples now."""
    is_away: bool = False
    source_digest: str = ""
    """Of the code that judges what is submitted from now on."""
    refusal: str = ""

    async def run(self, run_id: str, *, include_results: bool = False) -> EvaluationRun | None:
        self._answer()
        run = self.runs.get(run_id)
        self.read_whole += [run_id] if include_results else []
        return run if run is None or include_results else replace(run, results=())

    async def taskset(self, name: str) -> TasksetView | None:
        self._answer()
        self.asked.append(name)
        exact = {f"{one.name}@{one.revision}": one for one in [*self.older, *self.tasksets.values()]}
        return self.tasksets.get(name) or exact.get(name)

    async def source_now(self, name: str) -> str:
        self._answer()
        return self.source_digest

    async def submit(self, order: EvaluationOrder) -> str:
        self._answer()
        if self.refusal:
            raise PeerRefused(self.refusal)
        run_id = "run-" + hashlib.sha256(order.request_id.encode()).hexdigest()[:12]
        if self.orders.get(run_id, order) != order:
            raise PeerRefused(f"request_id {order.request_id!r} belongs to {run_id} with another spec")
        if run_id not in self.runs:
            self.orders[run_id] = order
            run = evaluation_run(run_id, order.model, order.version, order.profile)
            self.runs[run_id] = replace(
                run, source_digest=self.source_digest, against_version=order.against_version
            )
        return run_id

    async def unfinished(self, order: EvaluationOrder) -> str:
        self._answer()
        for run_id, known in self.orders.items():
            if known.request_id == order.request_id and self.runs[run_id].outcome is RunOutcome.UNFINISHED:
                return run_id
        return ""

    async def cancel(self, run_id: str, reason: str) -> None:
        self._answer()
        if self.runs[run_id].outcome is RunOutcome.UNFINISHED:
            self.fail(run_id, RunOutcome.CANCELLED, reason)

    async def trainings(self, model: str) -> Sequence[TrainingLoad]:
        self._answer()
        return self.training

    async def pinned_versions(self) -> set[tuple[str, int]]:
        self._answer()
        return {
            (run.model, version)
            for run in self.runs.values()
            if run.outcome is RunOutcome.UNFINISHED
            for version in (run.pinned_version, run.against_version)
            if version is not None
        }

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("the planner is away")

    def training_run(self, run_id: str, model: str, gate: GateSpec | None = GATE) -> None:
        run = evaluation_run(run_id, model, None, PROFILE)
        self.runs[run_id] = replace(run, is_evaluation=False, gate=gate, taskset="train")

    def order_of(self, version: int) -> str:
        """The newest run that was ordered for a version."""
        return [run_id for run_id, order in self.orders.items() if order.version == version][-1]

    def finish(self, run_id: str, rate: float, at: datetime) -> None:
        """Completes an evaluation that a person asked for, with a success rate."""
        version = self.runs[run_id].pinned_version or 0
        self._complete(run_id, graded(rate, 2, version, seed=run_id), at)

    def finish_pair(self, run_id: str, rate: float, head_rate: float, at: datetime, *, lost: int = 0) -> None:
        """Completes a run of two versions; the first `lost` episodes of the candidate failed."""
        order = self.orders[run_id]
        chosen = [task for task, family in TASKS.items() if family in (order.families or TASKS.values())]
        sides = (
            _side(chosen, rate, order.attempts, order.version, 0, seed=f"{run_id}/c"),
            _side(chosen, head_rate, order.attempts, order.against_version, 1, seed=f"{run_id}/h"),
        )
        broken = tuple(replace(result, graded=False) for result in sides[0][:lost])
        self._complete(run_id, broken + sides[0][lost:] + sides[1], at)

    def _complete(self, run_id: str, results: tuple[EpisodeOutcome, ...], at: datetime) -> None:
        run = self.runs[run_id]
        self.runs[run_id] = replace(run, outcome=RunOutcome.COMPLETED, finished_at=at, results=results)

    def fail(self, run_id: str, outcome: RunOutcome, failure: str) -> None:
        self.runs[run_id] = replace(self.runs[run_id], outcome=outcome, failure=failure)


def evaluation_run(
    run_id: str, model: str, version: int | None, profile: SamplingProfile, taskset: TasksetView = HELD_OUT
) -> EvaluationRun:
    return EvaluationRun(
        run_id=run_id,
        model=model,
        is_evaluation=True,
        outcome=RunOutcome.UNFINISHED,
        failure="",
        taskset=taskset.name,
        taskset_digest=taskset.digest,
        pinned_version=version,
        profile=profile,
        gate=None,
        finished_at=None,
        taskset_revision=taskset.revision,
    )


def graded(rate: float, attempts: int, version: int, *, seed: str) -> tuple[EpisodeOutcome, ...]:
    """40 tasks in 4 families, one version."""
    rng = random.Random(seed)
    return tuple(
        EpisodeOutcome(f"t{task:02d}", f"family-{task % 4}", True, rng.random() < rate, version, version)
        for task in range(40)
        for _ in range(attempts)
    )


def _side(
    tasks: list[str], rate: float, attempts: int, version: int, side: int, *, seed: str
) -> tuple[EpisodeOutcome, ...]:
    """Exactly this share of attempts succeeds, wherever the dice put them."""
    rng = random.Random(seed)
    total = len(tasks) * attempts
    wins = [at < round(rate * total) for at in range(total)]
    rng.shuffle(wins)
    return tuple(
        EpisodeOutcome(
            task, TASKS[task], True, wins[index * attempts + attempt], version, version, 2 * attempt + side
        )
        for index, task in enumerate(tasks)
        for attempt in range(attempts)
    )
