"""Draws in SQL: which groups of evaluations a training run has looked at, and what became of them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from scenario_runner.adapters.sql_rows import run_of, slots_of
from scenario_runner.adapters.tables import CLAIM, DRAW, EPISODE, GROUP, RUN, TASK
from scenario_runner.domain.drawn import (
    TAKEN,
    TAUGHT_NOTHING,
    Draw,
    DrawLoad,
    DrawState,
    DrawTally,
    EndedGroup,
)
from scenario_runner.domain.runs import (
    LIVELY_RUN_STATES,
    EpisodeState,
    RunRecord,
    Split,
)
from upcycle.run_config import Purpose

_OF_RUN = DRAW.c.run_id == sa.bindparam("run_id_")
_DRAWS = sa.select(*(DRAW.c[name] for name in Draw.__slots__))
_IS_TAKEN = DRAW.c.state.in_([state.value for state in TAKEN])
_OFFERED = (_OF_RUN, DRAW.c.state == DrawState.OFFERED.value)
_WAITING = (_OF_RUN, DRAW.c.state == DrawState.WAITING.value)
_ORDER = (DRAW.c.ended_at, DRAW.c.group_id)

ONE = _DRAWS.where(_OF_RUN, DRAW.c.group_id == sa.bindparam("group_id_"))
OFFERED = _DRAWS.where(*_OFFERED).order_by(*_ORDER)
WAITING = _DRAWS.where(*_WAITING).order_by(*_ORDER).limit(sa.bindparam("limit_"))
LOAD = sa.select(
    sa.select(sa.func.count()).select_from(DRAW).where(*_OFFERED).scalar_subquery(),
    sa.exists().where(*_WAITING),
    sa.select(sa.func.min(DRAW.c.offered_at)).where(*_OFFERED).scalar_subquery(),
)
TALLIES = (
    sa.select(DRAW.c.source_run_id, DRAW.c.state, DRAW.c.reason, sa.func.count())
    .where(_OF_RUN)
    .group_by(DRAW.c.source_run_id, DRAW.c.state, DRAW.c.reason)
)
TAKEN_OF_GROUPS = sa.select(DRAW.c.group_id, DRAW.c.run_id).where(
    DRAW.c.group_id.in_(sa.bindparam("group_ids", expanding=True)), _IS_TAKEN
)
TAKEN_OF_SOURCE = (
    sa.select(DRAW.c.group_id, DRAW.c.run_id)
    .join_from(GROUP, DRAW, DRAW.c.group_id == GROUP.c.group_id)
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), _IS_TAKEN)
)
_RELEASED_SINCE = (
    _OF_RUN,
    DRAW.c.state == DrawState.RELEASED.value,
    DRAW.c.step >= sa.bindparam("step_"),
    DRAW.c.reason.in_(sorted(TAUGHT_NOTHING)),
)
RELEASED_SINCE = sa.select(DRAW.c.reason, sa.func.count()).where(*_RELEASED_SINCE).group_by(DRAW.c.reason)
RELEASED_REWARDS = (
    sa.select(DRAW.c.reason, EPISODE.c.reward, sa.func.count())
    .join_from(
        DRAW,
        EPISODE,
        (EPISODE.c.group_id == DRAW.c.group_id) & (EPISODE.c.state == EpisodeState.EVALUATED.value),
    )
    .where(*_RELEASED_SINCE)
    .group_by(DRAW.c.reason, EPISODE.c.reward)
)
TRAINED_AFTER = sa.select(
    sa.exists().where(_OF_RUN, DRAW.c.state == DrawState.TRAINED.value, DRAW.c.step > sa.bindparam("step_"))
)
SPLITS_OF_SOURCE = (
    sa.select(GROUP.c.group_id, sa.func.coalesce(CLAIM.c.split, Split.UNASSIGNED.value))
    .join_from(GROUP, TASK, (TASK.c.taskset == GROUP.c.taskset) & (TASK.c.position == GROUP.c.task_position))
    .join(CLAIM, CLAIM.c.digest == TASK.c.digest, isouter=True)
    .where(GROUP.c.run_id == sa.bindparam("run_id_"))
)
_CHANGES = ("state", "reason", "step", "offered_at", "settled_at")
WRITE = (
    sa.update(DRAW)
    .where(DRAW.c.group_id == sa.bindparam("group_id_"), _OF_RUN)
    .values({name: sa.bindparam(name) for name in _CHANGES})
)
# Not locked: what is read of it never changes, and two planners would wait for each other.
SOURCE_RUN = sa.select(RUN).where(RUN.c.run_id == sa.bindparam("run_id_"))
OPEN_RUNS = (
    sa.select(RUN)
    .where(
        RUN.c.state.in_([state.value for state in LIVELY_RUN_STATES]),
        RUN.c.model == sa.bindparam("model_"),
        RUN.c.purpose == sa.bindparam("purpose_"),
    )
    .order_by(RUN.c.submitted_at)
)
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


class SqlDraws:
    """Implements Draws on one connection. Nothing is kept: what is written is written at once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection
        self._sources: dict[str, RunRecord | None] = {}

    def load(self, run_id: str) -> DrawLoad:
        offered, is_waiting, oldest = self._sql.execute(LOAD, {"run_id_": run_id}).one()
        return DrawLoad(offered, bool(is_waiting), oldest)

    def one(self, run_id: str, group_id: str) -> Draw | None:
        row = self._sql.execute(ONE, {"run_id_": run_id, "group_id_": group_id}).first()
        return _draw(row) if row else None

    def waiting(self, run_id: str, limit: int) -> list[Draw]:
        rows = self._sql.execute(WAITING, {"run_id_": run_id, "limit_": limit})
        return [_draw(row) for row in rows]

    def offered(self, run_id: str) -> list[Draw]:
        return [_draw(row) for row in self._sql.execute(OFFERED, {"run_id_": run_id})]

    def taken(self, group_ids: Collection[str]) -> dict[str, str]:
        rows = self._sql.execute(TAKEN_OF_GROUPS, {"group_ids": sorted(group_ids)})
        return {group_id: run_id for group_id, run_id in rows}

    def taken_of_source(self, source_run_id: str) -> dict[str, str]:
        rows = self._sql.execute(TAKEN_OF_SOURCE, {"run_id_": source_run_id})
        return {group_id: run_id for group_id, run_id in rows}

    def ended_groups(self, source_run_id: str) -> list[EndedGroup]:
        rows = self._sql.execute(ENDED_GROUPS, {"run_id_": source_run_id})
        return [replace(EndedGroup(*row[:-1]), has_spread=bool(row[-1])) for row in rows]

    def splits_of_source(self, source_run_id: str) -> dict[str, Split]:
        rows = self._sql.execute(SPLITS_OF_SOURCE, {"run_id_": source_run_id})
        return {group_id: Split(split) for group_id, split in rows}

    def tallies(self, run_id: str) -> list[DrawTally]:
        rows = self._sql.execute(TALLIES, {"run_id_": run_id})
        return [DrawTally(source, DrawState(state), reason, count) for source, state, reason, count in rows]

    def trained_after(self, run_id: str, step: int) -> bool:
        return bool(self._sql.execute(TRAINED_AFTER, {"run_id_": run_id, "step_": step}).scalar_one())

    def released_since(self, run_id: str, step: int) -> dict[str, int]:
        rows = self._sql.execute(RELEASED_SINCE, {"run_id_": run_id, "step_": step})
        return {f"released({reason})": count for reason, count in rows}

    def released_rewards(self, run_id: str, step: int) -> dict[str, dict[float, int]]:
        rewards: dict[str, dict[float, int]] = {}
        for reason, reward, count in self._sql.execute(RELEASED_REWARDS, {"run_id_": run_id, "step_": step}):
            rewards.setdefault(f"released({reason})", {})[reward] = count
        return rewards

    def add(self, draws: Sequence[Draw]) -> None:
        if draws:
            rows = [{**slots_of(draw), "state": draw.state.value} for draw in draws]
            self._sql.execute(sa.insert(DRAW), rows)

    def update(self, draws: Sequence[Draw]) -> None:
        if draws:
            self._sql.execute(WRITE, [_changes(draw) for draw in draws])

    def source_run(self, run_id: str) -> RunRecord | None:
        if run_id not in self._sources:
            row = self._sql.execute(SOURCE_RUN, {"run_id_": run_id}).mappings().first()
            self._sources[run_id] = run_of(row) if row else None
        return self._sources[run_id]

    def open_runs(self, model: str, purpose: Purpose) -> list[RunRecord]:
        wanted = {"model_": model, "purpose_": purpose.value}
        return [run_of(row) for row in self._sql.execute(OPEN_RUNS, wanted).mappings()]


def _draw(row: Any) -> Draw:
    return Draw(**{**row._mapping, "state": DrawState(row.state)})


def _changes(draw: Draw) -> dict[str, Any]:
    changed = {name: getattr(draw, name) for name in _CHANGES}
    return {**changed, "state": draw.state.value, "group_id_": draw.group_id, "run_id_": draw.run_id}
