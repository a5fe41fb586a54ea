"""Rows of the plan's tables as domain objects, and what of them changes as columns."""

import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from episodes import Split
from scenario_runner.adapters import plan_statements as statements
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, RunRecord, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.wire import runs as wire


def episode_of(row: Any) -> EpisodeRow:
    """One row of `episode`."""
    return EpisodeRow(**{**row._mapping, "state": EpisodeState(row.state), "split": Split(row.split)})


def slots_of(value: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """A frozen dataclass as columns, these or all; enums by their values."""
    found = {name: getattr(value, name) for name in names or value.__slots__}
    return {name: one.value if isinstance(one, Enum) else one for name, one in found.items()}


def taskset_of(row: Any) -> RegisteredTaskset:
    """Without its tasks."""
    return RegisteredTaskset(
        name=row["name"],
        digest=row["digest"],
        split=Split(row["split"]),
        source=wire.source_from_json(row["source"]),
        num_tasks=row["num_tasks"],
        revision=row["revision"],
    )


def task_of(row: Any) -> RunnableTask:
    """One row of `task`."""
    return RunnableTask(*(row[name] for name in RunnableTask.__slots__))


def run_of(row: Any) -> RunRecord:
    """One row of `run`."""
    names = ("run_id", "request_id", "submitted_at", "source_digest", "trace_id", "tenant")
    progress = {name: row[name] for name in statements.RUN_PROGRESS}
    progress["state"] = RunState(row["state"])
    progress["ending"] = RunState(row["ending"]) if row["ending"] else None
    return RunRecord(
        **{name: row[name] for name in names},
        **progress,
        spec=wire.spec_from_json(row["spec"]),
        split=Split(row["split"]),
        trace=json.loads(row["trace"]),
    )
