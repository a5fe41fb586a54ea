"""The gate's state machine and its evidence in SQL. Every method is one transaction, events included."""

from datetime import datetime

from google.protobuf import json_format
from sqlalchemy import Connection, exists, func, select, update
from sqlalchemy.exc import IntegrityError

from checkpoint_registry import telemetry, wire
from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.events import caused_by
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.adapters.rows import evaluation_of, evaluation_values, job_of, job_values
from checkpoint_registry.adapters.sql_heads import lock_revision, move_head, read_checkpoint
from checkpoint_registry.adapters.sql_pairs import add_test
from checkpoint_registry.domain.evidence import Evaluation
from checkpoint_registry.domain.jobs import GATE_ACTOR, GateJob, JobPhase, Judgement
from checkpoint_registry.domain.models import Checkpoint, CheckpointState, HeadMove
from identities import events
from sql_store import Database, enqueue, owned


class SqlGateStore:
    """The state machine of candidates, and the evidence."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def models_with_open_jobs(self) -> list[str]:
        """Models that have a job which is not done."""
        phases = [phase.value for phase in JobPhase if phase is not JobPhase.DONE]  # by index: few are open
        query = select(tables.gate_job.c.model).where(tables.gate_job.c.phase.in_(phases)).distinct()
        return await self._db.run(lambda connection: list(connection.execute(query).scalars()))

    async def models_evaluated_since_promotion(self) -> list[str]:
        """Models of which the gate promoted head, and head was evaluated since."""
        model, move, evaluation = tables.model, tables.head_move, tables.evaluation.c
        last = owned(move, model=model.c.model, revision=model.c.head_revision, actor=GATE_ACTOR)
        promoted_at = select(move.c.moved_at).where(last).correlate(model).scalar_subquery()
        of_head = owned(tables.evaluation, checkpoint_id=model.c.head_checkpoint_id)
        since = exists().where(of_head, evaluation.finished_at > promoted_at).correlate(model)
        query = select(model.c.model).where(owned(model), since)
        return await self._db.run(lambda connection: list(connection.execute(query).scalars()))

    async def jobs(self, model: str, phase: JobPhase) -> list[GateJob]:
        """Oldest version first."""
        query = (
            select(tables.gate_job)
            .where(owned(tables.gate_job, model=model, phase=phase.value))
            .order_by(tables.gate_job.c.version)
        )
        return await self._db.run(
            lambda connection: [job_of(row) for row in connection.execute(query).mappings()]
        )

    async def job(self, checkpoint_id: str) -> GateJob | None:
        """None for a base or a checkpoint recorded without one."""
        return await self._db.run(lambda connection: _job(connection, checkpoint_id))

    async def newest_gate(self, model: str) -> GateJob | None:
        """The job of the newest checkpoint that a gate judged, or is to judge; None: there is none."""
        return (await self._db.run(lambda connection: newest_gates(connection, model))).get(model)

    async def save_job(self, job: GateJob, *, was: JobPhase) -> bool:
        """Move a job on; False: another replica did it first."""
        move = (
            update(tables.gate_job)
            .where(owned(tables.gate_job, checkpoint_id=job.checkpoint_id, phase=was.value))
            .values(**job_values(job))
        )
        return await self._db.run(lambda connection: connection.execute(move).rowcount == 1)

    async def start_job(self, checkpoint_id: str) -> bool:
        """QUEUED to RUNNING and the checkpoint to EVALUATING, unless another job of the model runs."""

        def work(connection: Connection) -> bool:
            queued = owned(tables.gate_job, checkpoint_id=checkpoint_id, phase=JobPhase.QUEUED.value)
            started = connection.execute(
                update(tables.gate_job)
                .where(queued)
                .values(phase=JobPhase.RUNNING.value, active_for_model=tables.gate_job.c.model)
            )
            if started.rowcount == 0:
                return False
            was = {"checkpoint_id": checkpoint_id, "state": CheckpointState.CANDIDATE.value}
            now = {"state": CheckpointState.EVALUATING.value}
            connection.execute(update(tables.checkpoint).where(owned(tables.checkpoint, **was)).values(now))
            return True

        try:
            return await self._db.run(work)
        except IntegrityError:
            # `active_for_model` is unique: another replica started a candidate of this model first.
            return False

    async def close_ungated(self, checkpoint_id: str, reason: str) -> None:
        """Job done, checkpoint stays a candidate."""

        def work(connection: Connection) -> None:
            _finish(connection, checkpoint_id)
            _change(connection, checkpoint_id, reason=reason)

        await self._db.run(work)

    async def hold(self, checkpoint_id: str, reason: str, at: datetime) -> None:
        """Job done, checkpoint held without a judgement, event."""

        def work(connection: Connection) -> GateJob | None:
            job = _job(connection, checkpoint_id)
            if job is None or not _finish(connection, checkpoint_id):
                return None
            with caused_by(job.traceparent, "hold checkpoint", checkpoint_id):
                _hold(connection, read_checkpoint(connection, checkpoint_id), reason, at)
            return job

        held = await self._db.run(work)
        if held is not None:
            telemetry.decided(held, "held", at)

    async def promote(self, judgement: Judgement, at: datetime) -> None:
        """Move head to the candidate that passed, with audit and events, in one transaction.

        Raises HeadMoved when head is not where it was judged against. sql_heads.move_head writes the move.
        """
        concluded = await self._db.run(lambda connection: _promote(connection, judgement, at))
        if concluded is not None:
            job, move = concluded
            telemetry.decided(job, "promoted", at)
            telemetry.head_moved(move, job.version)

    async def hold_judged(self, judgement: Judgement, at: datetime) -> None:
        """The candidate did not pass: it stays one, with audit and events. Raises HeadMoved, as `promote`."""
        job = await self._db.run(lambda connection: _hold_judged(connection, judgement, at))
        if job is not None:
            telemetry.decided(job, "held", at)

    async def await_review(self, judgement: Judgement, at: datetime) -> None:
        """The candidate passed and waits for people: held, with report and events, its level spent. The
        model's next candidate may begin. Raises HeadMoved, as `promote`."""
        await self._db.run(lambda connection: _await_review(connection, judgement, at))

    async def note_review(self, checkpoint_id: str, reason: str) -> None:
        """How many confirmations are there by now."""
        state = {"checkpoint_id": checkpoint_id, "state": CheckpointState.HELD.value}
        change = update(tables.checkpoint).where(owned(tables.checkpoint, **state)).values(reason=reason)
        await self._db.run(lambda connection: connection.execute(change))

    async def evaluations(
        self, checkpoint_id: str, taskset_digest: str, profile_key: str
    ) -> list[Evaluation]:
        """Evidence of one checkpoint that is comparable."""
        query = (
            select(tables.evaluation)
            .where(
                owned(
                    tables.evaluation,
                    checkpoint_id=checkpoint_id,
                    taskset_digest=taskset_digest,
                    profile_key=profile_key,
                )
            )
            .order_by(tables.evaluation.c.finished_at, tables.evaluation.c.run_id)
        )
        return await self._db.run(
            lambda connection: [evaluation_of(row) for row in connection.execute(query).mappings()]
        )

    async def has_evaluation(self, run_id: str) -> bool:
        """Whether the run's results are stored."""
        query = select(tables.evaluation.c.run_id).where(tables.evaluation.c.run_id == run_id)
        return await self._db.run(lambda connection: connection.execute(query).first() is not None)

    async def add_evaluation(self, evaluation: Evaluation) -> None:
        """Idempotent by run."""
        values = evaluation_values(evaluation)
        await self._db.run(lambda connection: insert_once(connection, tables.evaluation, values))


