"""New tasks of a run as clients see them."""

from scenario_runner.domain.new_tasks import NewTaskRow, NewTasksReport, NewTaskState
from upcycle.api.taskset.v1 import taskset_pb2

_COUNTED = (
    NewTaskState.PLAYING,
    NewTaskState.RETIRED,
    NewTaskState.DUPLICATE,
    NewTaskState.HELD_OUT,
    NewTaskState.FILTERED,
    NewTaskState.FAILED,
)

_SHOWN = 10
_MAX_SHOWN_CHARS = 1000


def new_tasks_to_wire(report: NewTasksReport) -> taskset_pb2.NewTasks:
    """All of them in numbers, the newest as they are."""
    none_came = report.none_came
    return taskset_pb2.NewTasks(
        ordered=report.num_ordered,
        **{state.value: report.by_state.get(state, 0) for state in _COUNTED},
        groups=report.num_groups,
        trained=report.num_trained,
        left_out=report.num_left_out,
        episodes=report.num_graded,
        success_rate=report.num_successes / max(1, report.num_graded),
        last_failure=none_came[0].detail if none_came else "",
        newest=map(_new_task_to_wire, report.newest[:_SHOWN]),
    )


def _new_task_to_wire(row: NewTaskRow) -> taskset_pb2.NewTask:
    return taskset_pb2.NewTask(
        slug=row.slug,
        digest=row.digest,
        scenario=row.scenario,
        args_json=row.args_json if len(row.args_json) <= _MAX_SHOWN_CHARS else "",
        taskset=row.taskset,
        parent_slug=row.parent_slug,
        parent_digest=row.parent_digest,
        seed=row.seed,
        state=row.state.value,
        detail=row.detail,
        groups=row.num_groups,
        trained=row.num_trained,
        proposed_by=row.proposed_by,
    )
