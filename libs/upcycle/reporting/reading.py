"""Reads a finished evaluation from a platform: planner for results, trajectory store for the rest.

The report never waits for the store: what it does not answer is left out, and `notice` says so.
"""

import asyncio
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from upcycle.errors import UpcycleError
from upcycle.evaluation import READ_CONCURRENCY, read_results
from upcycle.evenly import evenly
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun, NoEvaluation
from upcycle.reporting.shown_answers import TaskSecrets
from upcycle.run_client import is_over, state_word
from upcycle.tasks import exact_name, plain_name
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.service_pb2 import GetRunResponse
    from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult, Run, Task
    from upcycle.api.trajectory.v1.trajectory_pb2 import Subscore, TrajectoryBody, TrajectorySummary
    from upcycle.platform import Platform

MAX_READ: Final = 200
"""Trajectories of unsuccessful episodes that are read to say how they ended."""
MAX_SOLVED_READ: Final = 50
"""Those of successful ones, to say which tools held the answer, where tasks name it."""
PAGE: Final = 1000
CALL_TIMEOUT_S: Final = 30.0
INDEX_WAIT_S: Final = 5.0
MAX_ERROR_CHARS: Final = 80
_ENDED: Final = {
    "ANSWERED": "answered",
    "MAX_TURNS": "out of turns",
    "MAX_TOKENS": "out of tokens",
    "DONE": "ended by the environment",
    "FAILED": "failed by the policy",
    "RECORDING_LIMIT": "went on beyond its record",
}


async def read_evaluation(
    platform: "Platform", run_id: str, response: "GetRunResponse | None" = None
) -> EvaluatedRun:
    """The evaluation with all that is known of it. response: its results, where they were read already.

    Raises NoEvaluation for a training run and for a run that is not over, Unavailable and RemoteError.
    """
    done = response or await read_results(platform, run_id)
    _require_evaluation(done.run)
    return await read_played(platform, done)


async def read_played(platform: "Platform", done: "GetRunResponse") -> EvaluatedRun:
    """The episodes of any run, also of one that goes on, with all that is known of them."""
    tasks = await _tasks(platform, done.run)
    found = _evaluated(done, tasks)
    secrets = TaskSecrets.of_json({slug: task.args_json for slug, task in tasks.items()})
    try:
        return await _with_trajectories(platform, found, secrets)
    except (UpcycleError, TimeoutError) as error:
        return replace(found, notice=f"no subscores, tokens and last turns: {error or 'no answer in time'}")


def _require_evaluation(run: "Run") -> None:
    from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL

    if run.spec.purpose != PURPOSE_EVAL or not is_over(run):
        what = "no evaluation" if run.spec.purpose != PURPOSE_EVAL else state_word(run)
        raise NoEvaluation(f"{run.run_id} is {what}", "name an evaluation that is over: `upcycle runs`")


def _evaluated(done: "GetRunResponse", tasks: Mapping[str, "Task"]) -> EvaluatedRun:
    from google.protobuf.json_format import MessageToDict

    run = done.run
    seconds = (run.finished_at.ToMilliseconds() - run.submitted_at.ToMilliseconds()) / 1e3
    return EvaluatedRun(
        run_id=run.run_id,
        taskset=run.spec.taskset,
        taskset_digest=run.taskset_digest,
        source_digest=run.source_digest,
        model=run.spec.policy.model,
        versions=_versions(done.results),
        group=max(1, run.spec.group_size),
        sampling=MessageToDict(run.spec.sampling, preserving_proto_field_name=True),
        duration_s=max(0.0, seconds),
        episodes=tuple(_episode(result, tasks.get(result.task_slug)) for result in done.results),
    )


def _episode(result: "EpisodeResult", task: "Task | None") -> EpisodeRow:
    from upcycle.api.taskset.v1.taskset_pb2 import EPISODE_STATUS_GRADED, EPISODE_STATUS_PENDING

    graded, kind = result.status == EPISODE_STATUS_GRADED, result.failure_kind
    missing = "pending" if result.status == EPISODE_STATUS_PENDING else "cancelled"
    return EpisodeRow(
        task_slug=result.task_slug,
        family=result.family or "default",
        episode_id=result.episode_id,
        trajectory_id=result.trajectory_id,
        reward=result.reward if graded else None,
        success=graded and result.success,
        task_digest=task.digest if task is not None else "",
        failure="" if graded else kind or missing,
        policy_failure=kind if graded else "",
        num_turns=result.num_turns,
        engine_s=result.usage.engine_s,
        environment_s=result.usage.environment_s,
        ended=kind if graded else "",
    )


def _versions(results: Sequence["EpisodeResult"]) -> tuple[int, ...]:
    spans = [one.sampled_by for one in results if one.HasField("sampled_by")]
    return tuple(sorted({version for span in spans for version in (span.oldest, span.newest)}))


async def _tasks(platform: "Platform", run: "Run") -> dict[str, "Task"]:
    """Tasks of the run by slug; none where retention removed the taskset."""
    from upcycle.api.taskset.v1.service_pb2 import GetTasksetRequest
    from upcycle.rpc import RemoteError, remote_errors

    name = exact_name(plain_name(run.spec.taskset), run.taskset_revision)
    try:
        with remote_errors(f"read taskset {name!r}"):
            request = GetTasksetRequest(name=name)
            answer = await platform.tasksets.GetTaskset(request, timeout=CALL_TIMEOUT_S)
    except RemoteError:
        return {}
    return {task.slug: task for task in answer.taskset.tasks}


