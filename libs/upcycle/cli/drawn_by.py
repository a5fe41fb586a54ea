"""Which running training run draws from an evaluation."""

from typing import TYPE_CHECKING

from upcycle.cli.group_outcomes import source_text
from upcycle.tasks import plain_name

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.taskset_pb2 import Run, SourceReport
    from upcycle.platform import Platform


async def drawing_run(platform: "Platform", evaluation: "Run") -> "Run | None":
    """The unfinished training run that trains, or may train, on groups of an evaluation; None if there is
    none. Also None while the planner does not answer, because the evaluation's own result does not need
    it.
    """
    import grpc

    from upcycle.api.taskset.v1.service_pb2 import ListRunsRequest

    request = ListRunsRequest(model=evaluation.spec.policy.model, unfinished=True)
    try:
        listed = await platform.tasksets.ListRuns(request, timeout=10)
    except grpc.aio.AioRpcError:
        return None
    return next((run for run in listed.runs if _may_draw(run, evaluation)), None)


def report_on(training: "Run", evaluation_id: str) -> "SourceReport | None":
    """What a training run reports of one evaluation; None before it has read the evaluation."""
    return next((one for one in training.sources if one.run_id == evaluation_id), None)


def drawn_text(evaluation: "Run", training: "Run | None") -> str:
    """The line under the report of an evaluation that may train."""
    model, taskset = evaluation.spec.policy.model, plain_name(evaluation.spec.taskset)
    if training is None:
        return (
            f"no running training run of {model} on {taskset} draws from it; "
            f"its groups can train later: upcycle train {model} --from {evaluation.run_id}"
        )
    found = report_on(training, evaluation.run_id)
    if found is None:
        return f"{training.run_id} may draw from it and has taken no group yet"
    return f"{training.run_id} draws from it: {source_text(found)}"


def _may_draw(training: "Run", evaluation: "Run") -> bool:
    from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN

    if training.spec.purpose != PURPOSE_TRAIN:
        return False
    if report_on(training, evaluation.run_id) is not None:
        return True
    same = plain_name(training.spec.taskset) == plain_name(evaluation.spec.taskset)
    return same and training.spec.policy.model == evaluation.spec.policy.model