def newest_gates(connection: Connection, model: str | None) -> dict[str, GateJob]:
    """By model (None: of all), the job of the newest checkpoint that a gate judged, or is to judge."""
    jobs, name = tables.gate_job, tables.model.c.model
    one = {} if model is None else {"model": model}
    newest = (  # the end of an index, unless the newest checkpoints have no gate
        select(func.max(jobs.c.version))
        .where(owned(jobs, model=name), jobs.c.taskset_digest != "")
        .correlate(tables.model)
        .scalar_subquery()
    )
    query = select(jobs).join_from(tables.model, jobs, owned(jobs, model=name, version=newest))
    rows = connection.execute(query.where(owned(tables.model, **one))).mappings()
    return {row["model"]: job_of(row) for row in rows}


def _job(connection: Connection, checkpoint_id: str) -> GateJob | None:
    query = select(tables.gate_job).where(owned(tables.gate_job, checkpoint_id=checkpoint_id))
    row = connection.execute(query).mappings().first()
    return None if row is None else job_of(row)


def _change(connection: Connection, checkpoint_id: str, **values: str) -> None:
    mine = owned(tables.checkpoint, checkpoint_id=checkpoint_id)
    connection.execute(update(tables.checkpoint).where(mine).values(**values))


def _finish(connection: Connection, checkpoint_id: str, then: JobPhase = JobPhase.DONE) -> bool:
    """False: another replica finished the job before."""
    open_job = tables.gate_job.c.phase.not_in({JobPhase.DONE.value, then.value})
    finished = connection.execute(
        update(tables.gate_job)
        .where(owned(tables.gate_job, checkpoint_id=checkpoint_id), open_job)
        .values(phase=then.value, active_for_model=None)
    )
    return finished.rowcount == 1


