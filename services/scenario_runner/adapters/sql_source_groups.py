"""SourceGroups in SQL: which groups of evaluations a training run has looked at, and what became of them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from episodes import Purpose, Split
from scenario_runner.adapters.sql_rows import run_of, slots_of
from scenario_runner.adapters.tables import CLAIM, EPISODE, GROUP, RUN, SOURCE_GROUP, TASK
from scenario_runner.domain.retention import Progress
from scenario_runner.domain.runs import FINAL_RUN_STATES, OPEN_RUN_STATES, EpisodeState, RunRecord
from scenario_runner.domain.source_groups import (
    TAKEN,
    WITHOUT_SIGNAL,
    EndedGroup,
    SourceGroup,
    SourceGroupState,
    SourceLoad,
    SourceTally,
)
from sql_store import UtcDateTime, owned

_OF_RUN = SOURCE_GROUP.c.run_id == sa.bindparam("run_id_")
_GROUPS = sa.select(*(SOURCE_GROUP.c[name] for name in SourceGroup.__slots__))
_IS_TAKEN = SOURCE_GROUP.c.state.in_([state.value for state in TAKEN])
_OFFERED = (_OF_RUN, SOURCE_GROUP.c.state == SourceGroupState.OFFERED.value)
_WAITING = (_OF_RUN, SOURCE_GROUP.c.state == SourceGroupState.WAITING.value)
_ORDER = (SOURCE_GROUP.c.ended_at, SOURCE_GROUP.c.group_id)

ONE = _GROUPS.where(_OF_RUN, SOURCE_GROUP.c.group_id == sa.bindparam("group_id_"))
OFFERED = _GROUPS.where(*_OFFERED).order_by(*_ORDER)
WAITING = _GROUPS.where(*_WAITING).order_by(*_ORDER).limit(sa.bindparam("limit_"))
LOAD = sa.select(
    sa.select(sa.func.count()).select_from(SOURCE_GROUP).where(*_OFFERED).scalar_subquery(),
    sa.exists().where(*_WAITING),
    sa.select(sa.func.min(SOURCE_GROUP.c.offered_at)).where(*_OFFERED).scalar_subquery(),
)
NEWEST_ENDS = sa.select(
    sa.func.max(SOURCE_GROUP.c.ended_at),
    sa.func.max(sa.case((SOURCE_GROUP.c.state != SourceGroupState.LEFT_OUT.value, SOURCE_GROUP.c.ended_at))),
).where(_OF_RUN)
TALLIES = (
    sa.select(SOURCE_GROUP.c.source_run_id, SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason, sa.func.count())
    .where(_OF_RUN)
    .group_by(SOURCE_GROUP.c.source_run_id, SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason)
)
TAKEN_OF_GROUPS = sa.select(SOURCE_GROUP.c.group_id, SOURCE_GROUP.c.run_id).where(
    SOURCE_GROUP.c.group_id.in_(sa.bindparam("group_ids", expanding=True)), _IS_TAKEN
)
TAKEN_OF_SOURCE = (
    sa.select(SOURCE_GROUP.c.group_id, SOURCE_GROUP.c.run_id)
    .join_from(GROUP, SOURCE_GROUP, SOURCE_GROUP.c.group_id == GROUP.c.group_id)
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), _IS_TAKEN)
)
_IS_WITHOUT_SIGNAL = sa.and_(
    SOURCE_GROUP.c.state == SourceGroupState.RELEASED.value, SOURCE_GROUP.c.reason.in_(sorted(WITHOUT_SIGNAL))
)
_OWN_WITHOUT_STEP = sa.and_(
    SOURCE_GROUP.c.state.in_([SourceGroupState.LEFT_OUT.value, SourceGroupState.RELEASED.value]),
    SOURCE_GROUP.c.source_run_id == SOURCE_GROUP.c.run_id,
)
"""Proposals of the run itself, which would be made for ever: why they did not train makes no difference."""
_RELEASED_SINCE = (
    _OF_RUN,
    sa.or_(_IS_WITHOUT_SIGNAL, _OWN_WITHOUT_STEP),
    SOURCE_GROUP.c.step >= sa.bindparam("step_"),
    SOURCE_GROUP.c.settled_at >= sa.bindparam("after", type_=UtcDateTime()),
)
RELEASED_SINCE = (
    sa.select(SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason, sa.func.count())
    .where(*_RELEASED_SINCE)
    .group_by(SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason)
)
RELEASED_REWARDS = (
    sa.select(SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason, EPISODE.c.reward, sa.func.count())
    .join_from(
        SOURCE_GROUP,
        EPISODE,
        (EPISODE.c.group_id == SOURCE_GROUP.c.group_id) & (EPISODE.c.state == EpisodeState.EVALUATED.value),
    )
    .where(*_RELEASED_SINCE)
    .group_by(SOURCE_GROUP.c.state, SOURCE_GROUP.c.reason, EPISODE.c.reward)
)
TRAINED_AFTER = (
    sa.select(sa.func.count())
    .select_from(SOURCE_GROUP)
    .where(
        _OF_RUN,
        SOURCE_GROUP.c.state == SourceGroupState.TRAINED.value,
        SOURCE_GROUP.c.step > sa.bindparam("step_"),
    )
)
SPLITS_OF_SOURCE = (
    sa.select(GROUP.c.group_id, sa.func.coalesce(CLAIM.c.split, Split.UNASSIGNED.value))
    .join_from(GROUP, TASK, owned(TASK, taskset=GROUP.c.taskset, position=GROUP.c.task_position))
    .join(CLAIM, owned(CLAIM, digest=TASK.c.digest), isouter=True)
    .where(GROUP.c.run_id == sa.bindparam("run_id_"))
)
_CHANGES = ("state", "reason", "step", "offered_at", "settled_at")
WRITE = (
    sa.update(SOURCE_GROUP)
    .where(SOURCE_GROUP.c.group_id == sa.bindparam("group_id_"), _OF_RUN)
    .values({name: sa.bindparam(name) for name in _CHANGES})
)
SOURCE_RUN = sa.select(RUN).where(RUN.c.run_id == sa.bindparam("run_id_"))
OPEN_RUNS = (
    sa.select(RUN)
    .where(
        RUN.c.state.in_([state.value for state in OPEN_RUN_STATES]),
        owned(RUN, model=sa.bindparam("model_"), purpose=sa.bindparam("purpose_")),
    )
    .order_by(RUN.c.submitted_at)
)
_IS_OVER = RUN.c.state.in_([state.value for state in FINAL_RUN_STATES])
_RUN_IDS: sa.BindParameter[Any] = sa.bindparam("run_ids", expanding=True)
_IS_LONG_OVER = _IS_OVER & (RUN.c.finished_at < sa.bindparam("moment"))
KNOWN = sa.select(
    RUN.c.run_id,
    _IS_OVER,
    sa.func.coalesce(_IS_LONG_OVER, sa.false()),
    sa.func.coalesce(RUN.c.held_at >= sa.bindparam("moment"), sa.false()),
).where(RUN.c.run_id.in_(_RUN_IDS))
DRAWN_FROM = (
    sa.select(SOURCE_GROUP.c.source_run_id)
    .join_from(RUN, SOURCE_GROUP, SOURCE_GROUP.c.run_id == RUN.c.run_id)
    .where(sa.func.coalesce(sa.not_(_IS_LONG_OVER), sa.true()), SOURCE_GROUP.c.source_run_id.in_(_RUN_IDS))
    .distinct()
)
# A release and a hold have different turns: each is one statement over the row of the run, which on Postgres
# sees what the other one has committed, and waits for one that has not.
_IS_HELD = sa.func.coalesce(RUN.c.held_at >= sa.bindparam("held_since"), sa.false())
RELEASE = (
    sa.update(RUN)
    .where(RUN.c.run_id.in_(_RUN_IDS), RUN.c.released_at.is_(None), sa.not_(_IS_HELD))
    .values(released_at=sa.bindparam("moment"))
)
RELEASED = sa.select(RUN.c.run_id).where(RUN.c.run_id.in_(_RUN_IDS), RUN.c.released_at.is_not(None))
NOT_RELEASED = sa.select(RUN.c.run_id).where(RUN.c.run_id.in_(_RUN_IDS), RUN.c.released_at.is_(None))
HOLD = (
    sa.update(RUN)
    .where(RUN.c.run_id.in_(_RUN_IDS), RUN.c.released_at.is_(None))
    .values(held_at=sa.bindparam("moment"))
)
RELEASED_AT = sa.select(RUN.c.released_at).where(RUN.c.run_id == sa.bindparam("run_id_"))
_WITHOUT_BODY = sa.case((EPISODE.c.body_key == "", 1), else_=0)
ENDED_GROUPS = (
    sa.select(
        GROUP.c.group_id,
        GROUP.c.settled_at,
        GROUP.c.outcome,
        sa.func.count(EPISODE.c.episode_id),
        sa.func.coalesce(sa.func.sum(sa.case((EPISODE.c.episode_id.is_(None), 0), else_=_WITHOUT_BODY)), 0),
        sa.func.coalesce(sa.func.min(EPISODE.c.oldest_version), 0),
        sa.func.coalesce(sa.func.max(EPISODE.c.newest_version), 0),
        sa.func.coalesce(sa.func.max(EPISODE.c.reward) > sa.func.min(EPISODE.c.reward), sa.false()),
    )
    .join_from(
        GROUP,
        EPISODE,
        (EPISODE.c.group_id == GROUP.c.group_id) & (EPISODE.c.state == EpisodeState.EVALUATED.value),
        isouter=True,
    )
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), sa.not_(GROUP.c.is_open))
    .group_by(GROUP.c.group_id, GROUP.c.settled_at, GROUP.c.outcome)
    .order_by(GROUP.c.settled_at, GROUP.c.group_id)
)


class SourceGroups:
    """The table `source_group` in one transaction, part of a PlanUnit. Writes happen at once."""

    def __init__(self, connection: sa.Connection, changed_runs: set[str]) -> None:
        self._sql = connection
        self._changed_runs = changed_runs
        self._sources: dict[str, RunRecord | None] = {}

    def load(self, run_id: str) -> SourceLoad:
        offered, is_waiting, oldest = self._sql.execute(LOAD, {"run_id_": run_id}).one()
        return SourceLoad(offered, bool(is_waiting), oldest)

    def one(self, run_id: str, group_id: str) -> SourceGroup | None:
        row = self._sql.execute(ONE, {"run_id_": run_id, "group_id_": group_id}).first()
        return _source_group(row) if row else None

    def newest_ends(self, run_id: str) -> tuple[datetime | None, datetime | None]:
        """When the newest group that a run has looked at ended, and the newest that it did not leave out."""
        newest, fit = self._sql.execute(NEWEST_ENDS, {"run_id_": run_id}).one()
        return newest, fit

    def waiting(self, run_id: str, limit: int) -> list[SourceGroup]:
        """In the order in which their evaluations were done with them."""
        rows = self._sql.execute(WAITING, {"run_id_": run_id, "limit_": limit})
        return [_source_group(row) for row in rows]

    def offered(self, run_id: str) -> list[SourceGroup]:
        """Those that the trainer has not answered yet."""
        return [_source_group(row) for row in self._sql.execute(OFFERED, {"run_id_": run_id})]

    def taken(self, group_ids: Collection[str]) -> dict[str, str]:
        """Of groups that are offered to a run, or trained one: that run."""
        rows = self._sql.execute(TAKEN_OF_GROUPS, {"group_ids": sorted(group_ids)})
        return {group_id: run_id for group_id, run_id in rows}

    def taken_of_source(self, source_run_id: str) -> dict[str, str]:
        """The same of all groups of an evaluation."""
        rows = self._sql.execute(TAKEN_OF_SOURCE, {"run_id_": source_run_id})
        return {group_id: run_id for group_id, run_id in rows}

    def ended_groups(self, source_run_id: str) -> list[EndedGroup]:
        """All groups that an evaluation is done with, in the order in which they ended."""
        rows = self._sql.execute(ENDED_GROUPS, {"run_id_": source_run_id})
        return [replace(EndedGroup(*row[:-1]), has_spread=bool(row[-1])) for row in rows]

    def splits_of_source(self, source_run_id: str) -> dict[str, Split]:
        """Which side the task of each group of an evaluation is on now."""
        rows = self._sql.execute(SPLITS_OF_SOURCE, {"run_id_": source_run_id})
        return {group_id: Split(split) for group_id, split in rows}

    def tallies(self, run_id: str) -> list[SourceTally]:
        rows = self._sql.execute(TALLIES, {"run_id_": run_id})
        return [
            SourceTally(source, SourceGroupState(state), reason, count)
            for source, state, reason, count in rows
        ]

    def trained_after(self, run_id: str, step: int) -> int:
        """Groups of evaluations that the run trained in a later step than this one."""
        return int(self._sql.execute(TRAINED_AFTER, {"run_id_": run_id, "step_": step}).scalar_one())

    def released_since(self, run_id: str, step: int, after: datetime) -> dict[str, int]:
        """Groups that taught the run nothing, released since it completed a step and after that moment, by
        `released(<reason>)`; groups of proposals that could not be measured by `left_out(<reason>)`."""
        rows = self._sql.execute(RELEASED_SINCE, {"run_id_": run_id, "step_": step, "after": after})
        return {f"{state}({reason})": count for state, reason, count in rows}

    def released_rewards(self, run_id: str, step: int, after: datetime) -> dict[str, dict[float, int]]:
        """The rewards of the same groups: outcome to reward to episodes."""
        rewards: dict[str, dict[float, int]] = {}
        wanted = {"run_id_": run_id, "step_": step, "after": after}
        for state, reason, reward, count in self._sql.execute(RELEASED_REWARDS, wanted):
            rewards.setdefault(f"{state}({reason})", {})[reward] = count
        return rewards

    def add(self, groups: Sequence[SourceGroup]) -> None:
        if groups:
            self._changed_runs.update(group.run_id for group in groups)
            self._sql.execute(sa.insert(SOURCE_GROUP), [slots_of(group) for group in groups])

    def update(self, groups: Sequence[SourceGroup]) -> None:
        if groups:
            self._changed_runs.update(group.run_id for group in groups)
            self._sql.execute(WRITE, [_changes(group) for group in groups])

    def source_run(self, run_id: str) -> RunRecord | None:
        """Another run, for what never changes of it."""
        if run_id not in self._sources:
            row = self._sql.execute(SOURCE_RUN, {"run_id_": run_id}).mappings().first()
            self._sources[run_id] = run_of(row) if row else None
        return self._sources[run_id]

    def progress_of(self, run_ids: Collection[str], ended_before: datetime) -> dict[str, Progress]:
        """Of these runs, those that the plan has."""
        wanted = {"run_ids": sorted(run_ids), "moment": ended_before}
        return {
            run_id: _progress(is_over=is_over, is_long_over=is_long_over, is_held=is_held)
            for run_id, is_over, is_long_over, is_held in self._sql.execute(KNOWN, wanted)
        }

    def drawn_from(self, run_ids: Collection[str], ended_before: datetime) -> set[str]:
        """Of these runs, those of which a run has looked at groups that was not over by a moment."""
        wanted = {"run_ids": sorted(run_ids), "moment": ended_before}
        return set(self._sql.execute(DRAWN_FROM, wanted).scalars())

    def release(self, run_ids: Collection[str], moment: datetime, *, held_since: datetime) -> set[str]:
        """From now on no run may begin to draw from these: their trajectories may be removed. Returns those
        that an interactive session has held since that moment, and which are not released."""
        wanted = {"run_ids": sorted(run_ids)}
        self._sql.execute(RELEASE, {**wanted, "moment": moment, "held_since": held_since})
        return set(self._sql.execute(NOT_RELEASED, wanted).scalars())

    def hold(self, run_ids: Collection[str], moment: datetime) -> list[str]:
        """A gradient is taken on trajectories of these runs. Returns those that were released, sorted; then
        the transaction must not commit."""
        wanted = {"run_ids": sorted(run_ids)}
        self._sql.execute(HOLD, {**wanted, "moment": moment})
        return sorted(self._sql.execute(RELEASED, wanted).scalars())

    def released_at(self, run_id: str) -> datetime | None:
        """When a run was released; None: it was not."""
        found: datetime | None = self._sql.execute(RELEASED_AT, {"run_id_": run_id}).scalar()
        return found

    def open_runs(self, model: str, purpose: Purpose) -> list[RunRecord]:
        """Runs of a model that are running or paused, oldest first."""
        wanted = {"model_": model, "purpose_": purpose.value}
        return [run_of(row) for row in self._sql.execute(OPEN_RUNS, wanted).mappings()]


def _progress(*, is_over: bool, is_long_over: bool, is_held: bool) -> Progress:
    if not is_over:
        return Progress.OPEN
    if not is_long_over:
        return Progress.OVER
    return Progress.HELD if is_held else Progress.LONG_OVER


def _source_group(row: Any) -> SourceGroup:
    return SourceGroup(**{**row._mapping, "state": SourceGroupState(row.state)})


def _changes(group: SourceGroup) -> dict[str, Any]:
    return {**slots_of(group, _CHANGES), "group_id_": group.group_id, "run_id_": group.run_id}
