"""Evaluate, then train on what was sampled, with gRPC alone: python grpc_client.py HOST:PORT MODEL ENV.py"""

import os
import sys
import uuid

import grpc

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.api.taskset.v1.service_pb2_grpc import TasksetServiceStub

KEY = (("authorization", f"Bearer {os.environ['UPCYCLE_OPERATOR_KEY']}"),)


def over(planner: TasksetServiceStub, spec: ts.RunSpec) -> ts.Run:
    """Submit a run (the same request id never makes a second one) and watch it until it is over."""
    request = pb.SubmitRunRequest(request_id=uuid.uuid4().hex, spec=spec)
    run_id = planner.SubmitRun(request, timeout=30, metadata=KEY).run.run_id
    *_, last = planner.WatchRun(pb.WatchRunRequest(run_id=run_id), timeout=3600, metadata=KEY)
    state = ts.RunState.Name(last.run.state)
    print(run_id, state, f"reward {last.run.reward_mean:.3f}", f"step {last.run.step}", last.run.failure)
    return last.run


def main(address: str, model: str, environment: str) -> None:
    """Registers 24 incidents, measures them in groups of 8, trains two steps on what was measured."""
    planner = TasksetServiceStub(grpc.insecure_channel(address))
    code = ts.EnvironmentSpec(name="incident", python=ts.PythonSource(path=environment))
    arguments = [f'{{"seed":{seed},"split":"train"}}' for seed in range(24)]
    rows = [ts.Task(slug=args, scenario="investigate", args_json=args) for args in arguments]
    tasks = ts.Taskset(name="my-incidents", split=common.SPLIT_TRAIN, environment=code, tasks=rows)
    planner.RegisterTaskset(pb.RegisterTasksetRequest(taskset=tasks), timeout=60, metadata=KEY)

    spec = ts.RunSpec(taskset="my-incidents", purpose=common.PURPOSE_EVAL, group_size=8)
    spec.policy.CopyFrom(common.PolicySelector(model=model, channel=common.CHANNEL_HEAD))
    measured = over(planner, spec)

    spec.purpose, spec.policy.channel, spec.no_sampling = common.PURPOSE_TRAIN, common.CHANNEL_LATEST, True
    spec.source_runs.append(measured.run_id)
    spec.training.CopyFrom(ts.TrainingConfig(steps=2, prompts_per_step=4, learning_rate=5e-4))
    for source in over(planner, spec).sources:
        print(f"{source.trained} of {source.groups} groups trained; left out: {dict(source.left_out)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
