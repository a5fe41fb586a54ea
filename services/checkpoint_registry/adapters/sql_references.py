"""Which runs the registry's rows refer to: lineages of checkpoints, and evidence of gates."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, exists, select, text

from checkpoint_registry.adapters import tables
from checkpoint_registry.domain.jobs import JobPhase
from identities.entities import interactive_run_id
from retention import Reference
from sql_store import Database, owned

_CHUNK: Final = 500
_EVIDENCE: Final = "evidence of a gate"
_LINEAGE: Final = "lineage of a checkpoint"
# This very text: SQLite takes a partial index only for the condition it was made with.
_IS_INTERACTIVE: Final = text(f"run_id LIKE '{interactive_run_id('%')}'")
_STRANGER: Final = "of a model that the registry does not know"


class SqlReferences:
    """Each answer is one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def to_runs(self, runs: Mapping[str, str]) -> list[Reference]:
        """Of these runs, by id with their models. Raises Unavailable."""
        return await self._db.read(lambda connection: _references(connection, runs))


def _references(connection: Connection, runs: Mapping[str, str]) -> list[Reference]:
    run_ids = list(runs)
    found = _strangers(connection, runs) + _sources(connection, set(run_ids))
    for start in range(0, len(run_ids), _CHUNK):
        some = run_ids[start : start + _CHUNK]
        found += _lineages(connection, some) + _evidence(connection, some) + _requests(connection, some)
    return found


def _strangers(connection: Connection, runs: Mapping[str, str]) -> list[Reference]:
    """Runs of models that are not here. A model is never deleted, so this database is new, or an old one."""
    named = {model for model in runs.values() if model}
    query = select(tables.model.c.model).where(owned(tables.model), tables.model.c.model.in_(named))
    strange = named - set(connection.execute(query).scalars())
    return [Reference(run_id, _STRANGER) for run_id, model in runs.items() if model in strange]


def _lineages(connection: Connection, run_ids: Sequence[str]) -> list[Reference]:
    """Runs whose steps are in a checkpoint: of each, what it trained on."""
    columns = tables.checkpoint.c
    query = select(columns.run_id).where(owned(tables.checkpoint), columns.run_id.in_(run_ids)).distinct()
    return [Reference(run_id, _LINEAGE, only_trained=True) for run_id in connection.execute(query).scalars()]


def _sources(connection: Connection, run_ids: set[str]) -> list[Reference]:
    """Runs that interactive training drew from. The ledger does not know which of their episodes trained."""
    columns = tables.checkpoint.c
    query = select(columns.sources).where(owned(tables.checkpoint), _IS_INTERACTIVE)
    named = {run_id for sources in connection.execute(query).scalars() for run_id in sources or {}}
    return [Reference(run_id, _LINEAGE) for run_id in sorted(named & run_ids)]


def _evidence(connection: Connection, run_ids: Sequence[str]) -> list[Reference]:
    """Evaluations on a taskset that a gate judges by: those that it judged by, and those that it may."""
    columns, jobs = tables.evaluation.c, tables.gate_job.c
    judges = exists().where(owned(tables.gate_job, taskset_digest=columns.taskset_digest))
    # Which taskset a new job judges by is not read yet: it may be any on which its model was evaluated.
    mine = owned(tables.checkpoint, checkpoint_id=columns.checkpoint_id, model=jobs.model)
    waits = exists().where(mine, owned(tables.gate_job, phase=JobPhase.NEW.value))
    query = select(columns.run_id).where(
        owned(tables.evaluation), columns.run_id.in_(run_ids), judges | waits
    )
    return [Reference(run_id, _EVIDENCE) for run_id in connection.execute(query).scalars()]


def _requests(connection: Connection, run_ids: Sequence[str]) -> list[Reference]:
    """Runs that a gate asked for, whatever became of them, and those of the watches of today's heads: their
    stored pairs are enough for an earlier one. The gate of 0.3.0 kept a table of its own."""
    head, watch = tables.model.c, tables.watch_run.c
    of_head = (head.model == watch.model) & (head.head_revision == watch.head_revision)
    rows = tables.watch_run.join(tables.model, of_head & owned(tables.model))
    watches = select(watch.run_id).select_from(rows).where(owned(tables.watch_run), watch.run_id.in_(run_ids))
    found: list[str] = list(connection.execute(watches).scalars())
    for table in (tables.pair_run, tables.evaluation_request):
        query = select(table.c.run_id).where(owned(table), table.c.run_id.in_(run_ids))
        found += connection.execute(query).scalars()
    return [Reference(run_id, _EVIDENCE) for run_id in dict.fromkeys(found)]
