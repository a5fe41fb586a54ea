"""Sessions as TrainingService shows them."""

from __future__ import annotations

from typing import Final

from grpo_trainer import wire
from grpo_trainer.domain.alarms import Alarm, alarms_of
from grpo_trainer.domain.errors import UnknownSession
from grpo_trainer.domain.states import SessionState
from grpo_trainer.usecases.session import Phase, TrainingSession
from grpo_trainer.usecases.sessions import Sessions
from upcycle.api.training.v1 import training_pb2 as training

_STATES: Final = {
    Phase.OPENING: training.SESSION_STATE_WAITING,
    Phase.WAITING: training.SESSION_STATE_WAITING,
    Phase.STEPPING: training.SESSION_STATE_STEPPING,
    Phase.PUBLISHING: training.SESSION_STATE_PUBLISHING,
    Phase.FINISHED: training.SESSION_STATE_FINISHED,
    Phase.FAILED: training.SESSION_STATE_FAILED,
}
FINAL: Final = (training.SESSION_STATE_FINISHED, training.SESSION_STATE_FAILED)
"""States after which nothing comes."""


def find(sessions: Sessions, run_id: str) -> training.TrainingSession:
    """The session of a run. Raises UnknownSession."""
    for view in every(sessions):
        if view.run_id == run_id:
            return view
    raise UnknownSession(f"no training session for run {run_id!r}; `ListSessions` names those that exist")


def steps(sessions: Sessions, run_id: str, count: int) -> list[training.StepPoint]:
    """What the newest `count` steps of a session of this process measured, oldest first."""
    try:
        history = list(sessions.get(run_id).history)
    except UnknownSession:
        return []
    return [
        training.StepPoint(
            step=record.step,
            version=record.version,
            metrics=wire.metrics_to_wire(record.metrics, record.staleness),
        )
        for record in history[max(0, len(history) - count) :]
    ]


def every(sessions: Sessions) -> list[training.TrainingSession]:
    """All sessions: of earlier processes, of this one, and those that were refused."""
    refused = [
        training.TrainingSession(run_id=run_id, state=training.SESSION_STATE_FAILED, failure=why)
        for run_id, why in sessions.refused.items()
    ]
    return [*map(_past, sessions.past), *map(_present, sessions.all), *refused]


def _past(state: SessionState) -> training.TrainingSession:
    view = _described(state)
    view.state = training.SESSION_STATE_FINISHED
    view.settled.update(state.settled_counts)
    return view


def _present(session: TrainingSession) -> training.TrainingSession:
    spec = session.spec
    if session.state is None:
        view = training.TrainingSession(run_id=spec.run_id, model=spec.model, target_steps=spec.steps)
    else:
        view = _described(session.state)
    view.state = _STATES[session.phase]
    view.groups_ready = session.intake.cutter.num_ready
    view.groups_open = session.intake.assembler.num_open
    view.settled.update(session.intake.counts)
    view.failure = session.failure
    view.stopping = session.intake.stopping
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


def _described(state: SessionState) -> training.TrainingSession:
    view = training.TrainingSession(
        run_id=state.spec.run_id,
        model=state.spec.model,
        step=state.step,
        target_steps=state.spec.steps,
        version=state.version,
    )
    if state.last_step is not None:
        view.alarms.extend(_alarm(alarm) for alarm in alarms_of(state.last_step.metrics))
        metrics = wire.metrics_to_wire(state.last_step.metrics, state.last_step.staleness)
        view.last_metrics.CopyFrom(metrics)
    return view
