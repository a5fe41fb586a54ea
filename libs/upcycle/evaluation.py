"""Runs tasks on a platform and reads the results, as a client of TasksetService and TrajectoryService.

The platform samples and grades; nothing runs in the caller's process. Every evaluation is also training
data: its trajectories stay in the store, with tokens and log-probabilities.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from upcycle.errors import UpcycleError
from upcycle.leak_scan import leak_lines
from upcycle.platform import connected
from upcycle.results import MIN_COVERAGE, Coverage, Run, coverage_of
from upcycle.run_client import completed, follow_run, register_taskset, require_model, state_word, submit_run
from upcycle.stored_states import states_of
from upcycle.tasks import Task, Taskset
from upcycle.trained_models import is_ahead_of_head
from upcycle.transcripts import ToolUse, Transcript, Turn
from upcycle.wire import usage_of

if TYPE_CHECKING:
    from upcycle.agents import Agent
    from upcycle.api.taskset.v1.service_pb2 import GetRunResponse
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult, RunSpec
    from upcycle.api.taskset.v1.taskset_pb2 import Run as WireRun
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryResponse
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody
    from upcycle.platform import Addresses, Platform
    from upcycle.runtimes import PlayRuntime
    from upcycle.train.running import TrainedRun

log = logging.getLogger(__name__)

# So many trajectories are read at a time. Each is waited for so long, because the store indexes them a moment
# after the run's end.
READ_CONCURRENCY = 16
INDEX_WAIT_S = 15.0

DAY_S = 86_400.0


class EvaluationFailed(UpcycleError):
    """The run ended without a result for every episode, or was cancelled."""

    kind = "evaluation_failed"


class Job:
    """Several evaluations of one model under one heading; `runs` grows with each.

    job = await Job.start("incident", group=8)
    await taskset.run(agent, job=job)
    rewards = [run.reward for run in job.runs]
    trained = await job.train(steps=2, prompts=8, learning_rate=1e-5)
    """

    def __init__(self, model: str, group: int, label: str) -> None:
        self.model = model
        self.group = group
        self.label = label
        self.runs: list[Run] = []

    @classmethod
    async def start(cls, model: str, *, group: int = 1, label: str = "") -> Self:
        """group: plays of each task, at least 1; to train, at least 2. Raises UpcycleError."""
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
        **options: Any,
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
        chosen = {"group": self.group, **options}
        return await client.train_on(
            self.run_ids, taskset=taskset, sampling=sampling, timeout_s=timeout_s, **chosen
        )


class EvalOptions(TypedDict, total=False):
    """Of an evaluation. label: free text for people; trainable: a running training run of the same model and
    taskset may draw its groups, each once, so the newest published weights play instead of head;
    max_concurrent: episodes in flight at once, at least `group`; episode_deadline_s: how long an episode may
    take, by default 120."""

    label: str
    trainable: bool
    max_concurrent: int | None
    episode_deadline_s: int | None


class EvalContext:
    """Tasks to play, and the `runs` that came of them: `async with upcycle.eval(task) as ctx`,
    then `await agent.run(ctx)`."""

    def __init__(
        self,
        tasks: Task | Taskset | Sequence[Task],
        *,
        group: int,
        runtime: Any = None,
        min_coverage: float = MIN_COVERAGE,
        episode_deadline_s: int | None = None,
    ) -> None:
        self.taskset = as_taskset(tasks)
        self.group = group
        self.runtime = runtime
        self.episode_deadline_s = episode_deadline_s
        self.min_coverage = min_coverage
        self.runs: list[Run] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing: no connection is held between calls."""

    async def play(self, agent: "Agent") -> Run:
        """Play the tasks with an agent; the first run is returned, all are in `runs`."""
        played = await agent.evaluate(
            self.taskset, group=self.group, runtime=self.runtime, episode_deadline_s=self.episode_deadline_s
        )
        self.runs.extend(played)
        return played[0]

    @property
    def coverage(self) -> Coverage:
        """How many of the episodes were graded, and why the others were not."""
        return coverage_of(self.runs)

    @property
    def reward(self) -> float:
        """Mean over the graded episodes, without tasks that have no solution.

        Raises EvaluationFailed when none was played, or when fewer than min_coverage of them were graded: the
        mean of the few that are left is no result.
        """
        coverage = self.coverage
        rewards = [run.reward for run in self.runs if run.counts and not run.is_error]
        if not self.runs:
            raise EvaluationFailed("no episode was graded yet", "await agent.run(ctx) first")
        if not rewards or coverage.share < self.min_coverage:
            raise EvaluationFailed(
                f"{coverage}: that is below min_coverage {self.min_coverage:.0%}",
                "ctx.runs has each failure; upcycle.eval(…, min_coverage=0) takes what there is",
            )
        return sum(rewards) / len(rewards)


