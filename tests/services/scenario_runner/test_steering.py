"""Pause, resume and stop over gRPC, on the running service and a real bus."""

import grpc
import pytest
from tests.facts import newest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import (
    TRAIN,
    arith,
    explain,
    finished,
    refusal,
    register,
    run_spec,
    submit,
    until,
)

from upcycle.api.taskset.v1 import events_pb2, service_pb2, taskset_pb2

TRAINING = taskset_pb2.TrainingConfig(steps=5, prompts_per_step=2, max_staleness=1)


async def test_a_paused_run_is_resumed_and_stopped_by_run_stopping(runner: Runner) -> None:
    await register(runner, arith(3))
    run = await submit(runner, run_spec(TRAIN, 2, training=TRAINING))
    paused = await runner.tasksets.PauseRun(service_pb2.PauseRunRequest(run_id=run.run_id))
    assert paused.run.state == taskset_pb2.RUN_STATE_PAUSED
    why = await explain(runner, run.run_id)
    assert why.waiting_for[0].remedy == f"resume it: upcycle runs resume {run.run_id}"
    resumed = await runner.tasksets.ResumeRun(service_pb2.ResumeRunRequest(run_id=run.run_id))
    assert resumed.run.state == taskset_pb2.RUN_STATE_RUNNING
    await until(runner, run.run_id, lambda counts: counts.groups_open == 4)
    stopping = await runner.tasksets.StopRun(service_pb2.StopRunRequest(run_id=run.run_id, reason="enough"))
    assert stopping.run.state in (taskset_pb2.RUN_STATE_DRAINING, taskset_pb2.RUN_STATE_COMPLETED)
    done = (await finished(runner, run.run_id)).run  # nothing was graded: our own word is all it waits for
    assert (done.state, done.counts.by_state["cancelled"]) == (taskset_pb2.RUN_STATE_COMPLETED, 8)
    fact = await newest(runner.bus, events_pb2.RunStopping, model="incident")
    assert fact is not None
    assert (fact.message.run_id, fact.message.reason) == (run.run_id, "enough")
    again = await runner.tasksets.StopRun(service_pb2.StopRunRequest(run_id=run.run_id))
    assert again.run.state == taskset_pb2.RUN_STATE_COMPLETED


@pytest.mark.parametrize("name", ["Pause", "Resume", "Stop"])
async def test_what_cannot_be_steered_is_refused_with_its_reason(runner: Runner, name: str) -> None:
    call, request = getattr(runner.tasksets, f"{name}Run"), getattr(service_pb2, f"{name}RunRequest")
    unknown = await refusal(call(request(run_id="run-nope")))
    assert unknown.code() is grpc.StatusCode.NOT_FOUND
    await register(runner, arith(3))
    run = await submit(runner, run_spec())
    await runner.tasksets.CancelRun(service_pb2.CancelRunRequest(run_id=run.run_id))
    error = await refusal(call(request(run_id=run.run_id)))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert ("evaluation" if name == "Stop" else "cancelled") in (error.details() or "")
