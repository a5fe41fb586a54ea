"""What a policy did with guidance is no evidence: gate, watch, rollback and baselines read results here."""

from checkpoint_registry.domain.runs import tally
from checkpoint_registry.wire import runs as wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2, taskset_pb2


def result(member: int, *, success: bool, guided_after: str = "") -> taskset_pb2.EpisodeResult:
    return taskset_pb2.EpisodeResult(
        episode_id=f"e{member}",
        task_slug="disk",
        family="storage",
        member=member,
        status=taskset_pb2.EPISODE_STATUS_GRADED,
        success=success,
        sampled_by=common_pb2.VersionSpan(oldest=1, newest=1),
        guided_after=guided_after,
    )


def test_guided_episodes_are_left_out_of_what_a_run_shows() -> None:
    results = [result(0, success=False), result(1, success=True, guided_after="e9"), result(2, success=False)]
    answer = service_pb2.GetRunResponse(run=taskset_pb2.Run(run_id="run-1"), results=results)
    read = wire.run_from_wire(answer)
    assert [one.member for one in read.results] == [0, 2]
    found = tally(read.results)["disk"]
    assert (found.successes, found.attempts, found.missing) == (0, 2, 0)
