"""Records graded through the real service: one valid reward each, or one typed failure."""

import math
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from tests.services.reward_grader.conftest import Testbed, tree
from tests.services.rollout_sampler.doubles import EnvironmentDouble
from tests.support.waiting import until

from reward_grader.usecases import GradeTrajectory
from service_kit.ports import free_ports
from upcycle.api.environment.v1.service_pb2 import GradeRequest, GradeResponse
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.errors import Unavailable


def num_waits() -> float:
    """How often a record was put off because something was away, in this process."""
    labels = {"outcome": "later", "kind": ""}
    return REGISTRY.get_sample_value("upcycle_grader_trajectories_total", labels) or 0.0


async def test_the_environments_reward_becomes_a_self_sufficient_fact(bed: Testbed) -> None:
    bed.environments.grade = lambda _: GradeResponse(
        reward=0.75, success=True, subscores=[tree()], turn_rewards=[1.0, 0.25]
    )
    await bed.grader()
    record = await bed.record()
    await bed.publish(record)
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, fact.success, fact.subscores[0].children[0].name) == (0.75, True, "class")
    assert list(fact.turn_rewards) == [1.0, 0.25]
    for name in ("episode", "body", "sampled_by", "stop_reason", "num_turns", "num_sampled_tokens"):
        assert getattr(fact, name) == getattr(record, name), name
    (request,) = bed.environments.grades
    assert (request.lease_id, request.body) == ("lease-0", record.body)
    assert bed.environments.closed == []  # a grade ends its environment


@pytest.mark.parametrize(
    "answer",
    [
        GradeResponse(reward=math.nan),
        GradeResponse(reward=math.inf),
        GradeResponse(reward=0.5, turn_rewards=[0.5, 1.5]),
        GradeResponse(reward=0.5, turn_rewards=[math.nan]),
        GradeResponse(reward=0.5, subscores=[tree(1.5)]),
        GradeResponse(reward=0.5, subscores=[tree(-0.1)]),
        GradeResponse(reward=0.5, subscores=[tree(math.nan)]),
        GradeResponse(reward=0.5, subscores=[trajectory_pb2.Subscore(name="x", weight=math.inf, value=1)]),
    ],
)
async def test_a_reward_that_is_no_number_is_a_failure_and_never_a_reward(
    bed: Testbed, answer: GradeResponse
) -> None:
    bed.environments.grade = lambda _: answer
    await bed.grader()
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert (fact.kind, fact.reported_by) == ("reward_invalid", "reward_grader")
    await until(lambda: bed.environments.closed == ["lease-0"])


async def test_a_redelivery_after_the_lease_lapsed_cannot_undo_the_reward(bed: Testbed) -> None:
    """A crash between publishing and acknowledging: the environment is gone, the reward stands."""
    await bed.grader()
    record = await bed.record()
    await bed.publish(record)
    await bed.outcomes(1)
    bed.environments.open_leases.clear()
    await bed.publish(record, again="/redelivered")
    await bed.publish(await bed.record(1))
    facts = await bed.all_outcomes(num_records=3)
    assert [type(fact) for fact in facts] == [TrajectoryGraded, TrajectoryGraded]


async def test_an_environment_that_is_gone_is_lost_not_wrong(bed: Testbed) -> None:
    await bed.grader()
    record = await bed.record()
    bed.environments.open_leases.clear()
    await bed.publish(record)
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == "environment_lost"


async def test_a_replica_that_restarts_is_waited_for(bed: Testbed) -> None:
    (port,) = free_ports(1)
    replica = EnvironmentDouble()
    record = await bed.record()
    record.environment_address = f"127.0.0.1:{port}"
    await bed.grader(gone_after_s=20.0)
    tried = num_waits()
    await bed.publish(record)
    await until(lambda: num_waits() > tried)
    assert bed.events == []
    replica.open_leases["lease-0"] = record.episode.episode_id
    await replica.start(port)
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    await replica.stop()


async def test_a_replica_that_stays_away_is_lost_after_a_while(bed: Testbed) -> None:
    (port,) = free_ports(1)
    record = await bed.record()
    record.environment_address = f"127.0.0.1:{port}"
    await bed.grader(gone_after_s=1.0)
    await bed.publish(record)
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert (fact.kind, str(port) in fact.detail) == ("environment_lost", True)


@pytest.mark.parametrize(
    ("code", "sent", "kind"),
    [
        (grpc.StatusCode.ABORTED, None, "scenario_error"),
        (grpc.StatusCode.INTERNAL, None, "environment_lost"),
        (grpc.StatusCode.UNKNOWN, None, "environment_lost"),
        (grpc.StatusCode.ABORTED, "reward_invalid", "reward_invalid"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", "timeout"),
        (grpc.StatusCode.DATA_LOSS, None, "body_corrupt"),
        (grpc.StatusCode.DATA_LOSS, "body_corrupt", "body_corrupt"),
    ],
)
async def test_a_scenario_is_blamed_only_for_what_its_own_code_did_in_a_grade(
    bed: Testbed, code: grpc.StatusCode, sent: str | None, kind: str
) -> None:
    bed.environments.refuse, bed.environments.kind = (code, "it raised"), sent
    await bed.grader()
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, EpisodeFailed)
    assert fact.kind == kind


