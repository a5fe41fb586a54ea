"""The recorded sessions that training runs take, in one transaction; part of a PlanUnit. The other services
know a session as an episode of a run that no planner planned, so the plan keeps what an offer of it needs."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from scenario_runner.adapters.sql_rows import slots_of
from scenario_runner.adapters.tables import OFFERED_SESSION, SOURCE_GROUP
from scenario_runner.domain.recorded_sessions import SessionGroup
from scenario_runner.domain.runs import EpisodeRow, EpisodeState
from scenario_runner.domain.source_groups import TAKEN, SourceGroupState

_COLUMNS = tuple(
    column.name for column in OFFERED_SESSION.columns if column.name not in ("run_id", "task_digest")
)
_CHUNK = 500
_OF_GROUP = (
    sa.select(OFFERED_SESSION)
    .where(
        OFFERED_SESSION.c.run_id == sa.bindparam("run_id_"),
        OFFERED_SESSION.c.group_id == sa.bindparam("group_id_"),
    )
    .order_by(OFFERED_SESSION.c.member)
)
_GROUPS_OF = sa.select(OFFERED_SESSION.c.episode_id, OFFERED_SESSION.c.group_id).where(
    OFFERED_SESSION.c.run_id == sa.bindparam("run_id_"),
    OFFERED_SESSION.c.episode_id.in_(sa.bindparam("episode_ids", expanding=True)),
)
_TAKEN = (
    sa.select(OFFERED_SESSION.c.episode_id)
    .join_from(
        OFFERED_SESSION,
        SOURCE_GROUP,
        (SOURCE_GROUP.c.group_id == OFFERED_SESSION.c.group_id)
        & (SOURCE_GROUP.c.run_id == OFFERED_SESSION.c.run_id),
    )
    .where(
        OFFERED_SESSION.c.episode_id.in_(sa.bindparam("episode_ids", expanding=True)),
        SOURCE_GROUP.c.state.in_([state.value for state in TAKEN]),
    )
)

_SEEN = sa.select(OFFERED_SESSION.c.episode_id).where(
    OFFERED_SESSION.c.run_id == sa.bindparam("run_id_"),
    OFFERED_SESSION.c.episode_id.in_(sa.bindparam("episode_ids", expanding=True)),
)
_ALONE = (
    sa.select(OFFERED_SESSION.c.group_id)
    .where(OFFERED_SESSION.c.run_id == sa.bindparam("run_id_"))
    .group_by(OFFERED_SESSION.c.group_id)
    .having(sa.func.count() == 1)
)
SINGLES = (
    sa.select(SOURCE_GROUP.c.source_run_id, sa.func.count())
    .where(
        SOURCE_GROUP.c.run_id == sa.bindparam("run_id_"),
        SOURCE_GROUP.c.state != SourceGroupState.LEFT_OUT.value,
        SOURCE_GROUP.c.group_id.in_(_ALONE),
    )
    .group_by(SOURCE_GROUP.c.source_run_id)
)


class OfferedSessions:
    """The table `offered_session`: sessions of the groups that a run may train on; of one that takes them as
    they come also those that it left out. Writes happen at once."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def add(self, run_id: str, groups: Sequence[SessionGroup]) -> None:
        """To a training run."""
        rows = [
            {**slots_of(row, _COLUMNS), "run_id": run_id, "task_digest": group.task_digest}
            for group in groups
            for row in group.rows()
        ]
        if rows:
            self._sql.execute(sa.insert(OFFERED_SESSION), rows)

    def members(self, run_id: str, group_id: str) -> list[EpisodeRow]:
        """Of a group that a run may train on."""
        return [self._episode(row) for row in self._of_group(run_id, group_id)]

    def task_digest(self, run_id: str, group_id: str) -> str:
        """Of the first prompt of a group; empty for one that the run has not."""
        return next((row.task_digest for row in self._of_group(run_id, group_id)), "")

    def singles(self, run_id: str) -> dict[str, int]:
        """How many groups of one a run may train on, by the run of their key."""
        return {source: count for source, count in self._sql.execute(SINGLES, {"run_id_": run_id})}

    def groups_of(self, run_id: str, episode_ids: Collection[str]) -> dict[str, str]:
        """Of sessions that a run may train on: their groups."""
        if not episode_ids:
            return {}
        wanted = {"run_id_": run_id, "episode_ids": sorted(episode_ids)}
        return {episode: group for episode, group in self._sql.execute(_GROUPS_OF, wanted)}

    def taken(self, episode_ids: Collection[str]) -> set[str]:
        """Of these, those that a run has with its trainer, or trained."""
        return self._among(_TAKEN, episode_ids)

    def seen(self, run_id: str, episode_ids: Collection[str]) -> set[str]:
        """Of these, those that a run has taken, or that it has looked at as they came."""
        return self._among(_SEEN, episode_ids, run_id_=run_id)

    def _among(self, query: sa.Select[Any], episode_ids: Collection[str], **wanted: str) -> set[str]:
        found: set[str] = set()
        ordered = sorted(episode_ids)
        for at in range(0, len(ordered), _CHUNK):
            chosen = {**wanted, "episode_ids": ordered[at : at + _CHUNK]}
            found.update(self._sql.execute(query, chosen).scalars())
        return found

    def _of_group(self, run_id: str, group_id: str) -> Sequence[Any]:
        return self._sql.execute(_OF_GROUP, {"run_id_": run_id, "group_id_": group_id}).all()

    @staticmethod
    def _episode(row: Any) -> EpisodeRow:
        values = {name: getattr(row, name) for name in _COLUMNS}
        return EpisodeRow(
            **values, run_id=row.run_id, attempt=0, task_position=0, taskset="", state=EpisodeState.EVALUATED
        )
