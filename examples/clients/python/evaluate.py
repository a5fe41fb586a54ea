"""Evaluates a model with gRPC alone: python evaluate.py HOST:PORT MODEL ENVIRONMENT.py"""

import json
import os
import sys
import uuid
from pathlib import Path

import grpc

from upcycle.api.common.v1.common_pb2 import CHANNEL_HEAD, PURPOSE_EVAL, SPLIT_TRAIN, PolicySelector
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub


def main(address: str, model: str, environment: str) -> None:
    """Registers three tasks, plays each four times, prints what each play earned."""
    planner = TasksetServiceStub(grpc.insecure_channel(address))
    key = (("authorization", f"Bearer {os.environ['UPCYCLE_OPERATOR_KEY']}"),)
    code = ts.PythonSource(path=str(Path(environment).resolve()))
    taskset = ts.Taskset(
        name="from-python", split=SPLIT_TRAIN, environment=ts.EnvironmentSpec(name="triage", python=code)
    )
    for service in ("koala-cart", "lunar-mail", "maple-auth"):
        arguments = json.dumps({"service": service, "log": "worker killed, heap full"})
        taskset.tasks.add(slug=service, scenario="triage", args_json=arguments)
    registered = planner.RegisterTaskset(pb.RegisterTasksetRequest(taskset=taskset), timeout=60, metadata=key)
    print(f"{registered.name}: {registered.num_tasks} tasks, revision {registered.revision}")

    spec = ts.RunSpec(
        taskset=registered.name,
        purpose=PURPOSE_EVAL,
        policy=PolicySelector(model=model, channel=CHANNEL_HEAD),
        group_size=4,
        sampling=ts.SamplingConfig(max_turns=1, max_tokens_per_turn=64),
    )
    # Sent again, the same request id makes no second run.
    request = pb.SubmitRunRequest(request_id=uuid.uuid4().hex, spec=spec)
    run_id = planner.SubmitRun(request, timeout=30, metadata=key).run.run_id
    *_, last = planner.WatchRun(pb.WatchRunRequest(run_id=run_id), timeout=600, metadata=key)
    counts, state = last.run.counts, ts.RunState.Name(last.run.state)
    print(f"{run_id} {state} {counts.settled} of {counts.requested} episodes settled")

    question = pb.GetRunRequest(run_id=run_id, include_results=True)
    for one in planner.GetRun(question, timeout=30, metadata=key).results:
        print(f"{one.task_slug} member {one.member} reward {one.reward:.2f} {one.trajectory_id}")


if __name__ == "__main__":
    main(*sys.argv[1:])
