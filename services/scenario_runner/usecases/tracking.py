"""Follows a training run on held-out sets: orders evaluations of its versions, reads them, and ends a run
that falls. Never in the way of training or of a gate: one evaluation of a run at a time, a few episodes at
once, none while another evaluation of the model is played, and at most a tenth of what training takes of the
engines.
"""

import logging
from dataclasses import replace
from datetime import timedelta
from typing import Final, Protocol

from episodes import Purpose
from identities.entities import track_request_id
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import RunnerError
from scenario_runner.domain.runs import FINAL_RUN_STATES, EpisodeState, RunRecord, RunState, RunView
from scenario_runner.domain.tracked import TrackedRow, TrackedState, fallen, next_due
from scenario_runner.usecases.ending import stop_early
from scenario_runner.usecases.submitting import TraceContext
from service_kit.errors import InvalidRequest
from service_kit.loops import one_piece
from upcycle.errors import Unavailable
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.run_config import PolicyChoice, RunSpec
from upcycle.tracking import why_ended

log = logging.getLogger(__name__)

IN_FLIGHT: Final = 4
"""Episodes of a tracking evaluation at once."""
ENGINE_SHARE: Final = 0.1
"""Of the seconds of engines that training took, while it goes on."""
_GIVE_UP: Final = timedelta(seconds=120)
"""How long a version is tried that the planner refuses, after its run is over."""


class Submits(Protocol):
    """SubmitRun."""

    async def __call__(self, request_id: str, spec: RunSpec, trace: TraceContext) -> RunView:
        """The run."""


class TrackRuns:
    """One look at all runs that have something to be measured. Every step is idempotent by request id."""

    def __init__(self, plan: SqlPlan, submit: Submits) -> None:
        self._plan = plan
        self._submit = submit

    async def __call__(self) -> None:
        """Raises Unavailable at the end, if one of them is to be tried again."""
        failed: Unavailable | None = None
        for run_id in await self._plan.read(lambda unit: unit.tracked.open_runs()):
            try:
                with one_piece(f"tracking of {run_id}", of=run_id):
                    await self._look_at(run_id)
            except Unavailable as error:  # the other runs go on
                failed = error
        if failed is not None:
            raise failed

    async def _look_at(self, run_id: str) -> None:
        due = await self._plan.transact(lambda unit: _look(unit, run_id))
        if due is not None:
            await self._begin(*due)

    async def _begin(self, run: RunRecord, row: TrackedRow) -> None:
        spec = RunSpec(
            taskset=row.taskset,
            purpose=Purpose.EVAL,
            policy=PolicyChoice(run.spec.policy.model, pinned_version=row.version),
            group_size=1,
            sampling=run.spec.sampling,
            label=f"track {run.run_id} step {row.step}",
            episode_deadline_s=run.spec.episode_deadline_s,
            max_concurrent=IN_FLIGHT,
        )
        request_id = track_request_id(run.run_id, row.taskset, row.step)
        try:
            view = await self._submit(request_id, spec, TraceContext(run.trace_id, run.trace))
        except (RunnerError, InvalidRequest) as error:
            refused = str(error)
            await self._plan.transact(lambda unit: _refused(unit, run.run_id, row, refused))
            return
        begun = replace(row, state=TrackedState.PLAYING, eval_run_id=view.run.run_id)
        await self._plan.transact(lambda unit: unit.tracked.update(begun))
        log.info("tracking_begun", extra={"run_id": run.run_id, "taskset": row.taskset, "step": row.step})


def _look(unit: PlanUnit, run_id: str) -> tuple[RunRecord, TrackedRow] | None:
    """Read what ended, end the run if it fell, and choose what to play."""
    run = unit.run(run_id)
    if run is None:
        return None
    rows = [_as_played(unit, row) for row in unit.tracked.of(run_id)]
    if run.state not in FINAL_RUN_STATES and run.ending is None and (fall := fallen(run.spec, rows)):
        reason = why_ended(fall[0].taskset, [row.point for row in fall], [row.eval_run_id for row in fall])
        log.warning("run_fell", extra={"run_id": run_id, "reason": reason})
        stop_early(unit, run, reason, kept=True)
    chosen, skipped = next_due(rows)
    if run.state in (RunState.CANCELLED, RunState.FAILED):
        chosen, skipped = None, [old for old in rows if old.state is TrackedState.DUE]
    for old in skipped:
        unit.tracked.update(replace(old, state=TrackedState.SKIPPED))
    return None if chosen is None or not _may_begin(unit, run, rows) else (run, chosen)


def _may_begin(unit: PlanUnit, run: RunRecord, rows: list[TrackedRow]) -> bool:
    """Training and gates come first."""
    model = run.spec.policy.model
    others = (one for one in unit.active_runs() if one.spec.policy.model == model)
    if any(one.spec.purpose is Purpose.EVAL for one in others):
        return False
    spent = sum(row.engine_s for row in rows)
    return run.state in FINAL_RUN_STATES or spent <= ENGINE_SHARE * run.engine_s


def _as_played(unit: PlanUnit, row: TrackedRow) -> TrackedRow:
    """As it is once what its evaluation brought is written down; the row itself where none ended."""
    if row.state is not TrackedState.PLAYING:
        return row
    played = unit.run(row.eval_run_id)
    if played is None:
        ended = replace(row, state=TrackedState.FAILED, detail="its evaluation is gone")
    elif played.state in FINAL_RUN_STATES:
        ended = _ended(unit, row, played)
    else:
        return row
    unit.tracked.update(ended)
    return ended


def _ended(unit: PlanUnit, row: TrackedRow, played: RunRecord) -> TrackedRow:
    outcomes = _outcomes(unit, played)
    is_played = played.state is RunState.COMPLETED and bool(outcomes)
    state = TrackedState.PLAYED if is_played else TrackedState.FAILED
    detail = "" if is_played else played.failure or played.state.value
    return replace(row, state=state, detail=detail, outcomes=outcomes, engine_s=played.engine_s)


def _outcomes(unit: PlanUnit, played: RunRecord) -> dict[str, tuple[str, int, int]]:
    """Family, successes and attempts by task, of what was graded; what infrastructure lost is missing, and a
    guided attempt shows nothing. A task without a solution has no rate."""
    results = [row for row in unit.results(played.run_id) if not row.guided_after]
    rows = [row for row in results if row.state is EpisodeState.EVALUATED]
    tasks = unit.tasks(played.taskset, [row.task_position for row in rows])
    found: dict[str, tuple[str, int, int]] = {}
    for row in rows:
        task = tasks[row.task_position]
        if task.family == IMPOSSIBLE_FAMILY:
            continue
        _, won, attempts = found.get(task.slug, (task.family, 0, 0))
        found[task.slug] = (task.family, won + row.success, attempts + 1)
    return found


def _refused(unit: PlanUnit, run_id: str, row: TrackedRow, why: str) -> None:
    """Tried again, as a version may not be recorded yet, until its run is over for long."""
    log.info("tracking_refused", extra={"run_id": run_id, "step": row.step, "error": why})
    run = unit.run(run_id)
    over_at = run.finished_at if run is not None else row.noted_at
    if over_at is not None and unit.now >= over_at + _GIVE_UP:
        unit.tracked.update(replace(row, state=TrackedState.FAILED, detail=why))
