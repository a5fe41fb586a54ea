"""The plan in SQL: one PlanUnit per transaction, its announcements in the outbox of the same transaction."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from google.protobuf.message import Message
from opentelemetry import context, propagate

from scenario_runner import events, wire
from scenario_runner.adapters.tables import EPISODE, GROUP, RUN, TASK, TASKSET
from scenario_runner.domain.environments import EnvironmentSource
from scenario_runner.domain.explain import PlanWaits
from scenario_runner.domain.runs import (
    FINAL_RUN_STATES,
    UNSETTLED,
    Counts,
    EpisodeRow,
    EpisodeState,
    Graded,
    GroupRow,
    Purpose,
    RegisteredTaskset,
    RunnableTask,
    RunRecord,
    RunState,
    Split,
)
from scenario_runner.ports import PlanUnit
from sql_store import Database, UtcDateTime, enqueue, enqueue_command

T = TypeVar("T")

POOLS = {Purpose.TRAIN: "train", Purpose.EVAL: "eval"}
_CHUNK = 500  # SQLite binds at most 32,766 values in one statement


class SqlPlan:
    """Implements Plan."""

    def __init__(self, database: Database, *, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def transact(self, work: Callable[[PlanUnit], T]) -> T:
        """See Plan."""
        return await self._database.run(lambda connection: work(SqlPlanUnit(connection, self._now())))


class SqlPlanUnit:
    """Implements PlanUnit on one connection."""

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        self._sql = connection
        self.now = now

    def taskset(self, name: str) -> RegisteredTaskset | None:
        row = self._sql.execute(sa.select(TASKSET).where(TASKSET.c.name == name)).mappings().first()
        return _taskset(row) if row else None

    def tasksets(self) -> list[RegisteredTaskset]:
        rows = self._sql.execute(sa.select(TASKSET).order_by(TASKSET.c.name)).mappings()
        return [_taskset(row) for row in rows]

    def add_taskset(self, taskset: RegisteredTaskset) -> None:
        self._sql.execute(
            sa.insert(TASKSET).values(
                name=taskset.name,
                digest=taskset.digest,
                split=taskset.split.value,
                source=wire.source_to_json(taskset.source),
                num_tasks=taskset.num_tasks,
                registered_at=self.now,
            )
        )
        rows = [
            {"taskset": taskset.name, "position": position, **_slots(task)}
            for position, task in enumerate(taskset.tasks)
        ]
        self._insert(TASK, rows)

    def move_taskset(self, name: str, source: EnvironmentSource) -> None:
        moved = sa.update(TASKSET).where(TASKSET.c.name == name)
        self._sql.execute(moved.values(source=wire.source_to_json(source)))

    def tasks(self, taskset: str, positions: Sequence[int] | None = None) -> dict[int, RunnableTask]:
        wanted = sa.select(TASK).where(TASK.c.taskset == taskset).order_by(TASK.c.position)
        if positions is not None:
            wanted = wanted.where(TASK.c.position.in_(sorted(set(positions))))
        return {row["position"]: _task(row) for row in self._sql.execute(wanted).mappings()}

    def run(self, run_id: str) -> RunRecord | None:
        return self._one_run(RUN.c.run_id == run_id)

    def run_of_request(self, request_id: str) -> RunRecord | None:
        return self._one_run(RUN.c.request_id == request_id)

    def runs(self, limit: int, model: str) -> list[RunRecord]:
        wanted = sa.select(RUN).order_by(RUN.c.submitted_at.desc(), RUN.c.run_id).limit(limit)
        if model:
            wanted = wanted.where(RUN.c.model == model)
        return [_run(row) for row in self._sql.execute(wanted).mappings()]

    def active_runs(self) -> list[RunRecord]:
        final = [state.value for state in FINAL_RUN_STATES]
        wanted = sa.select(RUN).where(RUN.c.state.not_in(final)).order_by(RUN.c.submitted_at)
        return [_run(row) for row in self._sql.execute(wanted).mappings()]

    def add_run(self, run: RunRecord) -> None:
        fixed = {
            "run_id": run.run_id,
            "request_id": run.request_id,
            "model": run.spec.policy.model,
            "purpose": run.spec.purpose.value,
            "split": run.split.value,
            "spec": wire.spec_to_json(run.spec),
            "taskset": run.spec.taskset,
            "taskset_digest": run.taskset_digest,
            "num_tasks": run.num_tasks,
            "trace_id": run.trace_id,
            "trace": json.dumps(dict(run.trace)),
            "submitted_at": run.submitted_at,
        }
        self._sql.execute(sa.insert(RUN).values(**fixed, **_progress(run)))

    def update_run(self, run: RunRecord) -> None:
        self._sql.execute(sa.update(RUN).where(RUN.c.run_id == run.run_id).values(**_progress(run)))

    def counts(self, run_id: str) -> Counts:
        by_state = self._sql.execute(
            sa.select(EPISODE.c.state, sa.func.count())
            .where(EPISODE.c.run_id == run_id)
            .group_by(EPISODE.c.state)
        )
        groups = self._sql.execute(
            sa.select(GROUP.c.is_open, sa.func.count())
            .where(GROUP.c.run_id == run_id)
            .group_by(GROUP.c.is_open)
        )
        states = {EpisodeState(state): count for state, count in by_state}
        open_or_not = {bool(is_open): count for is_open, count in groups}
        return Counts(states, open_or_not.get(True, 0), open_or_not.get(False, 0))

    def scores(self, run_id: str) -> tuple[float, float]:
        successes = sa.func.avg(sa.case((EPISODE.c.success, 1.0), else_=0.0))
        wanted = sa.select(sa.func.avg(EPISODE.c.reward), successes)
        row = self._sql.execute(
            wanted.where(EPISODE.c.run_id == run_id, EPISODE.c.graded_at.is_not(None))
        ).one()
        return float(row[0] or 0.0), float(row[1] or 0.0)

    def num_open_groups(self, run_id: str) -> int:
        wanted = sa.select(sa.func.count()).where(GROUP.c.run_id == run_id, GROUP.c.is_open)
        return int(self._sql.execute(wanted).scalar_one())

    def recent_outcomes(self, run_id: str, limit: int) -> list[bool]:
        wanted = sa.select(GROUP.c.num_graded).where(GROUP.c.run_id == run_id, sa.not_(GROUP.c.is_open))
        newest = wanted.order_by(GROUP.c.settled_at.desc(), GROUP.c.position.desc()).limit(limit)
        return [count > 0 for count in self._sql.execute(newest).scalars()]

    def group(self, group_id: str) -> GroupRow | None:
        row = self._sql.execute(sa.select(GROUP).where(GROUP.c.group_id == group_id)).mappings().first()
        return GroupRow(**{name: row[name] for name in GroupRow.__slots__}) if row else None

    def add_groups(self, groups: Sequence[GroupRow]) -> None:
        self._insert(GROUP, [_slots(group) for group in groups])

    def update_group(self, group: GroupRow) -> None:
        settled_at = None if group.is_open else self.now
        changed = sa.update(GROUP).where(GROUP.c.group_id == group.group_id)
        self._sql.execute(changed.values(**_slots(group), settled_at=settled_at))

    def episode(self, episode_id: str) -> EpisodeRow | None:
        return next(iter(self._episodes(EPISODE.c.episode_id == episode_id)), None)

    def unsettled(self, run_id: str, state: EpisodeState | None = None) -> list[EpisodeRow]:
        return self._episodes(EPISODE.c.run_id == run_id, _in_states([state] if state else UNSETTLED))

    def unsettled_in_group(self, group_id: str) -> list[EpisodeRow]:
        return self._episodes(EPISODE.c.group_id == group_id, _in_states(UNSETTLED))

    def results(self, run_id: str) -> list[EpisodeRow]:
        rows = self._episodes(EPISODE.c.run_id == run_id)
        newest = {(row.group_id, row.member): row for row in sorted(rows, key=lambda row: row.attempt)}
        return [newest[key] for key in sorted(newest)]

    def waits(self, run_id: str) -> PlanWaits:
        of_run = EPISODE.c.run_id == run_id
        stage = sa.case(
            (EPISODE.c.state == EpisodeState.GRADED.value, "graded"),
            (EPISODE.c.opened_at.is_not(None), "opened"),
            else_="queued",
        )
        since = sa.func.min(
            sa.func.coalesce(EPISODE.c.graded_at, EPISODE.c.opened_at, EPISODE.c.requested_at),
            type_=UtcDateTime(),
        )
        rows = self._sql.execute(
            sa.select(stage, sa.func.count(), since).where(of_run, _in_states(UNSETTLED)).group_by(stage)
        )
        found: dict[str, Any] = {}
        for name, count, oldest in rows:
            found |= {name: count, f"{name}_s": (self.now - oldest).total_seconds()}
        failed = (of_run, EPISODE.c.state == EpisodeState.FAILED.value)
        kinds = self._sql.execute(
            sa.select(EPISODE.c.reason, sa.func.count()).where(*failed).group_by(EPISODE.c.reason)
        )
        newest = sa.select(EPISODE.c.detail).where(*failed).order_by(EPISODE.c.settled_at.desc()).limit(1)
        last = self._sql.execute(newest).scalar() or ""
        return PlanWaits(**found, failures={kind: count for kind, count in kinds}, last_failure=last)

    def outbox_waiting(self) -> int:
        unpublished = sa.table("outbox", sa.column("published_at"), sa.column("refusal"))
        wanted = sa.select(sa.func.count()).select_from(unpublished)
        waiting = (unpublished.c.published_at.is_(None), unpublished.c.refusal.is_(None))
        return int(self._sql.execute(wanted.where(*waiting)).scalar_one())

    def overdue(self, run_id: str, opened_before: datetime) -> list[EpisodeRow]:
        is_planned = EPISODE.c.state == EpisodeState.PLANNED.value
        return self._episodes(EPISODE.c.run_id == run_id, is_planned, EPISODE.c.opened_at < opened_before)

    def never_opened(self, run_id: str, dispatched_before: datetime) -> list[EpisodeRow]:
        is_planned = EPISODE.c.state == EpisodeState.PLANNED.value
        waits = EPISODE.c.opened_at.is_(None) & (EPISODE.c.dispatched_at < dispatched_before)
        return self._episodes(EPISODE.c.run_id == run_id, is_planned, waits)

    def add_episodes(self, run: RunRecord, episodes: Sequence[EpisodeRow]) -> None:
        tasks = self.tasks(run.spec.taskset, [episode.task_position for episode in episodes])
        shared: dict[str, Any] = {"taskset": run.spec.taskset, "requested_at": self.now, "success": False}
        shared["dispatched_at"] = self.now
        rows = [{**_slots(episode), "state": episode.state.value, **shared} for episode in episodes]
        self._insert(EPISODE, rows)
        with self._trace_of(run):
            for episode in episodes:
                request = events.episode_requested(run, episode, tasks[episode.task_position], self.now)
                event_id = f"episode.requested/{episode.episode_id}"
                enqueue(self._sql, request, model=run.spec.policy.model, event_id=event_id)
                enqueue_command(self._sql, request, pool=POOLS[run.spec.purpose], event_id=event_id + "/d1")

    def dispatch_again(self, run: RunRecord, episode: EpisodeRow) -> None:
        number = episode.num_dispatches + 1
        task = self.tasks(run.spec.taskset, [episode.task_position])[episode.task_position]
        changed = sa.update(EPISODE).where(EPISODE.c.episode_id == episode.episode_id)
        self._sql.execute(changed.values(num_dispatches=number, dispatched_at=self.now))
        with self._trace_of(run):
            request = events.episode_requested(run, episode, task, self.now)
            event_id = f"episode.requested/{episode.episode_id}/d{number}"
            enqueue_command(self._sql, request, pool=POOLS[run.spec.purpose], event_id=event_id)

    def grade(self, fact: Graded, state: EpisodeState) -> None:
        values = {name: getattr(fact, name) for name in _GRADED_COLUMNS}
        settled_at = None if state in UNSETTLED else self.now
        changed = sa.update(EPISODE).where(EPISODE.c.episode_id == fact.episode_id)
        graded = changed.values(**values, state=state.value, graded_at=self.now, settled_at=settled_at)
        self._sql.execute(graded)

    def settle(
        self, episodes: Sequence[EpisodeRow], state: EpisodeState, reason: str, detail: str = ""
    ) -> None:
        ids = [episode.episode_id for episode in episodes]
        values = {"state": state.value, "reason": reason, "detail": detail[:2000], "settled_at": self.now}
        for start in range(0, len(ids), _CHUNK):
            chunk = EPISODE.c.episode_id.in_(ids[start : start + _CHUNK])
            self._sql.execute(sa.update(EPISODE).where(chunk).values(**values))

    def note_opened(self, episode_ids: Sequence[str]) -> None:
        first = EPISODE.c.opened_at.is_(None)
        for start in range(0, len(episode_ids), _CHUNK):
            chunk = EPISODE.c.episode_id.in_(episode_ids[start : start + _CHUNK])
            self._sql.execute(sa.update(EPISODE).where(chunk, first).values(opened_at=self.now))

    def announce_submitted(self, run: RunRecord) -> None:
        self._announce(run, events.run_submitted(run), f"run.submitted/{run.run_id}")

    def announce_finished(self, run: RunRecord, counts: Counts) -> None:
        self._announce(run, events.run_finished(run, counts, self.now), f"run.finished/{run.run_id}")

    def announce_failed(self, run: RunRecord, episode: EpisodeRow, failure: str, detail: str) -> None:
        fact = events.episode_failed(run, episode, failure, detail, self.now)
        self._announce(run, fact, f"episode.outcome/{episode.episode_id}")

    def announce_cancelled(self, run: RunRecord, episode: EpisodeRow, reason: str) -> None:
        fact = events.episode_cancelled(run, episode, reason, self.now)
        self._announce(run, fact, f"episode.cancelled/{episode.episode_id}")

    def announce_shortened(self, run: RunRecord, group: GroupRow, reason: str) -> None:
        fact = events.group_shortened(run, group, reason)
        self._announce(run, fact, f"group.shortened/{group.group_id}/{group.expected_members}")

    def _announce(self, run: RunRecord, fact: Message, event_id: str) -> None:
        with self._trace_of(run):
            enqueue(self._sql, fact, model=run.spec.policy.model, event_id=event_id)

    @contextmanager
    def _trace_of(self, run: RunRecord) -> Iterator[None]:
        # Whatever made us plan, the episode belongs to the trace that began with SubmitRun.
        token = context.attach(propagate.extract(dict(run.trace)))
        try:
            yield
        finally:
            context.detach(token)

    def _one_run(self, condition: sa.ColumnElement[bool]) -> RunRecord | None:
        row = self._sql.execute(sa.select(RUN).where(condition)).mappings().first()
        return _run(row) if row else None

    def _episodes(self, *conditions: sa.ColumnElement[bool]) -> list[EpisodeRow]:
        wanted = sa.select(*(EPISODE.c[name] for name in EpisodeRow.__slots__)).where(*conditions)
        rows = self._sql.execute(wanted.order_by(EPISODE.c.episode_id)).mappings()
        return [EpisodeRow(**{**row, "state": EpisodeState(row["state"])}) for row in rows]

    def _insert(self, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._sql.execute(sa.insert(table), list(rows))


_GRADED_COLUMNS = ("reward", "success", "num_turns", "oldest_version", "newest_version")


def _in_states(states: Any) -> sa.ColumnElement[bool]:
    return EPISODE.c.state.in_([state.value for state in states])


def _slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def _taskset(row: Any) -> RegisteredTaskset:
    source = wire.source_from_json(row["source"])
    return RegisteredTaskset(row["name"], row["digest"], Split(row["split"]), source, row["num_tasks"])


def _task(row: Any) -> RunnableTask:
    return RunnableTask(*(row[name] for name in RunnableTask.__slots__))


def _progress(run: RunRecord) -> dict[str, Any]:
    return {
        "state": run.state.value,
        "ending": run.ending.value if run.ending else None,
        "ending_since": run.ending_since,
        "finished_at": run.finished_at,
        "failure": run.failure,
        "step": run.step,
        "policy_version": run.policy_version,
        "next_position": run.next_position,
    }


def _run(row: Any) -> RunRecord:
    names = ("run_id", "request_id", "taskset_digest", "submitted_at", "num_tasks", "trace_id", "finished_at")
    more = ("ending_since", "failure", "step", "policy_version", "next_position")
    return RunRecord(
        **{name: row[name] for name in (*names, *more)},
        spec=wire.spec_from_json(row["spec"]),
        split=Split(row["split"]),
        state=RunState(row["state"]),
        ending=RunState(row["ending"]) if row["ending"] else None,
        trace=json.loads(row["trace"]),
    )
