"""What came of the groups of each task of a run, read in one statement; and what guided groups."""

from collections import Counter

import sqlalchemy as sa

from episodes import GroupOutcome, GroupReason
from scenario_runner.adapters.tables import EPISODE, GROUP, NEW_TASK, TASK
from scenario_runner.domain.new_tasks import NewTaskRow
from scenario_runner.domain.task_sampler import TaskPast, added
from sql_store import owned

_FLAT = f"{GroupOutcome.EXCLUDED.value}({GroupReason.ZERO_SPREAD.value})"
_PASTS = (
    sa.select(GROUP.c.task_position, GROUP.c.outcome, sa.func.count(), sa.func.max(GROUP.c.position))
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), GROUP.c.taskset == sa.bindparam("taskset_"))
    .where(GROUP.c.position >= sa.bindparam("since"), GROUP.c.guided_after == "")
    .where(GROUP.c.new_task.is_(None))
    .group_by(GROUP.c.task_position, GROUP.c.outcome)
)
_KINDS = (
    sa.select(EPISODE.c.group_id, EPISODE.c.guidance_kinds)
    .where(EPISODE.c.run_id == sa.bindparam("run_id_"), EPISODE.c.guidance_kinds != "")
    .distinct()
)

_GRADED = (sa.func.count(), sa.func.coalesce(sa.func.sum(sa.cast(EPISODE.c.success, sa.Integer)), 0))
_IS_RECENT = sa.and_(
    GROUP.c.run_id == sa.bindparam("run_id_"),
    GROUP.c.taskset == sa.bindparam("taskset_"),
    GROUP.c.position >= sa.bindparam("since"),
    GROUP.c.guided_after == "",
)
_WAS_GRADED = sa.and_(EPISODE.c.group_id == GROUP.c.group_id, EPISODE.c.graded_at.is_not(None))
_AT_TASKS = (
    sa.select(TASK.c.args_json, *_GRADED)
    .select_from(GROUP)
    .join(EPISODE, _WAS_GRADED)
    .join(TASK, owned(TASK, taskset=GROUP.c.taskset, position=GROUP.c.task_position))
    .where(_IS_RECENT, GROUP.c.new_task.is_(None))
    .where(TASK.c.scenario == sa.bindparam("scenario_"), TASK.c.family == sa.bindparam("family_"))
    .group_by(TASK.c.args_json)
)
_AT_NEW_TASKS = (
    sa.select(NEW_TASK.c.args_json, *_GRADED)
    .select_from(GROUP)
    .join(EPISODE, _WAS_GRADED)
    .join(NEW_TASK, sa.and_(NEW_TASK.c.run_id == GROUP.c.run_id, NEW_TASK.c.number == GROUP.c.new_task))
    .where(_IS_RECENT)
    .where(NEW_TASK.c.scenario == sa.bindparam("scenario_"), NEW_TASK.c.family == sa.bindparam("family_"))
    .group_by(NEW_TASK.c.args_json)
)


class TaskPasts:
    """The groups of a run's tasks in one transaction, part of a PlanUnit."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def of(self, run_id: str, taskset: str, since: int) -> dict[int, TaskPast]:
        """By task of a taskset that the run plays, of its groups from this position on, open ones included.
        What a task taught with guidance says nothing of it without: guided groups are left out. So are those
        on new tasks that descend from it."""
        found: dict[int, TaskPast] = {}
        wanted = {"run_id_": run_id, "taskset_": taskset, "since": since}
        for task, outcome, count, newest in self._sql.execute(_PASTS, wanted):
            trained = count if outcome == GroupOutcome.TRAINED.value else 0
            flat = count if outcome == _FLAT else 0
            found[task] = added(found, task, trained=trained, flat=flat, newest=newest)
        return found

    def guidance_kinds(self, run_id: str) -> dict[str, int]:
        """Of the guided groups of a run with a graded episode, how many have a part of each kind."""
        rows = self._sql.execute(_KINDS, {"run_id_": run_id})
        pairs = {(group_id, kind) for group_id, kinds in rows for kind in kinds.split(",")}
        return dict(Counter(kind for _, kind in pairs))

    def attempts(self, row: NewTaskRow, since: int) -> list[tuple[str, int, int]]:
        """At tasks and new tasks of the scenario and the family of a new one, in the groups of its taskset
        from this position on, guided ones left out: arguments, how many were graded, and how many of them
        succeeded."""
        wanted = {
            "run_id_": row.run_id,
            "taskset_": row.taskset,
            "since": since,
            "scenario_": row.scenario,
            "family_": row.family,
        }
        rows = [*self._sql.execute(_AT_TASKS, wanted), *self._sql.execute(_AT_NEW_TASKS, wanted)]
        return [(args_json, graded, successes) for args_json, graded, successes in rows]
