"""The numbers of a run, counted from the rows of some of its groups."""

from collections.abc import Sequence
from dataclasses import replace

import sqlalchemy as sa

from scenario_runner.adapters.tables import EPISODE, GROUP, TASK
from scenario_runner.domain.recounts import Recount
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY

_CHUNK = 500
_OF_GROUPS = GROUP.c.group_id.in_(sa.bindparam("group_ids", expanding=True))
_WAS_GRADED = EPISODE.c.graded_at.is_not(None)
_IS_MEMBER = EPISODE.c.group_id == GROUP.c.group_id
_HAS_NO_SOLUTION = sa.exists().where(
    TASK.c.taskset == GROUP.c.taskset,
    TASK.c.position == GROUP.c.task_position,
    TASK.c.family == IMPOSSIBLE_FAMILY,
)
GRADED_OF_GROUPS = (
    sa.select(
        GROUP.c.num_graded,
        sa.func.count(EPISODE.c.episode_id),
        sa.func.coalesce(sa.func.sum(sa.cast(EPISODE.c.success, sa.Integer)), 0),
        sa.func.coalesce(sa.func.sum(EPISODE.c.reward), 0.0),
        sa.or_(GROUP.c.guided_after != "", GROUP.c.new_task.is_not(None), _HAS_NO_SOLUTION),
    )
    .join_from(GROUP, EPISODE, _IS_MEMBER & _WAS_GRADED, isouter=True)
    .where(_OF_GROUPS)
    .group_by(
        GROUP.c.group_id,
        GROUP.c.num_graded,
        GROUP.c.guided_after,
        GROUP.c.new_task,
        GROUP.c.taskset,
        GROUP.c.task_position,
    )
)
_NUM_GRADED = sa.select(sa.func.count()).where(_IS_MEMBER, _WAS_GRADED).correlate(GROUP).scalar_subquery()
CORRECT_GROUPS = (
    sa.update(GROUP).where(_OF_GROUPS, GROUP.c.num_graded != _NUM_GRADED).values(num_graded=_NUM_GRADED)
)


def with_groups(sql: sa.Connection, recount: Recount, group_ids: Sequence[str]) -> Recount:
    """A recount that these groups, the next ones of the run, were added to. Nothing is written."""
    for start in range(0, len(group_ids), _CHUNK):
        for said, graded, successes, reward_sum, is_apart in sql.execute(
            GRADED_OF_GROUPS, {"group_ids": group_ids[start : start + _CHUNK]}
        ):
            recount = replace(recount, num_wrong=recount.num_wrong + (said != graded))
            if is_apart:
                continue
            recount = replace(
                recount,
                num_graded=recount.num_graded + graded,
                num_successes=recount.num_successes + successes,
                reward_sum=recount.reward_sum + reward_sum,
            )
    return replace(recount, num_groups=recount.num_groups + len(group_ids))


def correct_groups(sql: sa.Connection, group_ids: Sequence[str]) -> None:
    """Write how many members of these groups were graded, where they say something else."""
    for start in range(0, len(group_ids), _CHUNK):
        sql.execute(CORRECT_GROUPS, {"group_ids": group_ids[start : start + _CHUNK]})
