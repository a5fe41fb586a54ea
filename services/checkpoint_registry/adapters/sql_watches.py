"""What heads and their predecessors did side by side since heads moved, in SQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import RowMapping, exists, func, select, update

from checkpoint_registry.adapters import tables
from checkpoint_registry.adapters.inserts import insert_once
from checkpoint_registry.adapters.sql_gate import newest_gates
from checkpoint_registry.domain.jobs import GateJob, JobPhase, RequestState
from checkpoint_registry.domain.watches import WatchRun
from sql_store import Database, owned
from upcycle.gate.watch import Pair, Play, Trigger


class SqlWatchStore:
    """Every method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def watched_models(self) -> list[str]:
        """Models with a gate whose head was moved: by a gate, or by a person."""
        model, jobs = tables.model.c, tables.gate_job.c
        has_gate = exists().where(owned(tables.gate_job, model=model.model), jobs.taskset_digest != "")
        query = select(model.model).where(owned(tables.model), model.head_revision > 1, has_gate)
        return await self._db.run(lambda connection: list(connection.execute(query).scalars()))

    async def gate_of(self, model: str) -> GateJob | None:
        """The job of the newest checkpoint that a gate judged, or is to judge; None: there is none."""
        return (await self._db.run(lambda connection: newest_gates(connection, model))).get(model)

    async def has_candidates(self, model: str) -> bool:
        """Whether a candidate of the model waits for its gate, or is in it. One that waits for people
        holds up no watch."""
        phases = [phase.value for phase in (JobPhase.NEW, JobPhase.QUEUED, JobPhase.RUNNING)]
        mine = owned(tables.gate_job, model=model), tables.gate_job.c.phase.in_(phases)
        query = select(tables.gate_job.c.checkpoint_id).where(*mine).limit(1)
        return await self._db.run(lambda connection: connection.execute(query).first() is not None)

    async def runs(self, model: str, head_revision: int) -> list[WatchRun]:
        """Of the head of this revision, first one first."""
        mine = owned(tables.watch_run, model=model, head_revision=head_revision)
        return await self._runs(select(tables.watch_run).where(mine).order_by(tables.watch_run.c.number))

    async def open_before(self, model: str, head_revision: int) -> list[WatchRun]:
        """Runs of earlier heads that have not ended."""
        rows = tables.watch_run
        mine = owned(rows, model=model, state=RequestState.SUBMITTED.value)
        return await self._runs(select(rows).where(mine, rows.c.head_revision < head_revision))

    async def of_run(self, run_id: str) -> WatchRun | None:
        """None for a run that is of no watch."""
        found = await self._runs(select(tables.watch_run).where(owned(tables.watch_run, run_id=run_id)))
        return found[0] if found else None

    async def add(self, run: WatchRun) -> None:
        """Idempotent by request_id."""
        names = ["request_id", "model", "head_revision", "number", "run_id", "detail", "updated_at"]
        values = {name: getattr(run, name) for name in names}
        values |= {"state": run.state.value, "pairs": [], "engine_s": 0.0, "beside": " ".join(run.beside)}
        values |= {"source_digest": run.source_digest}
        await self._db.run(lambda connection: insert_once(connection, tables.watch_run, values))

    async def finish(
        self, run_id: str, pairs: Sequence[Pair], engine_s: float, at: datetime, *, source_digest: str = ""
    ) -> None:
        """Its results, once. engine_s: seconds of engines that they took. source_digest: of the code that
        judged them."""
        stored = [[pair.family, _stored(pair.head), _stored(pair.predecessor)] for pair in pairs]
        state = RequestState.FINISHED.value
        values = {"state": state, "pairs": stored, "engine_s": engine_s, "updated_at": at}
        await self._close(run_id, values | {"source_digest": source_digest})

    async def engine_s(self, model: str, since: datetime) -> float:
        """That the runs of a model's watches took which ended since."""
        rows = tables.watch_run
        mine = owned(rows, model=model), rows.c.updated_at >= since
        query = select(func.coalesce(func.sum(rows.c.engine_s), 0.0)).where(*mine)
        return await self._db.run(lambda connection: float(connection.execute(query).scalar_one()))

    async def note_alarms(self, run_id: str, said: str) -> None:
        """Of a finished run: the open alarms about it, which come and go."""
        finished = owned(tables.watch_run, run_id=run_id, state=RequestState.FINISHED.value)
        change = update(tables.watch_run).where(finished).values(detail=said)
        await self._db.run(lambda connection: connection.execute(change))

    async def give_up(self, run_id: str, detail: str, at: datetime, *, engine_s: float = 0.0) -> None:
        """It brings no results, for this reason. engine_s: seconds of engines that it took all the same."""
        values = {"state": RequestState.FAILED.value, "detail": detail, "engine_s": engine_s}
        await self._close(run_id, values | {"updated_at": at})

    async def _close(self, run_id: str, values: dict[str, Any]) -> None:
        still_open = owned(tables.watch_run, run_id=run_id, state=RequestState.SUBMITTED.value)
        change = update(tables.watch_run).where(still_open).values(values)
        await self._db.run(lambda connection: connection.execute(change))

    async def _runs(self, query: Any) -> list[WatchRun]:
        return await self._db.run(
            lambda connection: [_run_of(row) for row in connection.execute(query).mappings()]
        )


def _stored(play: Play) -> list[Any]:
    return [int(play.success), sorted(trigger.value for trigger in play.triggers)]


def _play_of(success: int, triggers: Sequence[str]) -> Play:
    return Play(bool(success), frozenset(map(Trigger, triggers)))


def _run_of(row: RowMapping) -> WatchRun:
    pairs = tuple(
        Pair(family, _play_of(*head), _play_of(*predecessor)) for family, head, predecessor in row["pairs"]
    )
    names = ["request_id", "model", "head_revision", "number", "run_id", "detail", "updated_at"]
    names += ["source_digest"]
    beside = tuple(row["beside"].split())
    values = {name: row[name] for name in names}
    return WatchRun(**values, state=RequestState(row["state"]), pairs=pairs, beside=beside)
