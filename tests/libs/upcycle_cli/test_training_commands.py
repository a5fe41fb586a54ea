"""`upcycle train --attach`, `upcycle runs …` and `upcycle train --sft` as a user meets them: the installed
command against services that say what the test wants."""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.support.command_line import run_upcycle

from grpc_edge import GrpcServer
from grpc_edge.access import OPEN
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1 import registry_pb2 as registry
from upcycle.api.registry.v1 import service_pb2 as registry_service
from upcycle.api.registry.v1.service_pb2_grpc import (
    RegistryServiceServicer,
    add_RegistryServiceServicer_to_server,
)
from upcycle.api.taskset.v1 import service_pb2 as taskset_service
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.api.taskset.v1.service_pb2_grpc import (
    TasksetServiceServicer,
    add_TasksetServiceServicer_to_server,
)
from upcycle.api.training.v1 import interactive_pb2 as interactive
from upcycle.api.training.v1 import service_pb2 as training_service
from upcycle.api.training.v1 import training_pb2 as training
from upcycle.api.training.v1.service_pb2_grpc import (
    TrainingServiceServicer,
    add_TrainingServiceServicer_to_server,
)
from upcycle.api.trajectory.v1 import service_pb2 as trajectory_service
from upcycle.api.trajectory.v1 import trajectory_pb2 as trajectory
from upcycle.api.trajectory.v1.service_pb2_grpc import (
    TrajectoryServiceServicer,
    add_TrajectoryServiceServicer_to_server,
)
from upcycle.platform import PEERS
from upcycle.task_rows import task_digest

UPCYCLE = Path(sys.executable).parent / "upcycle"
RUN = "run-000000000abc"


def run_message(state: "taskset.RunState.ValueType", step: int) -> taskset.Run:
    spec = taskset.RunSpec(
        taskset="incident-train",
        purpose=common.PURPOSE_TRAIN,
        policy=common.PolicySelector(model="incident"),
        training=taskset.TrainingConfig(steps=3),
        gate=taskset.GateConfig(taskset="incident-held"),
    )
    run = taskset.Run(run_id=RUN, spec=spec, state=state, step=step, policy_version=step, reward_mean=0.5)
    run.counts.by_state["trained"] = 8
    return run


