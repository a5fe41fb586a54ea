"""What came of the groups of each task of a run, read in one statement."""

import sqlalchemy as sa

from episodes import GroupOutcome, GroupReason
from scenario_runner.adapters.tables import GROUP
from scenario_runner.domain.task_sampler import TaskPast, added

_FLAT = f"{GroupOutcome.EXCLUDED.value}({GroupReason.ZERO_SPREAD.value})"
_PASTS = (
    sa.select(GROUP.c.task_position, GROUP.c.outcome, sa.func.count(), sa.func.max(GROUP.c.position))
    .where(GROUP.c.run_id == sa.bindparam("run_id_"), GROUP.c.taskset == sa.bindparam("taskset_"))
    .where(GROUP.c.position >= sa.bindparam("since"), GROUP.c.guided_after == "")
    .group_by(GROUP.c.task_position, GROUP.c.outcome)
)


class TaskPasts:
    """The groups of a run's tasks in one transaction, part of a PlanUnit."""

    def __init__(self, connection: sa.Connection) -> None:
        self._sql = connection

    def of(self, run_id: str, taskset: str, since: int) -> dict[int, TaskPast]:
        """By task of a taskset that the run plays, of its groups from this position on, open ones included.
        What a task taught with guidance says nothing of it without: guided groups are left out."""
        found: dict[int, TaskPast] = {}
        wanted = {"run_id_": run_id, "taskset_": taskset, "since": since}
        for task, outcome, count, newest in self._sql.execute(_PASTS, wanted):
            trained = count if outcome == GroupOutcome.TRAINED.value else 0
            flat = count if outcome == _FLAT else 0
            found[task] = added(found, task, trained=trained, flat=flat, newest=newest)
        return found
