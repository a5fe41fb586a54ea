"""What the registry orders, as the planner keeps and lists it."""

from dataclasses import replace

import grpc
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import arith, refusal, register, run_spec, submit

from checkpoint_registry.domain.evidence import SamplingProfile
from checkpoint_registry.domain.runs import EvaluationOrder
from checkpoint_registry.wire import runs as wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import service_pb2

ORDER = EvaluationOrder(
    request_id="watch/incident/r2/0",
    model="incident",
    version=1,
    against_version=0,
    taskset="sums",
    families=(),
    attempts=1,
    profile=SamplingProfile(1.0, 1.0, 8, 128, 2048),
    seed=(1 << 61) + 12345,
    label="watch incident@v1 against v0",
    draws=50,
    max_concurrent=8,
)


async def test_an_order_that_is_repeated_with_other_figures_is_found_among_the_runs(runner: Runner) -> None:
    await register(runner, arith(4, split=common_pb2.SPLIT_HELD_OUT))
    submitted = await runner.tasksets.SubmitRun(wire.order_to_wire(ORDER))
    again = replace(ORDER, draws=5, max_concurrent=2)
    refused = await refusal(runner.tasksets.SubmitRun(wire.order_to_wire(again)))
    assert refused.code() is grpc.StatusCode.ALREADY_EXISTS
    listed = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest(model="incident", unfinished=True))
    found = [run.run_id for run in listed.runs if wire.is_ordered_by(run.spec, again)]
    assert found == [submitted.run.run_id]


async def test_of_many_runs_of_the_registry_the_one_that_somebody_asked_for_is_listed(runner: Runner) -> None:
    await register(runner, arith(4, split=common_pb2.SPLIT_HELD_OUT))
    mine = await submit(runner, run_spec())
    for number in range(3):
        order = replace(ORDER, request_id=f"watch/incident/r2/{number}")
        await runner.tasksets.SubmitRun(wire.order_to_wire(order))
    newest = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest(limit=2))
    assert [run.spec.label for run in newest.runs] == [ORDER.label] * 2
    listed = await runner.tasksets.ListRuns(service_pb2.ListRunsRequest(limit=2, asked_for=True))
    assert [run.run_id for run in listed.runs] == [mine.run_id]