class Platform(
    TasksetServiceServicer, TrainingServiceServicer, RegistryServiceServicer, TrajectoryServiceServicer
):
    """All services of a training run of three steps; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.steps = 0
        self.final = taskset.RUN_STATE_COMPLETED
        self.alarms: list[training.TrainingAlarm] = []
        self.trajectories: list[trajectory.TrajectorySummary] = []
        self.is_trainer_away = False
        self.goes_on = False
        self.held_out: set[str] = set()
        self.claimed: list[str] = []

    async def ClaimTasks(self, request: Any, context: Any) -> taskset_service.ClaimTasksResponse:
        for digest in request.task_digests:
            if digest in self.held_out:
                text = f"task {digest[:12]}… is held out: taskset judge claimed it, and it must never train"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        self.claimed += request.task_digests
        return taskset_service.ClaimTasksResponse(claimed=len(request.task_digests))

    async def ListRuns(self, request: Any, context: Any) -> taskset_service.ListRunsResponse:
        return taskset_service.ListRunsResponse(runs=[run_message(taskset.RUN_STATE_RUNNING, 0)])

    async def GetTaskset(self, request: Any, context: Any) -> taskset_service.GetTasksetResponse:
        return taskset_service.GetTasksetResponse()

    async def SubmitRun(self, request: Any, context: Any) -> taskset_service.SubmitRunResponse:
        self.asked.append(request)
        return taskset_service.SubmitRunResponse(run=run_message(taskset.RUN_STATE_RUNNING, 0))

    async def GetRun(self, request: Any, context: Any) -> taskset_service.GetRunResponse:
        return taskset_service.GetRunResponse(run=run_message(taskset.RUN_STATE_RUNNING, 0))

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[taskset_service.WatchRunResponse]:
        for step in itertools.count() if self.goes_on else range(4):
            self.steps = min(step, 3)
            yield taskset_service.WatchRunResponse(run=run_message(taskset.RUN_STATE_RUNNING, step))
            await asyncio.sleep(0.2)
        yield taskset_service.WatchRunResponse(run=run_message(self.final, 3))

    async def PauseRun(self, request: Any, context: Any) -> taskset_service.PauseRunResponse:
        self.asked.append(request)
        return taskset_service.PauseRunResponse(run=run_message(taskset.RUN_STATE_PAUSED, 1))

    async def ResumeRun(self, request: Any, context: Any) -> taskset_service.ResumeRunResponse:
        self.asked.append(request)
        return taskset_service.ResumeRunResponse(run=run_message(taskset.RUN_STATE_RUNNING, 1))

    async def StopRun(self, request: Any, context: Any) -> taskset_service.StopRunResponse:
        self.asked.append(request)
        return taskset_service.StopRunResponse(run=run_message(taskset.RUN_STATE_DRAINING, 1))

    async def GetSession(self, request: Any, context: Any) -> training_service.GetSessionResponse:
        if self.is_trainer_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        state = training.SESSION_STATE_FINISHED if self.steps == 3 else training.SESSION_STATE_WAITING
        session = training.TrainingSession(run_id=RUN, state=state, step=self.steps, alarms=self.alarms)
        points = [
            training.StepPoint(
                step=step,
                version=step,
                metrics=training.TrainingMetrics(
                    values={"reward_mean": step / 4, "mismatch_kl": 1e-3, "tokens_per_s": 1234.0},
                    staleness={0: 2, 2: 2},
                ),
            )
            for step in range(1, self.steps + 1)
        ]
        return training_service.GetSessionResponse(session=session, steps=points)

    async def Step(self, request: Any, context: Any) -> training_service.StepResponse:
        self.asked.append(request)
        number = len(self.asked)
        result = interactive.OptimStepResult(
            step=number,
            version=number,
            checkpoint_id=f"ckpt-incident-v{number:08d}",
            model="incident",
            is_head=not request.keep_head,
        )
        return training_service.StepResponse(result=result, metrics={"loss": 2.0 / number}, num_datums=2)

    async def ListCheckpoints(self, request: Any, context: Any) -> registry_service.ListCheckpointsResponse:
        promoted = registry.Checkpoint(
            checkpoint_id="ckpt-incident-v00000003",
            run_id=RUN,
            step=3,
            state=registry.CHECKPOINT_STATE_PROMOTED,
            gate=registry.GateReport(candidate_rate=0.75),
            reason="better",
        )
        other = registry.Checkpoint(
            checkpoint_id="ckpt-incident-v00000001", run_id="run-other", state=registry.CHECKPOINT_STATE_HELD
        )
        listed = [other, promoted] if self.steps == 3 else [other]
        return registry_service.ListCheckpointsResponse(checkpoints=listed)

    async def ListTrajectories(
        self, request: Any, context: Any
    ) -> trajectory_service.ListTrajectoriesResponse:
        return trajectory_service.ListTrajectoriesResponse(trajectories=self.trajectories)


@asynccontextmanager
async def serving(services: Platform) -> AsyncIterator[dict[str, str]]:
    """The environment in which the command finds these services."""
    server = GrpcServer("127.0.0.1", 0, OPEN, grace_s=0.1)
    for add in (
        add_TasksetServiceServicer_to_server,
        add_TrainingServiceServicer_to_server,
        add_RegistryServiceServicer_to_server,
        add_TrajectoryServiceServicer_to_server,
    ):
        server.add(add, services)
    await server.start()
    clean = {key: value for key, value in os.environ.items() if not key.startswith("UPCYCLE_")}
    peers = {f"UPCYCLE_PEERS_{peer.upper()}": server.address for peer in PEERS}
    yield {**clean, **peers, "COLUMNS": "200"}
    await server.stop()


@pytest.fixture
async def platform() -> AsyncIterator[tuple[Platform, dict[str, str]]]:
    """Services, and the environment in which the command finds them."""
    services = Platform()  # type: ignore[abstract]
    async with serving(services) as environment:
        yield services, environment


async def upcycle(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    return await run_upcycle(*arguments, env=environment)


async def test_attached_without_a_terminal_events_are_lines(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    services.alarms = [training.TrainingAlarm(kind="mismatch_kl", text="too far apart", since_step=8)]
    status, out, err = await upcycle(environment, "train", "--attach", "last")
    assert status == 0, err
    lines = err.splitlines()
    assert f"{RUN} is running" in lines
    steps = [line for line in lines if line.startswith("step ")]
    numbers = [line.split()[1] for line in steps]
    assert numbers in (["1", "3"], ["1", "2", "3"])  # at a bounded rate; the first and the last one always
    assert "reward 0.750" in steps[-1]
    assert "staleness 1.0" in steps[-1]
    assert "alarm mismatch_kl: too far apart" in lines
    assert "ckpt-incident-v00000003 promoted, held-out 75.0%: better" in lines
    assert f"{RUN} is completed" in lines
    assert out.startswith(f"{RUN}: 3 steps, v3, reward 0.500")


async def test_attached_json_lines_and_the_exit_status_of_a_run_that_failed(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    services.final = taskset.RUN_STATE_FAILED
    status, out, _ = await upcycle(environment, "train", "--attach", RUN, "--json")
    assert status == 1
    kinds = [json.loads(line)["kind"] for line in out.splitlines()]
    assert kinds.count("step") == 3
    assert {"progress", "checkpoint"} <= set(kinds)
    assert kinds[-1] == "done"


async def test_a_trainer_that_is_away_is_named_and_the_run_is_followed_to_its_end(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    services.is_trainer_away = True
    status, out, err = await upcycle(environment, "train", "--attach", RUN)
    assert status == 0
    assert "trainer does not answer" in err
    assert out.startswith(f"{RUN}: 3 steps")


async def test_detached_prints_the_run_id_and_asks_for_what_was_said(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    recipe = "--steps 7 --group 4 --prompts 2 --lora-rank 8 --gate held"
    curve = "--lr-schedule cosine --warmup-steps 2 --min-lr-fraction 0.1"
    options = [*recipe.split(), *curve.split(), "--detach"]
    status, out, err = await upcycle(environment, "train", "incident", "--taskset", "sums", *options)
    assert (status, out) == (0, f"{RUN}\n"), err
    spec = services.asked[0].spec
    assert (spec.taskset, spec.policy.model, spec.group_size) == ("sums", "incident", 4)
    assert (spec.training.steps, spec.training.prompts_per_step, spec.training.lora_rank) == (7, 2, 8)
    asked = (spec.training.lr_schedule, spec.training.warmup_steps, spec.training.min_lr_fraction)
    assert asked == ("cosine", 2, 0.1)
    assert (spec.gate.taskset, spec.gate.attempts) == ("held", 16)
    assert (await upcycle(environment, "train", "incident"))[0] == 2
    unknown = ("--taskset", "sums", "--lr-schedule", "cubic")
    status, _, err = await upcycle(environment, "train", "incident", *unknown)
    assert status == 2
    assert "cosine" in err


async def test_an_interrupt_leaves_the_run_going_and_says_how_to_come_back(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    services.goes_on = True
    # A background job of a shell ignores SIGINT, and so would the programs that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = await asyncio.create_subprocess_exec(
        str(UPCYCLE), "train", "--attach", RUN, env=environment, stderr=asyncio.subprocess.PIPE
    )
    signal.signal(signal.SIGINT, before)
    assert child.stderr is not None
    async with asyncio.timeout(120):
        line = b""
        while not line.startswith(b"step 1"):
            line = await child.stderr.readline()
            assert line, "it ended before the first step"
        child.send_signal(signal.SIGINT)
        rest = await child.stderr.read()
        assert await child.wait() == 130
    assert f"the run may go on: upcycle train --attach {RUN}" in rest.decode()
    assert not services.asked


async def test_a_run_is_paused_resumed_and_stopped_by_name(platform: tuple[Platform, dict[str, str]]) -> None:
    services, environment = platform
    for action, state in (("pause", "paused"), ("resume", "running"), ("stop", "draining")):
        status, out, _ = await upcycle(environment, "runs", action, "last", "--json")
        assert status == 0
        assert json.loads(out)["state"] == f"RUN_STATE_{state.upper()}"
    assert [type(one).__name__ for one in services.asked] == [
        "PauseRunRequest",
        "ResumeRunRequest",
        "StopRunRequest",
    ]
    assert {one.run_id for one in services.asked} == {RUN}
    assert (await upcycle(environment, "runs", "stop", RUN, "--wait"))[0] == 0
    services.final = taskset.RUN_STATE_CANCELLED
    assert (await upcycle(environment, "runs", "stop", RUN, "--wait"))[0] == 1
    assert (await upcycle(environment, "runs", "pause"))[0] == 2


async def test_sft_on_a_file_moves_head_with_its_last_step_only(
    platform: tuple[Platform, dict[str, str]], tmp_path: Path
) -> None:
    services, environment = platform
    talk = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    triple = {"prompt": talk["messages"][:1], "completion": talk["messages"][1:], "reward": 1.0}
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(map(json.dumps, [talk, triple, talk])) + "\n")
    arguments = ("train", "incident", "--sft", str(path), "--batch", "2", "--learning-rate", "1e-3")
    status, out, err = await upcycle(environment, *arguments)
    assert status == 0, err
    assert [len(one.batch.inputs) for one in services.asked] == [2, 1]
    assert [one.keep_head for one in services.asked] == [True, False]
    assert [one.persist == interactive.PERSIST_NONE for one in services.asked] == [True, False]
    assert {one.loss.name for one in services.asked} == {"cross_entropy"}
    assert {one.adam.learning_rate for one in services.asked} == {1e-3}
    assert [m.role for m in services.asked[0].batch.inputs[0].conversation.messages] == ["user", "assistant"]
    assert out == "incident: v2, ckpt-incident-v00000002, loss 1.0000; head serves it\n"
    status, _, err = await upcycle(environment, *arguments, "--warmup-steps", "1")
    assert status == 2
    assert "each step brings its own learning_rate" in err


async def test_sft_on_a_file_with_a_held_out_task_names_its_line_and_trains_nothing(
    platform: tuple[Platform, dict[str, str]], tmp_path: Path
) -> None:
    """The held-out line is in the last of three batches, and is found before the first. An exported line has
    the digest of its task; one that a person writes names the task."""
    services, environment = platform
    talk = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    exported, written = "a" * 64, {"environment": "sums", "scenario": "add", "args": {"b": 2, "a": 1.0}}
    secret = task_digest("sums", "add", '{"a": 1, "b": 2}')
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(json.dumps({**talk, "task": one}) for one in (exported, "", written)) + "\n")
    arguments = ("train", "incident", "--sft", str(path), "--batch", "1")
    services.held_out.add(secret)
    status, _, err = await upcycle(environment, *arguments)
    assert status == 2
    assert "talks.jsonl:3: the check of held-out tasks: " in err
    assert f"task {secret[:12]}… is held out: taskset judge claimed it" in err
    assert (services.asked, services.claimed) == ([], [])
    services.held_out.clear()
    status, _, err = await upcycle(environment, *arguments)
    assert status == 0, err
    assert "1 of 3 conversations name no task: not compared with held-out tasks" in err
    assert services.claimed == sorted([exported, secret])
    inputs = [one for step in services.asked for one in step.batch.inputs]
    assert sorted(one.task_digest for one in inputs) == ["", *services.claimed]
    path.write_text(json.dumps({**talk, "task": "sums"}))
    status, _, err = await upcycle(environment, *arguments)
    assert status == 2
    assert "talks.jsonl:1: `task` is 'sums'; give the digest that `upcycle trajectories export` writes" in err


async def test_sft_on_a_run_takes_its_successes_and_never_held_out_tasks(
    platform: tuple[Platform, dict[str, str]],
) -> None:
    services, environment = platform
    rows = [
        ("good", True, common.SPLIT_TRAIN),
        ("bad", False, common.SPLIT_TRAIN),
        ("secret", True, common.SPLIT_HELD_OUT),
        ("new", True, common.SPLIT_UNASSIGNED),  # the trainer claims its task in the same pass
    ]
    services.trajectories = [
        trajectory.TrajectorySummary(
            episode=common.EpisodeIdentity(trajectory_id=name, split=split, task_digest=name),
            graded=True,
            success=success,
        )
        for name, success, split in rows
    ]
    status, _, err = await upcycle(environment, "train", "incident", "--sft-from", RUN, "--json")
    assert status == 0, err
    (step,) = services.asked
    assert sorted(one.trajectory_id for one in step.batch.inputs) == ["good", "new"]
    assert services.claimed == ["good", "new"]
    services.trajectories = services.trajectories[1:3]
    status, _, err = await upcycle(environment, "train", "incident", "--sft-from", RUN)
    assert status == 2
    assert "1 of these are of held-out or audit tasks" in err
