"""The gate's state machine and its evidence in SQL. Every method is one transaction, events included."""

from datetime import datetime

from google.protobuf import json_format
from sqlalchemy import Connection, select, update
from sqlalchemy.exc import IntegrityError

from checkpoint_registry import wire
from checkpoint_registry.adapters import metrics, tables
from checkpoint_registry.adapters.events import caused_by, emit
from checkpoint_registry.adapters.once import insert_once
from checkpoint_registry.adapters.rows import (
    evaluation_of,
    evaluation_values,
    job_of,
    job_values,
    request_of,
    request_values,
)
from checkpoint_registry.adapters.sql_heads import move_head, read_checkpoint
from checkpoint_registry.domain.errors import HeadMoved, UnknownModel
from checkpoint_registry.domain.evidence import Evaluation
from checkpoint_registry.domain.jobs import (
    GATE_ACTOR,
    EvaluationRequest,
    GateJob,
    JobPhase,
    Judgement,
    RequestState,
)
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, HeadMove
from identities import events
from sql_store import Database


class SqlGateStore:
    """ports.GateStore."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def models_with_open_jobs(self) -> list[str]:
        """See the port."""
        query = (
            select(tables.gate_job.c.model).where(tables.gate_job.c.phase != JobPhase.DONE.value).distinct()
        )
        return await self._db.run(lambda connection: list(connection.execute(query).scalars()))

    async def jobs(self, model: str, phase: JobPhase) -> list[GateJob]:
        """See the port."""
        query = (
            select(tables.gate_job)
            .where(tables.gate_job.c.model == model, tables.gate_job.c.phase == phase.value)
            .order_by(tables.gate_job.c.version)
        )
        return await self._db.run(
            lambda connection: [job_of(row) for row in connection.execute(query).mappings()]
        )

    async def job(self, checkpoint_id: str) -> GateJob | None:
        """See the port."""
        return await self._db.run(lambda connection: _job(connection, checkpoint_id))

    async def save_job(self, job: GateJob, *, was: JobPhase) -> bool:
        """See the port."""
        move = (
            update(tables.gate_job)
            .where(tables.gate_job.c.checkpoint_id == job.checkpoint_id, tables.gate_job.c.phase == was.value)
            .values(**job_values(job))
        )
        return await self._db.run(lambda connection: connection.execute(move).rowcount == 1)

    async def start_job(self, checkpoint_id: str) -> bool:
        """See the port."""

        def work(connection: Connection) -> bool:
            mine = tables.gate_job.c.checkpoint_id == checkpoint_id
            started = connection.execute(
                update(tables.gate_job)
                .where(mine, tables.gate_job.c.phase == JobPhase.QUEUED.value)
                .values(phase=JobPhase.RUNNING.value, slot=tables.gate_job.c.model)
            )
            if started.rowcount == 0:
                return False
            connection.execute(
                update(tables.checkpoint)
                .where(
                    tables.checkpoint.c.checkpoint_id == checkpoint_id,
                    tables.checkpoint.c.state == CheckpointState.CANDIDATE.value,
                )
                .values(state=CheckpointState.EVALUATING.value)
            )
            return True

        try:
            return await self._db.run(work)
        except IntegrityError:
            # The unique slot is taken: another replica started a candidate of this model first.
            return False

    async def close_ungated(self, checkpoint_id: str, reason: str) -> None:
        """See the port."""

        def work(connection: Connection) -> None:
            _finish(connection, checkpoint_id)
            connection.execute(
                update(tables.checkpoint)
                .where(tables.checkpoint.c.checkpoint_id == checkpoint_id)
                .values(reason=reason)
            )

        await self._db.run(work)

    async def hold(self, checkpoint_id: str, reason: str, at: datetime) -> None:
        """See the port."""

        def work(connection: Connection) -> GateJob | None:
            job = _job(connection, checkpoint_id)
            if job is None or not _finish(connection, checkpoint_id):
                return None
            with caused_by(job.traceparent, "hold checkpoint", checkpoint_id):
                _hold(connection, read_checkpoint(connection, checkpoint_id), reason, at)
            return job

        held = await self._db.run(work)
        if held is not None:
            metrics.decided(held, "held", at)

    async def conclude(self, judgement: Judgement, at: datetime) -> None:
        """See the port."""
        concluded = await self._db.run(lambda connection: _conclude(connection, judgement, at))
        if concluded is None:
            return
        job, move = concluded
        metrics.decided(job, "promoted" if judgement.verdict.passed else "held", at)
        if move is not None:
            metrics.head_moved(move, job.version)

    async def evaluations(
        self, checkpoint_id: str, taskset_digest: str, profile_key: str
    ) -> list[Evaluation]:
        """See the port."""
        query = (
            select(tables.evaluation)
            .where(
                tables.evaluation.c.checkpoint_id == checkpoint_id,
                tables.evaluation.c.taskset_digest == taskset_digest,
                tables.evaluation.c.profile_key == profile_key,
            )
            .order_by(tables.evaluation.c.finished_at, tables.evaluation.c.run_id)
        )
        return await self._db.run(
            lambda connection: [evaluation_of(row) for row in connection.execute(query).mappings()]
        )

    async def has_evaluation(self, run_id: str) -> bool:
        """See the port."""
        query = select(tables.evaluation.c.run_id).where(tables.evaluation.c.run_id == run_id)
        return await self._db.run(lambda connection: connection.execute(query).first() is not None)

    async def add_evaluation(self, evaluation: Evaluation) -> None:
        """See the port."""

        def work(connection: Connection) -> None:
            insert_once(connection, tables.evaluation, evaluation_values(evaluation))
            _close_request(connection, evaluation.run_id, RequestState.FINISHED, "", evaluation.finished_at)

        await self._db.run(work)

    async def requests(
        self, checkpoint_id: str, taskset_digest: str, profile_key: str
    ) -> list[EvaluationRequest]:
        """See the port."""
        query = (
            select(tables.evaluation_request)
            .where(
                tables.evaluation_request.c.checkpoint_id == checkpoint_id,
                tables.evaluation_request.c.taskset_digest == taskset_digest,
                tables.evaluation_request.c.profile_key == profile_key,
            )
            .order_by(tables.evaluation_request.c.attempt)
        )
        return await self._db.run(
            lambda connection: [request_of(row) for row in connection.execute(query).mappings()]
        )

    async def add_request(self, request: EvaluationRequest) -> None:
        """See the port."""
        await self._db.run(
            lambda connection: insert_once(connection, tables.evaluation_request, request_values(request))
        )

    async def close_request(self, run_id: str, state: RequestState, detail: str, at: datetime) -> None:
        """See the port."""
        await self._db.run(lambda connection: _close_request(connection, run_id, state, detail, at))


def _job(connection: Connection, checkpoint_id: str) -> GateJob | None:
    query = select(tables.gate_job).where(tables.gate_job.c.checkpoint_id == checkpoint_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else job_of(row)


def _finish(connection: Connection, checkpoint_id: str) -> bool:
    """False: another replica finished the job before."""
    open_job = tables.gate_job.c.phase != JobPhase.DONE.value
    finished = connection.execute(
        update(tables.gate_job)
        .where(tables.gate_job.c.checkpoint_id == checkpoint_id, open_job)
        .values(phase=JobPhase.DONE.value, slot=None)
    )
    return finished.rowcount == 1


def _close_request(
    connection: Connection, run_id: str, state: RequestState, detail: str, at: datetime
) -> None:
    connection.execute(
        update(tables.evaluation_request)
        .where(
            tables.evaluation_request.c.run_id == run_id,
            tables.evaluation_request.c.state == RequestState.SUBMITTED.value,
        )
        .values(state=state.value, detail=detail, updated_at=at)
    )


def _conclude(
    connection: Connection, judgement: Judgement, at: datetime
) -> tuple[GateJob, HeadMove | None] | None:
    """None: another replica concluded it before."""
    candidate = read_checkpoint(connection, judgement.candidate_checkpoint_id)
    job = _job(connection, candidate.checkpoint_id)
    if job is None or job.phase is JobPhase.DONE:
        return None
    _require_revision(connection, candidate.model, judgement.head_revision)
    if not _finish(connection, candidate.checkpoint_id):
        return None
    report = json_format.MessageToJson(wire.report_to_wire(judgement), indent=None)
    connection.execute(
        update(tables.checkpoint)
        .where(tables.checkpoint.c.checkpoint_id == candidate.checkpoint_id)
        .values(gate_json=report)
    )
    with caused_by(job.traceparent, "judge checkpoint", candidate.checkpoint_id):
        return job, _announce(connection, candidate, judgement, at)


def _announce(
    connection: Connection, candidate: Checkpoint, judgement: Judgement, at: datetime
) -> HeadMove | None:
    emit(
        connection,
        wire.evaluated(candidate, judgement, at),
        model=candidate.model,
        event_id=events.of_checkpoint("evaluated", candidate.checkpoint_id),
    )
    reason = judgement.verdict.reason
    if not judgement.verdict.passed:
        _hold(connection, candidate, reason, at)
        return None
    move = HeadMove(candidate.model, 0, "", candidate.checkpoint_id, GATE_ACTOR, reason, at)
    return move_head(connection, candidate, revision=judgement.head_revision, move=move)


def _require_revision(connection: Connection, model: str, revision: int) -> None:
    """A verdict, also a negative one, is only worth something against the head that it was made against."""
    query = select(tables.model.c.head_revision).where(tables.model.c.model == model).with_for_update()
    actual = connection.execute(query).scalar()
    if actual is None:
        raise UnknownModel(model)
    if actual != revision:
        raise HeadMoved(model, revision, actual)


def _hold(connection: Connection, checkpoint: Checkpoint, reason: str, at: datetime) -> None:
    """A checkpoint that a person promoted meanwhile keeps its state."""
    if checkpoint.state is CheckpointState.PROMOTED:
        return
    connection.execute(
        update(tables.checkpoint)
        .where(tables.checkpoint.c.checkpoint_id == checkpoint.checkpoint_id)
        .values(state=CheckpointState.HELD.value, reason=reason)
    )
    emit(
        connection,
        wire.held(checkpoint, reason, at),
        model=checkpoint.model,
        event_id=events.of_checkpoint("held", checkpoint.checkpoint_id),
    )
