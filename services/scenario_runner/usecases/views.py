"""Views of runs as clients see them, read once per run and interval for all who watch it."""

import asyncio
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.learning import alarm, is_worth_an_alarm
from scenario_runner.domain.mixes import gives_nothing, idle_text
from scenario_runner.domain.runs import OPEN_RUN_STATES, NotFound, RunRecord, RunView
from scenario_runner.usecases.mixing import mix_of
from scenario_runner.usecases.new_tasks import report_of
from scenario_runner.usecases.supply import source_reports, with_offers
from upcycle.run_config import Training
from upcycle.run_config.names import BATCH_BASELINE

INTERVAL_S: Final = 0.2
"""A run is read at most once in so many seconds."""
REFRESH_S: Final = 1.0
"""A run that this process did not change is read so often: another planner replica may have changed it."""
MAX_RUNS: Final = 256
_LOOKED_AT: Final = 200
"""Newest runs among which one is found whose id was mistyped."""


def find_run(unit: PlanUnit, run_id: str) -> RunRecord:
    """Raises NotFound."""
    run = unit.run(run_id)
    if run is None:
        newest = unit.catalog.newest_runs(_LOOKED_AT)
        if not newest:
            raise NotFound(f"no run {run_id!r}: there is none yet; submit one with `upcycle eval`")
        near = get_close_matches(run_id, newest, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise NotFound(f"no run {run_id!r}; {hint}the newest are {', '.join(newest[:3])}")
    return run


NoticeCache = dict[str, tuple[int, int, str]]
"""By run id: step, number of groups without a step since, and the notice that follows from the two."""


def view_of(unit: PlanUnit, run: RunRecord, notices: NoticeCache | None = None) -> RunView:
    """A run with its counts, as of this transaction. notices: of earlier views, to be used again."""
    counts = unit.counts(run.run_id)
    if run.spec.training is None:
        return RunView(run, counts)
    is_removed = run.removed_at is not None
    summary = unit.old_runs.summary(run.run_id) if is_removed else None
    tallies = unit.source_groups.tallies(run.run_id) if summary is None else list(summary.tallies)
    mix = mix_of(unit, run)
    notice = _notice(unit, run, run.spec.training, {} if notices is None else notices)
    if run.state in OPEN_RUN_STATES:
        idle = [idle_text(one) for one in mix if gives_nothing(one, run.spec.training.prompts_per_step)]
        notice = "; ".join([notice, *idle] if notice else idle)
    tracked = tuple(unit.tracked.of(run.run_id)) if run.spec.track else ()
    reports = source_reports(run, tallies)
    if run.spec.training.single_sessions == BATCH_BASELINE:
        singles = unit.sessions.singles(run.run_id)
        reports = tuple(replace(one, single=singles.get(one.run_id, 0)) for one in reports)
    new_tasks = None if is_removed else report_of(unit, run)  # their rows go with those of the groups
    return RunView(run, with_offers(counts, tallies), reports, notice, tracked, mix, new_tasks)


def _notice(unit: PlanUnit, run: RunRecord, training: Training, known: NoticeCache) -> str:
    """What a person should know of a training run that goes on; empty where there is nothing."""
    if run.state not in OPEN_RUN_STATES:
        return ""
    if run.failure:
        return run.failure  # it paused itself
    num_groups = sum(unit.outcomes_without_step(run).values())
    if not is_worth_an_alarm(num_groups, training):
        return ""
    # Reading the rewards of all these groups is the dearest part of a view; they change with the number only.
    step, num_known, notice = known.get(run.run_id, (-1, 0, ""))
    if (step, num_known) != (run.step, num_groups):
        notice = alarm(unit.without_step(run), run.step)
        known[run.run_id] = (run.step, num_groups, notice)
    return notice


@dataclass(frozen=True, slots=True)
class _Reading:
    started_at: float
    num_changes: int
    view: "asyncio.Future[RunView]"


class RunViews:
    """The newest view of each watched run. Views that are the same object are equal."""

    def __init__(self, plan: SqlPlan) -> None:
        self._plan = plan
        self._readings: dict[str, _Reading] = {}
        self._notices: NoticeCache = {}

    async def latest(self, run_id: str) -> RunView:
        """At most INTERVAL_S old where this process changed the run, else REFRESH_S. Raises NotFound."""
        reading = self._readings.get(run_id)
        if reading is None or self._is_old(run_id, reading):
            reading = self._begin(run_id)
        try:
            return await asyncio.shield(reading.view)
        except Exception:
            if self._readings.get(run_id) is reading:
                del self._readings[run_id]
            raise

    def _is_old(self, run_id: str, reading: _Reading) -> bool:
        age_s = asyncio.get_running_loop().time() - reading.started_at
        is_changed = self._plan.num_changes(run_id) != reading.num_changes
        return age_s >= (INTERVAL_S if is_changed else REFRESH_S)

    def _begin(self, run_id: str) -> _Reading:
        while len(self._readings) >= MAX_RUNS:
            oldest = next(iter(self._readings))
            del self._readings[oldest]
            self._notices.pop(oldest, None)
        # Counted before the reading: a change during it is read next time.
        num_changes, now = self._plan.num_changes(run_id), asyncio.get_running_loop().time()
        view = asyncio.ensure_future(self._plan.read(lambda unit: self._read(unit, run_id)))
        reading = _Reading(now, num_changes, view)
        self._readings.pop(run_id, None)
        self._readings[run_id] = reading
        return reading

    def _read(self, unit: PlanUnit, run_id: str) -> RunView:
        return view_of(unit, find_run(unit, run_id), self._notices)