def evaluation_of(
    tasks: Task | Taskset | Sequence[Task],
    *,
    group: int = 1,
    runtime: "Platform | Addresses | PlayRuntime | None" = None,
    min_coverage: float = MIN_COVERAGE,
    episode_deadline_s: int | None = None,
) -> EvalContext:
    """What `upcycle.eval(…)` is: a task, several, or a taskset, each to be played `group` times.

    runtime: where, as of `Taskset.run`. min_coverage: share of the episodes, 0 to 1, that must be graded
    before there is a mean reward. episode_deadline_s: how long
    an episode may take, by default 120. Raises UpcycleError.
    """
    if not 0 <= min_coverage <= 1:
        raise UpcycleError(f"min_coverage is {min_coverage:g}", "it is a share from 0 to 1, such as 0.95")
    return EvalContext(
        tasks, group=group, runtime=runtime, min_coverage=min_coverage, episode_deadline_s=episode_deadline_s
    )


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
    timeout_s: float = DAY_S,
    **options: Unpack[EvalOptions],
) -> list[Run]:
    """Play every task `group` times with the agent's policy and wait for the rewards: tasks × group Runs,
    those of one task side by side.

    trajectories: also read what the agent did. options: see EvalOptions; `trainable=True` needs a group of
    2 to 512. Raises EvaluationFailed, TasksetInvalid, PlatformNotFound, and
    RemoteError for what the platform refuses.
    """
    async with connected(runtime) as platform:
        await require_model(platform, agent.model)
        registered = await register_taskset(platform, taskset)
        for line in await leak_lines(registered, taskset):
            log.warning("%s", line)
        run = await submit_run(platform, spec_of(agent, registered.exact_name, group, **options))
        done = await _wait(platform, run.run_id, timeout_s)
        runs = runs_of(done)
        if trajectories:
            limit = asyncio.Semaphore(READ_CONCURRENCY)
            runs = list(await asyncio.gather(*(_with_trajectory(platform, run, limit) for run in runs)))
    order = {task.slug: position for position, task in enumerate(taskset)}
    return sorted(runs, key=lambda run: (order[run.task_slug], run.episode_id))


def spec_of(agent: "Agent", taskset: str, group: int, **options: Unpack[EvalOptions]) -> "RunSpec":
    """The evaluation run of an agent over a registered taskset. Raises RunConfigInvalid."""
    from upcycle.api.common.v1 import common_pb2
    from upcycle.run_config.flags import evaluation_run
    from upcycle.run_config.wire import spec_to_wire

    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    spec = evaluation_run(
        agent.model, taskset, group=group, version=agent.version, sampling=agent.sampling, **given
    )
    wire = spec_to_wire(spec)
    if agent.version is None and is_ahead_of_head(agent.model):
        wire.policy.channel = common_pb2.CHANNEL_LATEST
    return wire


async def _wait(platform: "Platform", run_id: str, timeout_s: float) -> "GetRunResponse":
    from upcycle.rpc import CallTimedOut

    hint = f"see `upcycle why {run_id}`"
    try:
        run = await follow_run(platform, run_id, timeout_s=timeout_s)
    except CallTimedOut as error:
        raise EvaluationFailed(f"{run_id} was not over within {timeout_s:g} s", hint) from error
    if not completed(run):
        raise EvaluationFailed(f"{run_id} is {state_word(run)}: {run.failure}", hint)
    return await read_results(platform, run_id)


def runs_of(done: "GetRunResponse") -> list[Run]:
    """The records of an evaluation that is over, one per member of each group."""
    return [_run(result, done.run) for result in done.results]


async def read_results(platform: "Platform", run_id: str) -> "GetRunResponse":
    """A run with its results. Raises Unavailable and RemoteError."""
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.rpc import remote_errors

    with remote_errors(f"read the results of {run_id}"):
        return await platform.tasksets.GetRun(GetRunRequest(run_id=run_id, include_results=True))


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
        policy_failure=result.failure_kind if has_reward else "",
        run_id=run.run_id,
        otel_trace_id=run.trace_id,
        usage=usage_of(result.usage),
        failure_detail=result.failure_detail,
        family=result.family,
    )


async def _with_trajectory(platform: "Platform", run: Run, limit: asyncio.Semaphore) -> Run:
    if run.is_error:
        return run
    async with limit:
        read = await _read_trajectory(platform, run.trace_id)
    by_turn = tuple(read.summary.turn_rewards)
    transcript = transcript_of(read.body)
    return replace(run, trajectory=transcript, answer=read.body.answer, turn_rewards=by_turn)


async def _read_trajectory(platform: "Platform", trajectory_id: str) -> "GetTrajectoryResponse":
    from upcycle.api.trajectory.v1 import service_pb2
    from upcycle.rpc import RemoteNotFound, remote_errors

    request = service_pb2.GetTrajectoryRequest(trajectory_id=trajectory_id)
    async with asyncio.timeout(INDEX_WAIT_S):
        while True:
            try:
                with remote_errors(f"read {trajectory_id}"):
                    return await platform.trajectories.GetTrajectory(request)
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
        turns.append(Turn(turn.text, tuple(uses), turn.reasoning))
    return Transcript(tuple(turns), tuple(state.value for state in states_of(body)))
