"""Sessions as TrainingService shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from grpo_trainer import wire
from grpo_trainer.domain.alarms import Alarm, AlarmLimits, alarms_of
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.domain.failures import FailedRun
from grpo_trainer.domain.states import SessionPhase, SessionState
from grpo_trainer.interactive.state import InteractiveView
from grpo_trainer.runs.reopening import OpenRun
from grpo_trainer.runs.session import TrainingSession
from grpo_trainer.runs.sessions import RunSessions
from identities.entities import interactive_run_id
from upcycle.api.training.v1 import training_pb2 as training

_STATES: Final = {
    SessionPhase.OPENING: training.SESSION_STATE_WAITING,
    SessionPhase.WAITING: training.SESSION_STATE_WAITING,
    SessionPhase.STEPPING: training.SESSION_STATE_STEPPING,
    SessionPhase.PUBLISHING: training.SESSION_STATE_PUBLISHING,
    SessionPhase.FINISHED: training.SESSION_STATE_FINISHED,
    SessionPhase.FAILED: training.SESSION_STATE_FAILED,
}
FINAL: Final = (training.SESSION_STATE_FINISHED, training.SESSION_STATE_FAILED)
"""States after which nothing comes."""


def find(
    sessions: RunSessions, run_id: str, interactive: Sequence[InteractiveView] = ()
) -> training.TrainingSession:
    """The session of a run, or of a model in interactive training. Raises UnknownSession."""
    for view in every(sessions, interactive):
        if view.run_id == run_id:
            return view
    raise UnknownSession(f"no training session for run {run_id!r}; `ListSessions` names those that exist")


def steps(
    sessions: RunSessions, run_id: str, count: int, interactive: Sequence[InteractiveView] = ()
) -> list[training.StepPoint]:
    """What the newest `count` steps of a session of this process measured, oldest first."""
    points = [
        _point(step.step, step.version, step.metrics, step.staleness)
        for session in sessions.all
        if session.spec.run_id == run_id
        for step in session.history
    ]
    points += [
        _point(step.step, step.version, step.metrics, {})
        for view in interactive
        if interactive_run_id(view.model) == run_id
        for step in view.steps
    ]
    return points[max(0, len(points) - count) :]


def _point(
    step: int, version: int, metrics: Mapping[str, float], staleness: Mapping[int, int]
) -> training.StepPoint:
    return training.StepPoint(step=step, version=version, metrics=wire.metrics_to_wire(metrics, staleness))


def every(
    sessions: RunSessions, interactive: Sequence[InteractiveView] = ()
) -> list[training.TrainingSession]:
    """All sessions: runs of this process, open runs that others hold, runs that failed, and interactive
    ones."""
    limits = sessions.alarm_limits
    elsewhere = [_elsewhere(run) for run in sessions.elsewhere if run.run_id not in sessions.failures]
    present = [_present(session, limits) for session in sessions.all]
    failed = [_failed(run, limits) for run in sessions.failed]
    views = [*elsewhere, *present, *failed, *map(_interactive, interactive)]
    for view in views:
        view.holder = sessions.holder_text(view.model)
    return views


async def stored(sessions: RunSessions, run_id: str) -> training.TrainingSession:
    """A run that ended, and that this process does not know. Raises UnknownSession, Unavailable."""
    found = await sessions.past(run_id)
    if found is None:
        raise UnknownSession(f"no training session for run {run_id!r}; `ListSessions` names those that exist")
    limits = sessions.alarm_limits
    return _failed(found, limits) if isinstance(found, FailedRun) else _past(found, limits)


def _elsewhere(run: OpenRun) -> training.TrainingSession:
    """An open run without a session in this process."""
    view = training.TrainingSession(
        run_id=run.run_id,
        model=run.model,
        kind=training.SESSION_KIND_RUN,
        state=training.SESSION_STATE_WAITING,
    )
    if run.submission is not None:
        view.target_steps = run.submission.spec.steps
    return view


def _failed(run: FailedRun, limits: AlarmLimits) -> training.TrainingSession:
    """A run without a session in this process."""
    failure, state = run.failure, run.state
    view = training.TrainingSession(run_id=failure.run_id, model=failure.model, step=failure.step)
    if state is not None:
        view = _described(state, limits)
        view.settled.update(state.settled_counts)
    view.kind = training.SESSION_KIND_RUN
    view.state = training.SESSION_STATE_FAILED
    view.failure, view.failure_kind = failure.detail, failure.kind.value
    return view


def _interactive(session: InteractiveView) -> training.TrainingSession:
    state = training.SESSION_STATE_STEPPING if session.is_working else training.SESSION_STATE_WAITING
    view = training.TrainingSession(
        run_id=interactive_run_id(session.model),
        model=session.model,
        kind=training.SESSION_KIND_INTERACTIVE,
        state=training.SESSION_STATE_FAILED if session.failure else state,
        version=session.version,
        failure=session.failure,
        waiting_s=session.waiting_s,
    )
    if session.steps:
        newest = session.steps[-1]
        view.step = newest.step
        view.last_metrics.CopyFrom(wire.metrics_to_wire(newest.metrics, {}))
    return view


def _past(state: SessionState, limits: AlarmLimits) -> training.TrainingSession:
    view = _described(state, limits)
    view.state = training.SESSION_STATE_FINISHED if state.finished else training.SESSION_STATE_WAITING
    view.settled.update(state.settled_counts)
    return view


def _present(session: TrainingSession, limits: AlarmLimits) -> training.TrainingSession:
    spec = session.spec
    if session.state is None:
        view = training.TrainingSession(
            run_id=spec.run_id, model=spec.model, kind=training.SESSION_KIND_RUN, target_steps=spec.steps
        )
    else:
        view = _described(session.state, limits)
    view.state = _STATES[session.phase]
    view.groups_ready = session.buffer.cutter.num_ready
    view.groups_publishing = session.groups_publishing
    view.groups_open = session.buffer.assembler.num_open
    view.settled.update(session.buffer.counts)
    if session.failed is not None:
        view.failure, view.failure_kind = session.failed.detail, session.failed.kind.value
    view.stopping = session.buffer.stopping
    view.waiting_s = session.waiting_s
    return view


def _alarm(alarm: Alarm) -> training.TrainingAlarm:
    return training.TrainingAlarm(
        kind=alarm.kind.value,
        value=alarm.value,
        limit=alarm.limit,
        since_step=alarm.since_step,
        text=alarm.text,
    )


def _described(state: SessionState, limits: AlarmLimits) -> training.TrainingSession:
    view = training.TrainingSession(
        run_id=state.spec.run_id,
        model=state.spec.model,
        kind=training.SESSION_KIND_RUN,
        step=state.step,
        target_steps=state.spec.steps,
        version=state.version,
        sources=state.sources,
    )
    if state.last_step is not None:
        view.alarms.extend(_alarm(alarm) for alarm in alarms_of(state.last_step.metrics, limits))
        metrics = wire.metrics_to_wire(state.last_step.metrics, state.last_step.staleness)
        view.last_metrics.CopyFrom(metrics)
    return view