async def _with_trajectories(platform: "Platform", found: EvaluatedRun, secrets: TaskSecrets) -> EvaluatedRun:
    graded = {one.trajectory_id for one in found.episodes if one.reward is not None}
    summaries = await _indexed(platform, found.run_id, graded)
    episodes = [_with_summary(one, summaries.get(one.trajectory_id)) for one in found.episodes]
    unsolved = [one for one in episodes if one.reward is not None and not one.success and one.num_turns]
    chosen = evenly(unsolved, MAX_READ)
    solved = evenly([one for one in episodes if one.success], MAX_SOLVED_READ) if secrets else []
    limit = asyncio.Semaphore(READ_CONCURRENCY)
    reading = (_with_ending(platform, one, limit, secrets) for one in (*chosen, *solved))
    read = await asyncio.gather(*reading)
    by_id = {one.episode_id: one for one in read}
    missing = len(graded - summaries.keys())
    return replace(
        found,
        episodes=tuple(by_id.get(one.episode_id, one) for one in episodes),
        num_unread=len(unsolved) - len(chosen),
        notice=f"the trajectory store has not indexed {amount(missing, 'episode')} yet" if missing else "",
    )


async def _indexed(platform: "Platform", run_id: str, wanted: set[str]) -> dict[str, "TrajectorySummary"]:
    """Summaries by trajectory id. The store indexes them a moment after the end of a run."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + INDEX_WAIT_S
    while True:
        found = await summaries_of(platform, run_id)
        have = {name for name, one in found.items() if one.graded}
        if wanted <= have or loop.time() >= give_up_at:
            return found
        await asyncio.sleep(0.3)


async def summaries_of(
    platform: "Platform", run_id: str, at_most: float = math.inf
) -> dict[str, "TrajectorySummary"]:
    """By trajectory id, newest first; about at_most of them. Raises Unavailable and RemoteError."""
    from upcycle.api.trajectory.v1.service_pb2 import ListTrajectoriesRequest, TrajectoryFilter
    from upcycle.rpc import remote_errors

    found: dict[str, TrajectorySummary] = {}
    token = ""
    while True:
        request = ListTrajectoriesRequest(
            filter=TrajectoryFilter(run_id=run_id), page_size=PAGE, page_token=token
        )
        with remote_errors(f"list the trajectories of {run_id}"):
            answer = await platform.trajectories.ListTrajectories(request, timeout=CALL_TIMEOUT_S)
        found.update((one.episode.trajectory_id, one) for one in answer.trajectories)
        token = answer.next_page_token
        if not token or len(found) >= at_most:
            return found


def _with_summary(episode: EpisodeRow, summary: "TrajectorySummary | None") -> EpisodeRow:
    if summary is None:
        return episode
    return replace(
        episode,
        task_digest=episode.task_digest or summary.episode.task_digest,
        num_turns=summary.num_turns,
        num_tokens=summary.num_sampled_tokens,
        subscores=dict(flat_subscores(summary.subscores)),
    )


def flat_subscores(subscores: Sequence["Subscore"], prefix: str = "") -> list[tuple[str, float]]:
    """Every node of the reward tree with its path, `style/length`."""
    found = []
    for one in subscores:
        path = f"{prefix}{one.name}"
        found += [(path, one.value), *flat_subscores(one.children, f"{path}/")]
    return found


async def _with_ending(
    platform: "Platform", episode: EpisodeRow, limit: asyncio.Semaphore, secrets: TaskSecrets
) -> EpisodeRow:
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
    from upcycle.rpc import RemoteError, remote_errors

    request = GetTrajectoryRequest(trajectory_id=episode.trajectory_id)
    async with limit:
        try:
            with remote_errors(f"read {episode.trajectory_id}"):
                answer = await platform.trajectories.GetTrajectory(request, timeout=CALL_TIMEOUT_S)
        except RemoteError:  # its body was removed, or cannot be used
            return episode
    return replace(
        episode,
        first_tool_error=first_tool_error(answer.body),
        ended=episode.ended or ending(answer.body),
        answer_shown_by=secrets.shown_by(episode.task_slug, tool_results(answer.body)),
    )


def tool_results(body: "TrajectoryBody") -> Iterator[tuple[str, str]]:
    """The name of the tool and the text of each result, in their order."""
    for turn in body.turns:
        names = {call.call_id: call.name for call in turn.tool_calls}
        yield from ((names.get(one.call_id, "?"), one.content) for one in turn.tool_results)


def first_tool_error(body: "TrajectoryBody") -> str:
    """`lookup: no such host #`: the first call that failed, digits alike; "" where none did."""
    for turn in body.turns:
        names = {call.call_id: call.name for call in turn.tool_calls}
        for result in turn.tool_results:
            if result.is_error:
                line = next(iter(result.content.strip().splitlines()), "")
                return f"{names.get(result.call_id, '?')}: {re.sub('[0-9]+', '#', line)[:MAX_ERROR_CHARS]}"
    return ""


def ending(body: "TrajectoryBody") -> str:
    """`out of turns after lookup`: why the episode stopped, and what its last turn called."""
    from upcycle.api.trajectory.v1.trajectory_pb2 import StopReason

    reason = StopReason.Name(body.stop_reason).removeprefix("STOP_REASON_")
    words = _ENDED.get(reason, "ended")
    last: Any = body.turns[-1] if body.turns else None
    if last is None:
        return words
    if last.parse_error:
        return f"{words}, last turn unreadable"
    called = ", ".join(dict.fromkeys(call.name for call in last.tool_calls))
    empty = "" if called or body.answer.strip() else " with nothing"
    return f"{words} after {called}" if called else f"{words}{empty}"
