"""What came of the groups of each task of a run, read in one statement; and what guided groups."""

from collections import Counter

import sqlalchemy as sa

from episodes import GroupOutcome, GroupReason
from scenario_runner.adapters.tables import EPISODE, GROUP
from scenario_runner.domain.task_sampler import TaskPast, added

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