async def test_a_grade_that_takes_longer_than_a_call_is_asked_for_again(bed: Testbed) -> None:
    """As when a fresh instance of a scenario that hung is checked: the runner keeps its answer."""
    bed.environments.refuse = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    await bed.grader()
    await bed.publish(await bed.record())
    await until(lambda: bed.environments.num_grade_calls >= 1)
    bed.environments.refuse = None
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)


async def test_a_store_that_the_runner_cannot_read_is_waited_for_and_loses_no_environment(
    bed: Testbed,
) -> None:
    bed.environments.refuse = (grpc.StatusCode.UNAVAILABLE, "the object store is away")
    bed.environments.kind = "unavailable"
    await bed.grader(gone_after_s=0.01)
    await bed.publish(await bed.record())
    await until(lambda: bed.environments.num_grade_calls >= 2)
    assert bed.events == []
    bed.environments.refuse = None
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)


async def test_a_huge_reward_tree_is_cut_to_what_an_event_holds(bed: Testbed) -> None:
    leaves = [
        trajectory_pb2.Subscore(name=f"check-{n}", weight=1, value=1, info="x" * 5000) for n in range(500)
    ]
    bed.environments.grade = lambda _: GradeResponse(reward=1.0, success=True, subscores=leaves)
    await bed.grader()
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert isinstance(fact, TrajectoryGraded)
    assert (fact.reward, len(fact.subscores), fact.subscores[0].info) == (1.0, 500, "")


async def test_a_record_that_names_nothing_goes_to_the_dead_letters(bed: Testbed) -> None:
    await bed.grader()
    nameless = await bed.record()
    nameless.lease_id = ""
    await bed.publish(nameless)
    await bed.publish(await bed.record(1))
    (fact,) = await bed.all_outcomes(num_records=2)
    assert fact.episode.group_id.endswith("g00001")


async def test_a_bug_ends_the_episode_after_three_failures_and_a_wait_is_no_failure(
    bed: Testbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [Unavailable("the engines", retry_after_s=0.0)] * 2
    raised: list[Exception] = []

    async def surprise(*_: object) -> Any:
        raised.append(waits.pop() if waits else ZeroDivisionError("a bug"))
        raise raised[-1]

    monkeypatch.setattr(GradeTrajectory, "__call__", surprise)
    await bed.grader()
    await bed.publish(await bed.record())
    (fact,) = await bed.outcomes(1)
    assert fact.kind == "grader_error"
    assert [type(one) for one in raised] == [Unavailable] * 2 + [ZeroDivisionError] * 3


async def test_many_records_are_each_graded_once(bed: Testbed) -> None:
    def grade(request: GradeRequest) -> GradeResponse:
        return GradeResponse(reward=int(request.lease_id.split("-")[1]) / 100)

    bed.environments.grade = grade
    await bed.grader()
    for number in range(60):
        await bed.publish(await bed.record(number))
    facts = await bed.outcomes(60)
    assert sorted(fact.reward for fact in facts) == [number / 100 for number in range(60)]
    assert len(bed.environments.grades) == 60


async def test_each_score_is_an_event_on_the_span(bed: Testbed) -> None:
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    memory = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    bed.environments.grade = lambda _: GradeResponse(reward=0.75, success=True, subscores=[tree()])
    await bed.grader()
    await bed.publish(await bed.record())
    await bed.outcomes(1)
    await until(lambda: any(span.name == "grade" for span in memory.get_finished_spans()))
    (span,) = [span for span in memory.get_finished_spans() if span.name == "grade"]
    results = [dict(event.attributes or {}) for event in span.events]
    assert [event.name for event in span.events] == ["gen_ai.evaluation.result"] * 2
    assert results[0] == {
        "gen_ai.evaluation.name": "reward",
        "gen_ai.evaluation.score.value": 0.75,
        "gen_ai.evaluation.score.label": "pass",
    }
    assert results[1]["gen_ai.evaluation.name"] == "service"
    memory.shutdown()


FAILURE = trajectory_pb2.PolicyFailure(kind="answer_error", rule="a fresh instance", detail="KeyError: x")


async def test_what_the_policy_broke_is_graded_0_with_its_reason(bed: Testbed) -> None:
    broken = GradeResponse(reward=1.0, success=True, failure=FAILURE)  # whatever else it says
    bed.environments.grade = lambda _: broken
    await bed.grader()
    ended = await bed.record(1)
    ended.failure.CopyFrom(FAILURE)
    ended.failure.kind = "process_ended"
    await bed.publish(await bed.record())
    await bed.outcomes(1)
    await bed.publish(ended)
    graded, while_playing = await bed.outcomes(2)
    for fact, kind in ((graded, "answer_error"), (while_playing, "process_ended")):
        assert isinstance(fact, TrajectoryGraded)
        assert (fact.reward, fact.success) == (0.0, False)
        assert (fact.failure.kind, fact.failure.rule, fact.failure.detail) == (
            kind,
            FAILURE.rule,
            FAILURE.detail,
        )
    assert bed.environments.num_grade_calls == 1  # an episode that ended while playing is not graded
