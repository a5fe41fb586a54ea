"""Runs: asked for, looked at, paused, ended."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

from pydantic import ValidationError

from episodes import Purpose, Split
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.environments import EnvironmentBroken
from scenario_runner.domain.mixes import rows_of
from scenario_runner.domain.recorded_sessions import GradedSession
from scenario_runner.domain.runs import (
    OPEN_RUN_STATES,
    AlreadyTaken,
    EpisodeRow,
    Refused,
    RunRecord,
    RunState,
    RunView,
)
from scenario_runner.domain.self_play import roles
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.ports import RecordedSessions, Registry
from scenario_runner.usecases.ending import conclude, end_run, stop_early
from scenario_runner.usecases.next_tasks import num_groups
from scenario_runner.usecases.planning import pause, resume
from scenario_runner.usecases.run_sources import UNKNOWN_SOURCES, SourceChecks
from scenario_runner.usecases.run_tasksets import check_tasksets
from scenario_runner.usecases.session_groups import take_sessions
from scenario_runner.usecases.source_runs import take_sources
from scenario_runner.usecases.views import RunViews, find_run, view_of
from service_kit.errors import InvalidRequest
from upcycle.run_config import RunSpec, Training, reasons_of
from upcycle.run_config.names import ON_FAILURE
from upcycle.session_query import parse_sessions

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REQUEST_ID_CHARS = 200
MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace that SubmitRun began or joined. headers: W3C."""

    trace_id: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is known of a run beside its spec, before the transaction that adds it."""

    run_id: str
    request_id: str
    trace: TraceContext
    head_version: int
    source_digests: tuple[str, ...]
    """Of its tasksets, the own one first."""
    sessions: Sequence[GradedSession] = ()
    """Those that its query matches."""


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """max_audits: runs on one taskset of split audit. gather: how long a group of recorded sessions waits for
    more, in a run that takes them as they come."""

    max_audits: int = 20
    gather: timedelta = timedelta(seconds=60)


class SubmitRun:
    """Accept a run, once per request id. sources: what is asked of the environments that it plays.
    wake: called when there is something to plan."""

    def __init__(
        self,
        plan: SqlPlan,
        registry: Registry,
        *,
        new_id: Callable[[str], str],
        wake: Callable[[], None],
        sources: SourceChecks = UNKNOWN_SOURCES,
        sessions: RecordedSessions | None = None,
        limits: SubmitLimits = SubmitLimits(),
    ) -> None:
        self._limits = limits
        self._plan = plan
        self._registry = registry
        self._sources = sources
        self._sessions = sessions
        self._new_id = new_id
        self._wake = wake

    async def __call__(self, request_id: str, spec: RunSpec, trace: TraceContext) -> RunView:
        """The run is judged by the code that lies there now, until its end.

        Raises InvalidRequest, NotFound (taskset, model, version), Refused, AlreadyTaken, Unavailable."""
        if not 0 < len(request_id) <= MAX_REQUEST_ID_CHARS or not request_id.isprintable():
            raise InvalidRequest(
                f"request_id {request_id!r:.80} is not text of 1 to {MAX_REQUEST_ID_CHARS} characters"
            )
        known = await self._plan.read(lambda unit: _known_run(unit, request_id, spec))
        if known is not None:
            return known
        for member in range(spec.num_sides):
            await self._registry.check_policy(spec.policy_of(member))
        draws = spec.source_runs or spec.sessions
        head = await self._registry.head_version(spec.policy.model) if draws else 0
        digests, sessions = await self._kept_sources(spec), await self._graded_sessions(spec)
        asked = _Asked(self._new_id("run"), request_id, trace, head, digests, sessions)
        view = await self._plan.transact(lambda unit: self._add(unit, asked, spec))
        self._wake()
        return view

    async def _graded_sessions(self, spec: RunSpec) -> Sequence[GradedSession]:
        if not spec.sessions or self._sessions is None:
            return ()
        return await self._sessions.graded(spec.policy.model, parse_sessions(spec.sessions))

    async def _kept_sources(self, spec: RunSpec) -> tuple[str, ...]:
        """The digest of each taskset's source, once every taskset of the run is known to be playable."""
        tasksets = await self._plan.read(lambda unit: check_tasksets(unit, spec))
        for taskset in tasksets if spec.mix else ():
            await self._playable(taskset, self._sources.opens(taskset.source))
        await self._check_proposers(spec, tasksets)
        return tuple([await self._playable(one, self._kept_source(spec, one)) for one in tasksets])

    async def _check_proposers(self, spec: RunSpec, tasksets: Sequence[RegisteredTaskset]) -> None:
        played = roles(spec)
        if played is None:
            return
        proposing = [one for one in tasksets if played.proposer in await self._scenarios(one)]
        if not proposing:
            raise InvalidRequest(
                f"spec.training.self_play names the proposer {played.proposer!r}, and no taskset of the run "
                "has a task of that scenario: add some to a taskset, or leave the option out"
            )
        for taskset in proposing:
            await self._playable(taskset, self._sources.proposes(taskset.source, played))

    async def _scenarios(self, taskset: RegisteredTaskset) -> Sequence[str]:
        return await self._plan.read(lambda unit: unit.scenarios(taskset.key))

    async def _kept_source(self, spec: RunSpec, taskset: RegisteredTaskset) -> str:
        if spec.training is not None:
            await self._check_scenarios(spec.training, taskset)
        return await self._sources.keep(taskset.source, spec.episode_deadline_s)

    async def _check_scenarios(self, asked: Training, taskset: RegisteredTaskset) -> None:
        guides, generates = asked.guidance == ON_FAILURE, asked.new_tasks != "off"
        if not guides and not generates:
            return
        source, scenarios = taskset.source, await self._scenarios(taskset)
        if guides:
            await self._sources.guides(source, scenarios)
        if generates:
            await self._sources.generates(source, scenarios)
        if argument := asked.new_tasks_difficulty:
            await self._sources.has_difficulty(source, scenarios, argument)

    async def _playable(self, taskset: RegisteredTaskset, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except EnvironmentBroken as error:
            raise InvalidRequest(
                f"environment of taskset {taskset.name!r} cannot be read: {error}"
            ) from error

    def _add(self, unit: PlanUnit, asked: "_Asked", spec: RunSpec) -> RunView:
        request_id, trace = asked.request_id, asked.trace
        known = _known_run(unit, request_id, spec)
        if known is not None:
            return known
        tasksets = check_tasksets(unit, spec)
        _refuse_second_training(unit, spec)
        run = RunRecord(
            run_id=asked.run_id,
            request_id=request_id,
            spec=spec,
            split=Split.TRAIN,
            taskset_digest="",
            state=RunState.RUNNING,
            submitted_at=unit.now,
            num_tasks=0,
            trace_id=trace.trace_id,
            trace=trace.headers,
        )
        if tasksets:
            run = self._over(unit, run, tasksets[0], asked.source_digests[0])
        else:
            unit.refer_to_no_taskset()
        unit.add_run(run)
        unit.mixes.add(rows_of(run.run_id, tasksets, asked.source_digests) if spec.mix else ())
        take_sources(unit, run, asked.head_version)
        take_sessions(unit, run, asked.sessions, asked.head_version, self._limits.gather)
        unit.announce_submitted(run)
        return view_of(unit, run)

    def _over(
        self, unit: PlanUnit, run: RunRecord, taskset: RegisteredTaskset, source_digest: str
    ) -> RunRecord:
        """The run with what its own taskset says of it."""
        if taskset.split is Split.AUDIT:
            _open_audit(unit, taskset, self._limits.max_audits, run.run_id)
        spec = _in_steps(run.spec, taskset.num_tasks)
        return replace(
            run,
            spec=spec,
            split=taskset.split,
            taskset=taskset.key,
            taskset_revision=taskset.revision,
            taskset_digest=taskset.digest,
            num_tasks=num_groups(unit, spec, taskset),
            source_digest=source_digest,
        )


class Runs:
    """Look at runs, pause and resume them, end them. wake: called when there is something to plan."""

    def __init__(self, plan: SqlPlan, *, wake: Callable[[], None]) -> None:
        self._plan = plan
        self._views = RunViews(plan)
        self._wake = wake

    async def watched(self, run_id: str) -> RunView:
        """The newest view, read once for all who watch the run. Raises NotFound."""
        return await self._views.latest(run_id)

    async def get(self, run_id: str) -> RunView:
        """Raises NotFound."""
        return await self._plan.read(lambda unit: view_of(unit, find_run(unit, run_id)))

    async def results(self, run_id: str) -> list[tuple[EpisodeRow, RunnableTask]]:
        """The newest attempt at each member of each group. Raises NotFound, and Refused for a run that
        retention removed."""

        def read(unit: PlanUnit) -> list[tuple[EpisodeRow, RunnableTask]]:
            run = find_run(unit, run_id)
            if run.removed_at is not None:
                why = unit.old_runs.summary(run_id).why
                raise Refused(
                    f"the results of {run_id} were removed by retention at "
                    f"{run.removed_at:%Y-%m-%d %H:%M} UTC: {why}; its totals are kept"
                )
            rows = unit.results(run.run_id)
            unit.read_tasks_of(rows)
            return [(row, unit.task_of(row)) for row in rows]

        return await self._plan.read(read)

    async def list(self, limit: int, model: str, *, asked_for: bool = False) -> list[RunView]:
        """Newest first. asked_for: none that gate, watch or tracking ordered."""

        def read(unit: PlanUnit) -> list[RunView]:
            return [view_of(unit, run) for run in unit.runs(limit, model, asked_for=asked_for)]

        return await self._plan.read(read)

    async def unfinished(self, model: str) -> Sequence[RunView]:
        """Runs that are not over, oldest first; empty model: of any."""

        def read(unit: PlanUnit) -> list[RunView]:
            runs = [run for run in unit.active_runs() if model in ("", run.spec.policy.model)]
            return [view_of(unit, run) for run in runs]

        return await self._plan.read(read)

    async def cancel(self, run_id: str, reason: str) -> RunView:
        """Cancelling a run that is over changes nothing. What its trainer has in a step may still train.

        Raises NotFound."""

        def work(unit: PlanUnit, run: RunRecord) -> None:
            end_run(unit, run, RunState.CANCELLED, "run_cancelled", failure=reason[:MAX_REASON_CHARS])
            conclude(unit, run_id)

        return await self._change(run_id, work)

    async def pause(self, run_id: str) -> RunView:
        """Pausing a paused run changes nothing. Raises NotFound, and Refused for a run that ends."""

        def work(unit: PlanUnit, run: RunRecord) -> None:
            _refuse_ending(run, "be paused")
            pause(unit, run)

        return await self._change(run_id, work)

    async def resume(self, run_id: str) -> RunView:
        """Resuming a running run changes nothing. Raises NotFound, and Refused for a run that ends."""

        def work(unit: PlanUnit, run: RunRecord) -> None:
            _refuse_ending(run, "be resumed")
            resume(unit, run)

        view = await self._change(run_id, work)
        self._wake()
        return view

    async def stop(self, run_id: str, reason: str) -> RunView:
        """End a training run early; stopping one that ends changes nothing. Raises NotFound, Refused."""

        def work(unit: PlanUnit, run: RunRecord) -> None:
            if run.spec.purpose is not Purpose.TRAIN:
                raise Refused(
                    f"{run.run_id} is an evaluation: half of one measures something else; cancel it instead"
                )
            stop_early(unit, run, reason[:MAX_REASON_CHARS])
            conclude(unit, run_id)

        return await self._change(run_id, work)

    async def _change(self, run_id: str, work: Callable[[PlanUnit, RunRecord], None]) -> RunView:
        def change(unit: PlanUnit) -> RunView:
            work(unit, find_run(unit, run_id))
            return view_of(unit, find_run(unit, run_id))

        return await self._plan.transact(change)


def _refuse_ending(run: RunRecord, what: str) -> None:
    if run.state not in OPEN_RUN_STATES:
        raise Refused(f"{run.run_id} is {run.state.value} and cannot {what}")


def _open_audit(unit: PlanUnit, taskset: RegisteredTaskset, limit: int, run_id: str) -> None:
    """Looking often enough at the same tasks, and keeping what looks best, selects on them."""
    num_before = unit.catalog.num_audits(taskset.name)
    if num_before >= limit:
        raise Refused(
            f"taskset {taskset.name!r} is for audits and was opened {num_before} times, limit {limit}: what "
            "is looked at so often selects, and audits nothing any more; register other tasks under another "
            "name with split audit, or raise SCENARIO_RUNNER_MAX_AUDITS"
        )
    log.info("audit_opened", extra={"taskset": taskset.name, "opening": num_before + 1, "run_id": run_id})


def _known_run(unit: PlanUnit, request_id: str, spec: RunSpec) -> RunView | None:
    run = unit.run_of_request(request_id)
    if run is None:
        return None
    if run.spec != _in_steps(spec, run.num_tasks):
        raise AlreadyTaken(
            f"request_id {request_id!r} belongs to {run.run_id} with another spec; use a new id"
        )
    return view_of(unit, run)


def _in_steps(spec: RunSpec, num_tasks: int) -> RunSpec:
    """Passes over the taskset as steps. Raises InvalidRequest where the rest does not fit so many steps."""
    try:
        return spec.in_steps(num_tasks)
    except ValidationError as error:
        reasons = reasons_of(error, RunSpec, "spec.training.{}".format)
        raise InvalidRequest(f"over {num_tasks} tasks: {'; '.join(reasons)}") from error


def _refuse_second_training(unit: PlanUnit, spec: RunSpec) -> None:
    if spec.purpose is not Purpose.TRAIN:
        return
    for run in unit.active_runs():
        if run.spec.purpose is Purpose.TRAIN and run.spec.policy.model == spec.policy.model:
            raise Refused(
                f"model {spec.policy.model!r} is being trained by {run.run_id}; "
                "wait for it, stop it, or fork the model"
            )