def _promote(connection: Connection, judgement: Judgement, at: datetime) -> tuple[GateJob, HeadMove] | None:
    job = _concluded(connection, judgement)
    if job is None:
        return None
    candidate = read_checkpoint(connection, job.checkpoint_id)
    with caused_by(job.traceparent, "judge checkpoint", job.checkpoint_id):
        _emit_evaluated(connection, candidate, judgement, at)
        add_test(connection, job, at, promoted=True)
        move = HeadMove(candidate.model, 0, "", candidate.checkpoint_id, GATE_ACTOR, judgement.reason, at)
        return job, move_head(connection, candidate, revision=judgement.head_revision, move=move)


def _hold_judged(connection: Connection, judgement: Judgement, at: datetime) -> GateJob | None:
    job = _concluded(connection, judgement)
    if job is None:
        return None
    candidate = read_checkpoint(connection, job.checkpoint_id)
    with caused_by(job.traceparent, "judge checkpoint", job.checkpoint_id):
        _emit_evaluated(connection, candidate, judgement, at)
        if judgement.decision.attempts:  # else no look was had, which costs no level
            add_test(connection, job, at, promoted=False)
        _hold(connection, candidate, judgement.reason, at, judgement.decision.verdict.value)
    return job


def _await_review(connection: Connection, judgement: Judgement, at: datetime) -> None:
    job = _concluded(connection, judgement, JobPhase.REVIEW)
    if job is None:
        return
    candidate = read_checkpoint(connection, job.checkpoint_id)
    with caused_by(job.traceparent, "judge checkpoint", job.checkpoint_id):
        _emit_evaluated(connection, candidate, judgement, at)
        add_test(connection, job, at, promoted=False)
        _hold(connection, candidate, judgement.reason, at, judgement.decision.verdict.value)


def _concluded(
    connection: Connection, judgement: Judgement, then: JobPhase = JobPhase.DONE
) -> GateJob | None:
    """Move the job on and keep its report. None: another replica did it before. Raises HeadMoved."""
    job = _job(connection, judgement.candidate_checkpoint_id)
    if job is None or job.phase is JobPhase.DONE:
        return None
    lock_revision(connection, job.model, judgement.head_revision)
    if not _finish(connection, job.checkpoint_id, then):
        return None
    report = json_format.MessageToJson(wire.report_to_wire(judgement), indent=None)
    _change(connection, job.checkpoint_id, gate_json=report)
    return job


def _emit_evaluated(
    connection: Connection, candidate: Checkpoint, judgement: Judgement, at: datetime
) -> None:
    event_id = events.of_checkpoint("evaluated", candidate.checkpoint_id)
    enqueue(connection, wire.evaluated(candidate, judgement, at), model=candidate.model, event_id=event_id)


def _hold(
    connection: Connection, checkpoint: Checkpoint, reason: str, at: datetime, verdict: str = ""
) -> None:
    """A checkpoint that a person promoted meanwhile keeps its state."""
    if checkpoint.state is CheckpointState.PROMOTED:
        return
    _change(connection, checkpoint.checkpoint_id, state=CheckpointState.HELD.value, reason=reason)
    enqueue(
        connection,
        wire.held(checkpoint, reason, at, verdict),
        model=checkpoint.model,
        event_id=events.of_checkpoint("held", checkpoint.checkpoint_id),
    )
