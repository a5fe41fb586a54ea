"""What candidates and heads did side by side, and the levels at which candidates were judged, in SQL."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update

from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.domain.jobs import GateJob, JobPhase, RequestState
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.pairs import PairRun
from sql_store import Database, owned
from upcycle.gate.outcomes import TaskOutcomes

_NEWEST_HEADS = 200


class SqlPairStore:
    """Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def of_judgement(self, checkpoint_id: str, head_revision: int) -> list[PairRun]:
        """Runs of a candidate against the head of this revision, first one first."""
        mine = owned(tables.pair_run, checkpoint_id=checkpoint_id, head_revision=head_revision)
        return await self._runs(select(tables.pair_run).where(mine).order_by(tables.pair_run.c.number))

    async def of_run(self, run_id: str) -> PairRun | None:
        """None for a run that is no pair of a gate."""
        found = await self._runs(select(tables.pair_run).where(owned(tables.pair_run, run_id=run_id)))
        return found[0] if found else None

    async def of_heads(self, model: str, taskset_digest: str, profile_key: str) -> list[PairRun]:
        """The newest finished runs of a model, oldest first: what each of its heads did as head."""
        rows = tables.pair_run
        comparable = owned(
            rows,
            model=model,
            taskset_digest=taskset_digest,
            profile_key=profile_key,
            state=RequestState.FINISHED.value,
        )
        newest = select(rows).where(comparable).order_by(rows.c.updated_at.desc()).limit(_NEWEST_HEADS)
        return list(reversed(await self._runs(newest)))

    async def add(self, pair: PairRun) -> None:
        """Idempotent by request_id."""
        await self._db.run(lambda connection: insert_once(connection, tables.pair_run, _values(pair)))

    async def finish(
        self, run_id: str, outcomes: dict[str, TaskOutcomes], source_digest: str, at: datetime
    ) -> None:
        """Its results, once."""
        stored = {task: [one.family, list(one.candidate), list(one.head)] for task, one in outcomes.items()}
        state = RequestState.FINISHED.value
        values = {"outcomes": stored, "source_digest": source_digest, "state": state, "updated_at": at}
        await self._db.run(lambda connection: _change_open(connection, run_id, values))

    async def give_up(self, run_id: str, detail: str, at: datetime) -> None:
        """It brings no results, for this reason."""
        values = {"state": RequestState.FAILED.value, "detail": detail, "updated_at": at}
        await self._db.run(lambda connection: _change_open(connection, run_id, values))

    async def tests(self, run_id: str) -> list[bool]:
        """Candidates of a training run that were judged at a level, in order: whether each was promoted."""
        rows = tables.gate_test
        order = rows.c.tested_at, rows.c.checkpoint_id, rows.c.head_revision
        query = select(rows.c.promoted).where(owned(rows, run_id=run_id)).order_by(*order)
        return await self._db.run(
            lambda connection: [bool(one) for one in connection.execute(query).scalars()]
        )

    async def begin(self, before: GateJob, now: GateJob, at: datetime, *, was_tested: bool) -> None:
        """A running job is judged from now on as `now` says: at this level, against this head. was_tested:
        its attempts against the head before were looked at, which cost a level."""

        def work(connection: Connection) -> None:
            if was_tested:
                add_test(connection, before, at, promoted=False)
            mine = owned(tables.gate_job, checkpoint_id=now.checkpoint_id, phase=JobPhase.RUNNING.value)
            values = {name: getattr(now, name) for name in ("level", "head_checkpoint_id", "head_revision")}
            connection.execute(update(tables.gate_job).where(mine).values(values))

        await self._db.run(work)

    async def note(self, checkpoint_id: str, text: str) -> None:
        """How far the evaluation of a candidate is, for people."""
        state = CheckpointState.EVALUATING.value
        mine = owned(tables.checkpoint, checkpoint_id=checkpoint_id, state=state)
        change = update(tables.checkpoint).where(mine).values(reason=text)
        await self._db.run(lambda connection: connection.execute(change))

    async def _runs(self, query: Any) -> list[PairRun]:
        return await self._db.run(
            lambda connection: [_pair_of(row) for row in connection.execute(query).mappings()]
        )


def add_test(connection: Connection, job: GateJob, at: datetime, *, promoted: bool) -> None:
    """A candidate was judged at its level, once against each head. promoted: also later, of one that passed
    and waited for people."""
    values = {
        "run_id": job.run_id,
        "checkpoint_id": job.checkpoint_id,
        "head_revision": job.head_revision,
        "level": job.level,
        "promoted": int(promoted),
        "tested_at": at,
    }
    if not insert_once(connection, tables.gate_test, values) and promoted:
        key = {name: values[name] for name in ("run_id", "checkpoint_id", "head_revision")}
        mine = owned(tables.gate_test, **key)
        connection.execute(update(tables.gate_test).where(mine).values(promoted=1))


def _change_open(connection: Connection, run_id: str, values: dict[str, Any]) -> None:
    still_open = owned(tables.pair_run, run_id=run_id, state=RequestState.SUBMITTED.value)
    connection.execute(update(tables.pair_run).where(still_open).values(values))


def _values(pair: PairRun) -> dict[str, Any]:
    values = {**asdict(pair), "state": pair.state.value, "families": list(pair.families)}
    return values | {"outcomes": {}}


def _pair_of(row: RowMapping) -> PairRun:
    values = {name: row[name] for name in PairRun.__slots__}
    outcomes = {task: _task_of(task, *stored) for task, stored in (row["outcomes"] or {}).items()}
    return PairRun(
        **{
            **values,
            "families": tuple(row["families"]),
            "state": RequestState(row["state"]),
            "outcomes": outcomes,
        }
    )


def _task_of(
    task: str, family: str, candidate: Sequence[int | None], head: Sequence[int | None]
) -> TaskOutcomes:
    return TaskOutcomes(task, family, tuple(candidate), tuple(head))
