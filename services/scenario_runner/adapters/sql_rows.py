"""Rows of the plan's tables as domain objects, and what of them changes as columns."""

import json
from typing import Any

from episodes import Split
from scenario_runner.adapters import plan_statements as statements
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, GroupRow, RunRecord, RunState
from scenario_runner.domain.tasksets import RegisteredTaskset, RunnableTask
from scenario_runner.wire import runs as wire


def episode_of(row: Any) -> EpisodeRow:
    """One row of `episode`."""
    return EpisodeRow(**{**row._mapping, "state": EpisodeState(row.state), "split": Split(row.split)})


def episode_progress(row: EpisodeRow) -> dict[str, Any]:
    """What changes of an episode, for WRITE_EPISODE."""
    progress = {name: getattr(row, name) for name in statements.EPISODE_PROGRESS}
    return {**progress, "state": row.state.value, "episode_id_": row.episode_id}


def group_progress(group: GroupRow) -> dict[str, Any]:
    """What changes of a group, for WRITE_GROUP."""
    progress = {name: getattr(group, name) for name in statements.GROUP_PROGRESS}
    return {**progress, "group_id_": group.group_id}


def slots_of(value: Any) -> dict[str, Any]:
    """A frozen dataclass as columns."""
    return {name: getattr(value, name) for name in value.__slots__}


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


def run_progress(run: RunRecord) -> dict[str, Any]:
    """What changes of a run, for WRITE_RUN."""
    progress = {name: getattr(run, name) for name in statements.RUN_PROGRESS}
    return {**progress, "state": run.state.value, "ending": run.ending.value if run.ending else None}


def run_of(row: Any) -> RunRecord:
    """One row of `run`."""
    names = ("run_id", "request_id", "submitted_at", "trace_id", "tenant")
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
