"""Run tasks on a platform and read what came of them: thin clients of TasksetService and TrajectoryService.

The platform samples and grades; nothing runs in the caller's process. Every evaluation is also training
data: its trajectories stay in the store, with tokens and log-probabilities.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from upcycle.errors import UpcycleError
from upcycle.scenario import ToolUse, Transcript, Turn
from upcycle.tasks import Task, Taskset, exact_name

if TYPE_CHECKING:
    from upcycle.agents import Agent
    from upcycle.api.taskset.v1.service_pb2 import GetRunResponse
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult, RunSpec
    from upcycle.api.taskset.v1.taskset_pb2 import Run as WireRun
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
    from upcycle.platform import Addresses, Platform
    from upcycle.run_specs import TrainKeywords
    from upcycle.train.running import TrainedRun

# Trajectories are read this many at a time, and waited for this long: the store's index follows the run's
# end.
READ_CONCURRENCY = 16
INDEX_WAIT_S = 15.0
# Registering imports the environment on the runner's side.
REGISTER_TIMEOUT_S = 120.0

DAY_S = 86_400.0


class EvaluationFailed(UpcycleError):
    """The run ended without a result for every episode, or was cancelled."""

    kind = "evaluation_failed"


@dataclass(frozen=True, slots=True)
class Run:
    """One played and graded episode.

    trace_id: the id of its trajectory in the store (`traj-…`), which `TrainingClient.step` takes as an input;
    not an OpenTelemetry trace. otel_trace_id: the OpenTelemetry trace of the evaluation, 32 hex digits; empty
    where the platform records none. failure: why there is no reward (reward is then 0 and means nothing).
    run_id: of the evaluation that the episode belongs to.
    """

    task_slug: str
    reward: float
    success: bool
    trace_id: str
    episode_id: str
    failure: str = ""
    trajectory: Transcript | None = field(default=None, repr=False)
    answer: str = field(default="", repr=False)
    run_id: str = ""
    otel_trace_id: str = ""

    @property
    def is_error(self) -> bool:
        """No reward exists for this episode."""
        return bool(self.failure)


class Job:
    """Several evaluations of one model under one heading; `runs` grows with each.

    session = await Job.start("incident", group=8)
    await taskset.run(agent, job=session)
    rewards = [run.reward for run in session.runs]
    trained = await session.train(steps=2, prompts=8, learning_rate=1e-5)
    """

    def __init__(self, model: str, group: int, label: str) -> None:
        self.model = model
        self.group = group
        self.label = label
        self.runs: list[Run] = []

    @classmethod
    async def start(cls, model: str, *, group: int = 1, label: str = "") -> Self:
        """group: plays of each task."""
        if group < 1:
            raise UpcycleError(f"group is {group}", "play each task at least once")
        return cls(model, group, label or f"job-{uuid.uuid4().hex[:8]}")

    @property
    def run_ids(self) -> list[str]:
        """Run ids of the job's evaluations, oldest first."""
        return list(dict.fromkeys(run.run_id for run in self.runs if run.run_id))

    async def train(
        self,
        model: str | None = None,
        *,
        taskset: "Taskset | str | None" = None,
        sampling: bool = True,
        runtime: "Platform | Addresses | None" = None,
        timeout_s: float = DAY_S,
        **options: "Unpack[TrainKeywords]",
    ) -> "TrainedRun":
        """Train on the job's evaluations, and wait until the run is over: `TrainingClient.train_on(run_ids)`.

        model: by default the job's. Without `group` in the options the run samples groups as large as the
        job's. Raises what train_on raises, and EvaluationFailed for a job that has nothing to compare.
        """
        from upcycle.train import TrainingClient

        if self.group < 2:
            raise EvaluationFailed(
                f"the job plays each task {self.group} time: rewards are compared within a group",
                "Job.start(model, group=8), then evaluate again",
            )
        client = TrainingClient(model or self.model, runtime=runtime)
        chosen: TrainKeywords = {"group": self.group, **options}
        return await client.train_on(
            self.run_ids, taskset=taskset, sampling=sampling, timeout_s=timeout_s, **chosen
        )


