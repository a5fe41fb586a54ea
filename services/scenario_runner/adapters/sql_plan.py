"""The plan in SQL: one PlanUnit per transaction, its announcements in the outbox of the same transaction."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from event_bus.tracing import trace_of
from identities.entities import group_of_episode
from scenario_runner.adapters import plan_statements as statements
from scenario_runner.adapters import sql_recounts
from scenario_runner.adapters.sql_announcements import SqlAnnouncements
from scenario_runner.adapters.sql_catalog import Catalog
from scenario_runner.adapters.sql_checks import TasksetChecks
from scenario_runner.adapters.sql_mixes import Mixes
from scenario_runner.adapters.sql_retention import OldRuns
from scenario_runner.adapters.sql_rows import episode_of, run_of, slots_of
from scenario_runner.adapters.sql_sessions import OfferedSessions
from scenario_runner.adapters.sql_source_groups import SourceGroups
from scenario_runner.adapters.sql_task_pasts import TaskPasts
from scenario_runner.adapters.sql_tracked import TrackedRates
from scenario_runner.adapters.sql_watched import WatchedTime
from scenario_runner.adapters.tables import EPISODE, GROUP, RUN
from scenario_runner.domain.learning import WithoutStep
from scenario_runner.domain.plan import Loss
from scenario_runner.domain.recounts import Recount
from scenario_runner.domain.run_facts import PlanWaits
from scenario_runner.domain.runs import Counts, EpisodeRow, EpisodeState, GroupRow, RunRecord, RunState
from scenario_runner.wire import published
from scenario_runner.wire import runs as wire
from scenario_runner.wire.summaries import counts_from_json, counts_to_json
from sql_store import Database, take_turn

log = logging.getLogger(__name__)
T = TypeVar("T")

PLANNING: Final = "scenario_runner: plan"
"""The turn of every transaction that changes runs, groups or episodes."""
_CONFLICTS = 3
_CHUNK = 500  # SQLite binds at most 32,766 values in one statement


class SqlPlan:
    """Runs transactions over the plan."""

    def __init__(self, database: Database, *, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now
        self._changes: Counter[str] = Counter()

    def num_changes(self, run_id: str) -> int:
        """How many transactions of this process wrote something of a run."""
        return self._changes[run_id]

    async def read(self, work: Callable[["PlanUnit"], T]) -> T:
        """Run `work`, which changes nothing, over the plan as it is at one instant, without a turn."""
        return await self._database.read(lambda connection: work(PlanUnit(connection, self._now())))

    async def transact(
        self,
        work: Callable[["PlanUnit"], T],
        *,
        turn: str = PLANNING,
        check: Callable[[sa.Connection], None] = lambda _: None,
    ) -> T:
        """Run `work` in one transaction; it may run again after a conflict.

        turn: transactions of the same one, of all planners, run one after the other. check: raises where this
        process may not do it any more.
        """

        def transaction(connection: sa.Connection) -> tuple[T, set[str]]:
            take_turn(connection, turn)
            check(connection)
            unit = PlanUnit(connection, self._now())
            result = work(unit)
            unit.flush()
            return result, unit.changed_runs

        for _ in range(_CONFLICTS):
            try:
                return self._counted(await self._database.run(transaction))
            except IntegrityError as error:
                # A planner of another version wrote the same row first; run again, the work sees that row.
                log.info("transaction_conflict", extra={"error": str(error.orig)[:200]})
        return self._counted(await self._database.run(transaction))

    def _counted(self, done: tuple[T, set[str]]) -> T:
        result, changed_runs = done
        self._changes.update(changed_runs)
        return result


class PlanUnit(SqlAnnouncements):
    """One transaction over the plan: what was read is still true when it commits, and messages are
    published if and only if it does. Used from one thread.

    Runs, groups and episodes that were read are kept, and what was changed is written in bulk: before the
    next statement that reads, and at the end (`flush`).
    """

    def __init__(self, connection: sa.Connection, now: datetime) -> None:
        super().__init__(connection, now)
        self.source_groups = SourceGroups(connection, self.changed_runs)
        self.sessions = OfferedSessions(connection)
        self.task_pasts = TaskPasts(connection)
        self.tracked = TrackedRates(connection, self.changed_runs)
        self.mixes = Mixes(connection, self.changed_runs)
        self.old_runs = OldRuns(connection)
        self.catalog = Catalog(connection)
        self.checks = TasksetChecks(connection)
        self.watched = WatchedTime(connection, now)
        self._runs: dict[str, RunRecord | None] = {}
        self._final_counts: dict[str, str] = {}
        self._members: dict[str, dict[str, EpisodeRow]] = {}
        self._dirty_runs: set[str] = set()
        self._dirty_groups: set[str] = set()
        self._dirty_episodes: dict[str, EpisodeRow] = {}

    def run(self, run_id: str) -> RunRecord | None:
        if run_id not in self._runs:
            row = self._sql.execute(statements.RUN_BY_ID, {"run_id_": run_id}).mappings().first()
            self._runs[run_id] = self._run_of(row) if row else None
        return self._runs[run_id]

    def _run_of(self, row: sa.RowMapping) -> RunRecord:
        if row["final_counts"]:
            self._final_counts[row["run_id"]] = row["final_counts"]
        return run_of(row)

    def run_of_request(self, request_id: str) -> RunRecord | None:
        row = self._read(statements.RUN_BY_REQUEST, request_id_=request_id).mappings().first()
        return self._run_of(row) if row else None

    def runs(self, limit: int, model: str, *, asked_for: bool = False) -> list[RunRecord]:
        """Newest first. asked_for: none that the platform ordered."""
        wanted = statements.newest_runs(limit, model, asked_for=asked_for)
        found = [self._run_of(row) for row in self._read(wanted).mappings()]
        self._runs.update({run.run_id: run for run in found})
        return found

    def active_runs(self) -> list[RunRecord]:
        """Those not in a final state, oldest first."""
        return [run_of(row) for row in self._read(statements.ACTIVE_RUNS).mappings()]

    def add_run(self, run: RunRecord) -> None:
        fixed = {
            "run_id": run.run_id,
            "request_id": run.request_id,
            "model": run.spec.policy.model,
            "purpose": run.spec.purpose.value,
            "split": run.split.value,
            "spec": wire.spec_to_json(run.spec),
            "is_by_platform": run.spec.is_by_platform,
            "tenant": run.tenant,
            "trace_id": run.trace_id,
            "trace": json.dumps(dict(run.trace)),
            "submitted_at": run.submitted_at,
            "source_digest": run.source_digest,
        }
        self._sql.execute(sa.insert(RUN).values(**fixed, **slots_of(run, statements.RUN_PROGRESS)))

    def update_run(self, run: RunRecord) -> None:
        """Write its progress and state."""
        self._runs[run.run_id] = run
        self._dirty_runs.add(run.run_id)
        self.changed_runs.add(run.run_id)

    def counts(self, run_id: str) -> Counts:
        """Of a run that is over or was removed, as they were then."""
        run = self.run(run_id)
        if run is not None and run.removed_at is not None:
            return self.old_runs.summary(run_id).counts
        if run_id in self._final_counts:
            return counts_from_json(self._final_counts[run_id])
        rows = [tuple(row) for row in self._read(statements.RUN_COUNTS, run_id_=run_id)]
        by_state = {EpisodeState(state): num for kind, state, num in rows if kind == "episode"}
        num_open = sum(num for kind, _, num in rows if kind == "open_group")
        ended = {outcome: num for kind, outcome, num in rows if kind == "group"}
        return Counts(by_state, num_open, sum(ended.values()), ended)

    def keep_counts(self, run_id: str, counts: Counts) -> None:
        """The run is over, and these stay as they are."""
        self._final_counts[run_id] = counts_to_json(counts)
        wanted = {"run_id_": run_id, "counts": self._final_counts[run_id]}
        self._sql.execute(statements.KEEP_COUNTS, wanted)

    def num_in_flight(self, run_id: str) -> int:
        """Planned or graded, not settled; reads these alone, however many were settled before."""
        return int(self._read(statements.IN_FLIGHT, run_id_=run_id).scalar_one())

    def num_open_groups(self, run_id: str) -> int:
        return int(self._read(statements.OPEN_GROUPS, run_id_=run_id).scalar_one())

    def recent_outcomes(self, run_id: str, limit: int) -> list[bool]:
        """Of the groups that ended last, newest first: whether a member was graded."""
        counts = self._read(statements.RECENT_OUTCOMES, run_id_=run_id, limit_=limit)
        return [count > 0 for count in counts.scalars()]

    def left_open(self, run_id: str) -> list[str]:
        """Open groups that have no unsettled member: there should be none."""
        return list(self._read(statements.LEFT_OPEN, run_id_=run_id).scalars())

    def outcomes_without_step(self, run: RunRecord) -> dict[str, int]:
        """Groups by their outcome that the trainer settled without training on them, since the run completed
        a step, or was resumed after it had paused itself. Of those of evaluations only the ones that taught
        the run nothing."""
        after = run.resumed_at or run.submitted_at
        wanted = {"run_id_": run.run_id, "since_step": run.step, "after": after}
        groups = self._read(statements.GROUPS_WITHOUT_STEP, **wanted)
        own = {outcome: int(count) for outcome, count in groups}
        return own | self.source_groups.released_since(run.run_id, run.step, after)

    def num_in_step(self, run_id: str, since_step: int) -> int:
        """Groups that were settled as trained by a step whose `step.completed` was not delivered yet."""
        own = self._read(statements.TRAINED_SINCE, run_id_=run_id, since_step=since_step)
        return int(own.scalar_one()) + self.source_groups.trained_after(run_id, since_step)

    def without_step(self, run: RunRecord) -> WithoutStep:
        """The same groups with their outcomes and rewards."""
        after = run.resumed_at or run.submitted_at
        wanted = {"run_id_": run.run_id, "since_step": run.step, "after": after}
        groups = self.outcomes_without_step(run)
        rewards: dict[str, dict[float, int]] = {}
        for outcome, reward, count in self._read(statements.REWARDS_WITHOUT_STEP, **wanted):
            rewards.setdefault(outcome, {})[reward] = count
        rewards |= self.source_groups.released_rewards(run.run_id, run.step, after)
        return WithoutStep(groups, rewards)

    def prefetch(self, group_ids: Collection[str]) -> None:
        """Read groups with their episodes in one go; what follows about them costs nothing."""
        missing = [group_id for group_id in group_ids if group_id not in self._members]
        if missing:
            self.flush()  # what was changed without having been read here would be overwritten
        for start in range(0, len(missing), _CHUNK):
            chunk = {"group_ids": missing[start : start + _CHUNK]}
            for group in self._sql.execute(statements.GROUPS_BY_ID, chunk):
                self._groups[group.group_id] = GroupRow(*group)
            self._members.update({group_id: {} for group_id in chunk["group_ids"]})
            for row in self._sql.execute(statements.EPISODES_OF_GROUPS, chunk):
                self._members[row.group_id][row.episode_id] = episode_of(row)

    def group(self, group_id: str) -> GroupRow | None:
        self.prefetch([group_id])
        return self._groups.get(group_id)

    def add_groups(self, groups: Sequence[GroupRow]) -> None:
        self._insert(GROUP, [slots_of(group) for group in groups])

    def update_group(self, group: GroupRow) -> None:
        self._groups[group.group_id] = group
        self.changed_runs.add(group.run_id)
        self._dirty_groups.add(group.group_id)

    def members(self, group_id: str) -> list[EpisodeRow]:
        """All attempts at all members."""
        self.prefetch([group_id])
        return list(self._members[group_id].values())

    def episode(self, episode_id: str) -> EpisodeRow | None:
        group_id = group_of_episode(episode_id)
        self.prefetch([group_id])
        return self._members[group_id].get(episode_id)

    def update_episode(self, episode: EpisodeRow) -> None:
        self._dirty_episodes[episode.episode_id] = episode
        self.changed_runs.add(episode.run_id)
        if episode.group_id in self._members:
            self._members[episode.group_id][episode.episode_id] = episode

    def unsettled(self, run_id: str) -> list[EpisodeRow]:
        return self._episodes(statements.UNSETTLED_OF_RUN, {"run_id_": run_id})

    def complete_groups(self, run_id: str) -> dict[str, datetime]:
        """Groups that wait for the trainer alone: every unsettled member is graded. Since when."""
        rows = self._read(statements.COMPLETE_GROUPS, run_id_=run_id)
        return {group_id: since for group_id, since in rows}

    def results(self, run_id: str) -> list[EpisodeRow]:
        """The newest attempt at each member of each group, in order."""
        return _newest_attempts(self._episodes(statements.EPISODES_OF_RUN, {"run_id_": run_id}))

    def newest_results(self, run_id: str, num_groups: int) -> list[EpisodeRow]:
        """The same of the groups that ended last."""
        wanted = {"run_id_": run_id, "limit_": num_groups}
        return _newest_attempts(self._episodes(statements.EPISODES_OF_NEWEST_GROUPS, wanted))

    def waits(self, run_id: str) -> PlanWaits:
        """Where its unsettled episodes are, and what failed."""
        found: dict[str, Any] = {}
        for name, count, oldest in self._read(statements.STAGES, run_id_=run_id):
            found |= {name: count, f"{name}_s": (self.now - oldest).total_seconds()}
        failures = {kind: count for kind, count in self._read(statements.FAILURES, run_id_=run_id)}
        last = self._read(statements.LAST_FAILURE, run_id_=run_id).scalar() or ""
        complete = self.complete_groups(run_id)
        complete_s = (self.now - min(complete.values())).total_seconds() if complete else 0.0
        found |= {"complete_groups": len(complete), "complete_s": complete_s}
        return PlanWaits(**found, failures=failures, last_failure=last)

    def losses(self, run_id: str) -> list[Loss]:
        """The 2,048 episodes that were lost last with their process, newest first."""
        rows = self._read(statements.LOSSES, run_id_=run_id)
        return [Loss(began_at, lost_at, bool(opened)) for began_at, lost_at, opened in rows]

    def outbox_waiting(self, model: str) -> int:
        """Announcements about a model that are not published yet."""
        return int(self._read(statements.outbox_waiting(model)).scalar_one())

    def overdue(self, run_id: str, opened_before: datetime) -> list[EpisodeRow]:
        """Planned and opened at a time before."""
        return self._episodes(statements.OVERDUE, {"run_id_": run_id, "before": opened_before})

    def never_opened(self, run_id: str, dispatched_before: datetime) -> list[EpisodeRow]:
        """Planned, not opened, and last dispatched before."""
        return self._episodes(statements.NEVER_OPENED, {"run_id_": run_id, "before": dispatched_before})

    def recount(self, recount: Recount, group_ids: Sequence[str]) -> Recount:
        """With these groups, the next ones of the run, as their episodes say; nothing is written."""
        self.flush()
        return sql_recounts.with_groups(self._sql, recount, group_ids)

    def correct_groups(self, group_ids: Sequence[str]) -> None:
        """Of these groups write how many members were graded, where they say something else."""
        self.flush()
        sql_recounts.correct_groups(self._sql, group_ids)

    def add_episodes(self, run: RunRecord, episodes: Sequence[EpisodeRow]) -> None:
        """Plan them: each is announced as requested, and queued unless the run is paused; one that is held
        back has no dispatch."""
        self.changed_runs.add(run.run_id)
        splits = self._splits_now(episodes)
        is_held = run.state is RunState.PAUSED
        num_dispatches = 0 if is_held else 1
        planned = [
            replace(
                row,
                dispatched_at=self.now,
                num_dispatches=num_dispatches,
                split=splits[self.task_of(row).digest],
            )
            for row in episodes
        ]
        shared = {"requested_at": self.now}
        self._insert(EPISODE, [{**slots_of(row), **shared} for row in planned])
        for row in planned:
            if row.group_id in self._members:
                self._members[row.group_id][row.episode_id] = row
        self._announce_requested(run, planned, is_held=is_held)

    def dispatch_again(self, run: RunRecord, episode: EpisodeRow) -> None:
        """Queue it once more."""
        again = replace(episode, num_dispatches=episode.num_dispatches + 1, dispatched_at=self.now)
        self.update_episode(again)
        with trace_of(run.trace):
            request = published.episode_requested(run, again, self.task_of(again), self.now)
            self._enqueue_command(run, request, again)

    def note_opened(self, episode_ids: Sequence[str]) -> None:
        rows = [{"episode_id_": episode_id, "moment": self.now} for episode_id in episode_ids]
        if rows:
            self._sql.execute(statements.NOTE_OPENED, rows)

    def flush(self) -> None:
        """Write what was changed."""
        self.mixes.flush()
        self.new_tasks.flush()
        runs = [run for run_id in self._dirty_runs if (run := self._runs[run_id]) is not None]
        groups = [self._groups[group_id] for group_id in self._dirty_groups]
        episodes = list(self._dirty_episodes.values())
        self._write(statements.WRITE_RUN, runs, "run_id", statements.RUN_PROGRESS)
        self._write(statements.WRITE_GROUP, groups, "group_id", statements.GROUP_PROGRESS)
        self._write(statements.WRITE_EPISODE, episodes, "episode_id", statements.EPISODE_PROGRESS)
        self._dirty_runs.clear()
        self._dirty_groups.clear()
        self._dirty_episodes.clear()

    def _write(self, statement: sa.Update, rows: Sequence[Any], key: str, names: Sequence[str]) -> None:
        if rows:
            changes = [{**slots_of(row, names), f"{key}_": getattr(row, key)} for row in rows]
            self._sql.execute(statement, changes)

    def _episodes(self, statement: sa.Select[Any], wanted: Mapping[str, Any]) -> list[EpisodeRow]:
        return [episode_of(row) for row in self._read(statement, **wanted)]

    def _read(self, statement: sa.Executable, **wanted: Any) -> sa.CursorResult[*tuple[Any, ...]]:
        """Run a statement that sees what this transaction has changed."""
        self.flush()
        return self._sql.execute(statement, wanted)


def _newest_attempts(rows: Sequence[EpisodeRow]) -> list[EpisodeRow]:
    newest = {(row.group_id, row.member): row for row in sorted(rows, key=lambda row: row.attempt)}
    return [newest[key] for key in sorted(newest)]
