"""Reads evaluations that somebody asked for: rollback compares those of head and of the head before."""

import logging

from checkpoint_registry.adapters.sql_gate import SqlGateStore
from checkpoint_registry.adapters.sql_models import SqlModelStore
from checkpoint_registry.domain.errors import UnknownCheckpoint, UnknownModel
from checkpoint_registry.domain.evidence import Evaluation
from checkpoint_registry.domain.models import Checkpoint
from checkpoint_registry.domain.runs import EvaluationRun, RunOutcome, exact_name, tally, version_measured
from checkpoint_registry.ports import Clock, Tasksets

log = logging.getLogger(__name__)


class GatherEvidence:
    """One place that turns runs into evidence. All of it is idempotent by run id and request id."""

    def __init__(self, store: SqlGateStore, models: SqlModelStore, tasksets: Tasksets, *, now: Clock) -> None:
        self._store = store
        self._models = models
        self._tasksets = tasksets
        self._now = now

    async def collect(self, run_id: str) -> Evaluation | None:
        """Stores a finished evaluation. None if its episodes do not all come from one known version."""
        if await self._store.has_evaluation(run_id):
            return None
        run = await self._tasksets.run(run_id)
        if run is not None and run.outcome is RunOutcome.UNFINISHED:
            return None  # asked at each poll: without its results, which may be thousands
        run = await self._tasksets.run(run_id, include_results=True) if run is not None else None
        unknown = f"the planner knows no run {run_id!r}"
        evaluation, problem = await self._read(run) if run is not None else (None, unknown)
        if evaluation is None:
            log.info("evaluation_is_no_evidence", extra={"run_id": run_id, "reason": problem})
            return None
        await self._store.add_evaluation(evaluation)
        return evaluation

    async def _read(self, run: EvaluationRun) -> tuple[Evaluation | None, str]:
        if not run.is_evaluation or run.outcome is not RunOutcome.COMPLETED:
            how = run.outcome.value if run.is_evaluation else "is no evaluation"
            return None, f"run {run.run_id} {how}: {run.failure or 'no reason given'}"
        taskset = await self._tasksets.taskset(exact_name(run.taskset, run.taskset_revision))
        if taskset is None or taskset.digest != run.taskset_digest:
            return None, f"taskset {run.taskset!r} is no longer what run {run.run_id} was made of"
        if not taskset.is_held_out:
            return None, f"taskset {run.taskset!r} is not held out"
        checkpoint = await self._measured(run)
        if checkpoint is None:
            return None, f"run {run.run_id} measured no single version that the registry holds"
        tallies = tally(run.results)
        if not any(one.attempts for one in tallies.values()):
            return None, f"run {run.run_id} graded none of its {len(run.results)} episodes"
        evaluation = Evaluation(
            run_id=run.run_id,
            checkpoint_id=checkpoint.checkpoint_id,
            taskset=run.taskset,
            taskset_digest=run.taskset_digest,
            profile_key=run.profile.key(),
            num_tasks=max(taskset.num_tasks, len(tallies)),
            tallies=tallies,
            finished_at=run.finished_at or self._now(),
            source_digest=run.source_digest,
        )
        return evaluation, ""

    async def _measured(self, run: EvaluationRun) -> Checkpoint | None:
        version = version_measured(run)
        if version is None:
            return None
        try:
            return await self._models.version(run.model, version)
        except (UnknownModel, UnknownCheckpoint):
            return None