class EvalOptions(TypedDict, total=False):
    """Of an evaluation. label: free text for people; trainable: a running training run of the same model and
    taskset may draw its groups, each once, so the newest published weights play instead of head."""

    label: str
    trainable: bool


class EvalContext:
    """`async with upcycle.eval(task) as ctx: run = await agent.run(ctx)`."""

    def __init__(self, tasks: Task | Taskset | Sequence[Task], *, group: int, runtime: Any = None) -> None:
        self.taskset = as_taskset(tasks)
        self.group = group
        self.runtime = runtime
        self.runs: list[Run] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held between calls."""

    @property
    def reward(self) -> float:
        """Mean over the episodes that have a reward. Raises EvaluationFailed when none has."""
        rewards = [run.reward for run in self.runs if not run.is_error]
        if not rewards:
            raise EvaluationFailed("no episode was graded yet", "await agent.run(ctx) first")
        return sum(rewards) / len(rewards)


def evaluation_of(
    tasks: Task | Taskset | Sequence[Task], *, group: int = 1, runtime: "Platform | Addresses | None" = None
) -> EvalContext:
    """What `upcycle.eval(…)` is: a task, several, or a taskset, each to be played `group` times.

    runtime: where (a Platform or its Addresses); by default the platform that is found.
    """
    return EvalContext(tasks, group=group, runtime=runtime)


def as_taskset(tasks: Task | Taskset | Sequence[Task]) -> Taskset:
    """One task, several, or a taskset, as a taskset. Bare tasks are unassigned: an evaluation does not decide
    whether they may train.
    """
    if isinstance(tasks, Taskset):
        return tasks
    rows = [tasks] if isinstance(tasks, Task) else list(tasks)
    digest = Taskset("tasks", rows, split="unassigned").digest
    return Taskset(f"adhoc-{digest[:12]}", rows, split="unassigned")


async def evaluate(
    taskset: Taskset,
    agent: "Agent",
    *,
    group: int = 1,
    runtime: "Platform | Addresses | None" = None,
    trajectories: bool = True,
    timeout_s: float = 3600.0,
    **options: Unpack[EvalOptions],
) -> list[Run]:
    """Play every task `group` times with the agent's policy and wait for the rewards; runs in order of tasks.

    trajectories: also read what the agent did. options: see EvalOptions; `trainable=True` needs a group of
    2 to 512. Raises EvaluationFailed, TasksetInvalid, PlatformNotFound, and
    RemoteError for what the platform refuses.
    """
    async with connected(runtime) as platform:
        name = await register(platform, taskset)
        run_id = await _submit(platform, agent.run_spec(name, group, **options))
        done = await _wait(platform, run_id, timeout_s)
        runs = [_run(result, done.run) for result in done.results]
        if trajectories:
            limit = asyncio.Semaphore(READ_CONCURRENCY)
            runs = list(await asyncio.gather(*(_with_trajectory(platform, run, limit) for run in runs)))
    order = {task.slug: position for position, task in enumerate(taskset)}
    return sorted(runs, key=lambda run: (order[run.task_slug], run.episode_id))


async def register(platform: "Platform", taskset: Taskset, *, exact: bool = True) -> str:
    """Register a taskset; returns the name of exactly these tasks, `name@2`, or without `exact` its name
    alone. Other tasks under a known name become its newest revision.

    Raises RemoteConflict for a name of another split or environment, RemoteRefused for a task that is on the
    other side (held out, or training data); both say what to change.
    """
    from upcycle.api.taskset.v1 import service_pb2
    from upcycle.rpc import remote_errors

    with remote_errors(f"register taskset {taskset.name!r}"):
        request = service_pb2.RegisterTasksetRequest(taskset=taskset.to_wire())
        done = await platform.tasksets.RegisterTaskset(request, timeout=REGISTER_TIMEOUT_S)
    return exact_name(done.name, done.revision) if exact else taskset.name


@asynccontextmanager
async def connected(runtime: "Platform | Addresses | None") -> AsyncIterator["Platform"]:
    """An open platform as it is; addresses, or those that are found, as a platform for this block."""
    from upcycle.platform import Addresses, Platform

    if runtime is None or isinstance(runtime, Addresses):
        async with Platform(runtime) as platform:
            yield platform
    else:
        yield runtime


async def _submit(platform: "Platform", spec: "RunSpec") -> str:
    from upcycle.api.taskset.v1 import service_pb2
    from upcycle.rpc import remote_errors

    with remote_errors(f"submit a run of {spec.policy.model!r}"):
        request = service_pb2.SubmitRunRequest(request_id=f"sdk-{uuid.uuid4().hex}", spec=spec)
        return (await platform.tasksets.SubmitRun(request)).run.run_id


async def _wait(platform: "Platform", run_id: str, timeout_s: float) -> "GetRunResponse":
    from upcycle.api.taskset.v1 import service_pb2, taskset_pb2
    from upcycle.rpc import remote_errors

    with remote_errors(f"watch {run_id}"):
        try:
            async with asyncio.timeout(timeout_s):
                async for _update in platform.tasksets.WatchRun(service_pb2.WatchRunRequest(run_id=run_id)):
                    continue
        except TimeoutError as error:
            raise EvaluationFailed(
                f"{run_id} was not over within {timeout_s:g} s", f"see `upcycle why {run_id}`"
            ) from error
        done = await platform.tasksets.GetRun(service_pb2.GetRunRequest(run_id=run_id, include_results=True))
    if done.run.state != taskset_pb2.RUN_STATE_COMPLETED:
        state = taskset_pb2.RunState.Name(done.run.state).removeprefix("RUN_STATE_").lower()
        raise EvaluationFailed(f"{run_id} is {state}: {done.run.failure}", f"see `upcycle why {run_id}`")
    return done


def _run(result: "EpisodeResult", run: "WireRun") -> Run:
    from upcycle.api.taskset.v1 import taskset_pb2

    has_reward = result.status == taskset_pb2.EPISODE_STATUS_GRADED
    return Run(
        task_slug=result.task_slug,
        reward=result.reward,
        success=result.success,
        trace_id=result.trajectory_id,
        episode_id=result.episode_id,
        failure="" if has_reward else result.failure_kind or "cancelled",
        run_id=run.run_id,
        otel_trace_id=run.trace_id,
    )


async def _with_trajectory(platform: "Platform", run: Run, limit: asyncio.Semaphore) -> Run:
    if run.is_error:
        return run
    async with limit:
        body = await _read_body(platform, run.trace_id)
    return replace(run, trajectory=transcript_of(body), answer=body.answer)


async def _read_body(platform: "Platform", trajectory_id: str) -> "TrajectoryBody":
    from upcycle.api.trajectory.v1 import service_pb2
    from upcycle.rpc import RemoteNotFound, remote_errors

    request = service_pb2.GetTrajectoryRequest(trajectory_id=trajectory_id)
    async with asyncio.timeout(INDEX_WAIT_S):
        while True:
            try:
                with remote_errors(f"read {trajectory_id}"):
                    return (await platform.trajectories.GetTrajectory(request)).body
            except RemoteNotFound:
                await asyncio.sleep(0.2)


def transcript_of(body: "TrajectoryBody") -> Transcript:
    """What a person reads of a stored trajectory."""
    import json

    turns = []
    for turn in body.turns:
        results = {result.call_id: result for result in turn.tool_results}
        uses = []
        for call in turn.tool_calls:
            result = results.get(call.call_id)
            text, failed = (result.content, result.is_error) if result is not None else ("", False)
            uses.append(ToolUse(call.name, json.loads(call.arguments_json or "{}"), text, failed))
        turns.append(Turn(turn.text, tuple(uses)))
    return Transcript(tuple(turns))
