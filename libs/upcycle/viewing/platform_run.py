"""A run of the platform as a page: planner, trajectory store, trainer and registry each say their part.

The page is made of what they answer; a notice names what one of them did not.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from upcycle.errors import UpcycleError
from upcycle.evaluation import READ_CONCURRENCY, read_results
from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.reading import CALL_TIMEOUT_S, flat_subscores, read_played, summaries_of
from upcycle.reporting.report import report_of
from upcycle.run_client import is_over, state_word
from upcycle.run_pages.texts import kept
from upcycle.run_pages.values import Header, RunPage, ShownEpisode
from upcycle.tasks import plain_name
from upcycle.viewing.asked import Asked
from upcycle.viewing.bodies import MAX_DETAIL_CHARS, shown_episode
from upcycle.viewing.headers import facts_of, warnings_of
from upcycle.viewing.settings import differing_settings
from upcycle.viewing.training import read_steps

if TYPE_CHECKING:
    from upcycle.api.taskset.v1.service_pb2 import GetRunResponse
    from upcycle.api.taskset.v1.taskset_pb2 import Run
    from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectorySummary
    from upcycle.platform import Platform

MAX_SUMMARIES: Final = 20_000
"""Newest episodes of a training run that are listed."""


async def read_page(platform: "Platform", run_id: str, asked: Asked) -> RunPage:
    """Raises TooManyEpisodes, Unavailable and RemoteError."""
    from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
    from upcycle.api.taskset.v1.service_pb2 import GetRunRequest
    from upcycle.rpc import remote_errors

    with remote_errors(f"read run {run_id}"):
        run = (await platform.tasksets.GetRun(GetRunRequest(run_id=run_id), timeout=CALL_TIMEOUT_S)).run
    if run.spec.purpose == PURPOSE_TRAIN:
        return await _training_page(platform, run, asked)
    return await _evaluation_page(platform, await read_results(platform, run_id), asked)


async def _evaluation_page(platform: "Platform", done: "GetRunResponse", asked: Asked) -> RunPage:
    run = done.run
    played = await read_played(platform, done)
    details = {one.episode_id: one.failure_detail for one in done.results if one.failure_detail}
    warnings = warnings_of(run)
    if not is_over(run):
        warnings += ("The evaluation is not over: this is how far it was, and the report is still to come.",)
    return RunPage(
        header=_header("evaluation", run, played.versions, warnings),
        episodes=played.episodes,
        shown=await _shown(platform, asked.chosen(played.episodes), details, asked),
        report=report_of(played) if is_over(run) else None,
        group=played.group,
        notices=(played.notice,) if played.notice else (),
    )


async def _training_page(platform: "Platform", run: "Run", asked: Asked) -> RunPage:
    notices: list[str] = []
    summaries = await _summaries(platform, run.run_id, notices)
    episodes = tuple(_episode(one, is_mixed=bool(run.mix)) for one in summaries)
    chosen = asked.chosen(episodes)
    steps, verdicts = await read_steps(platform, run.run_id, run.spec.policy.model, summaries, notices)
    return RunPage(
        header=_header("training run", run, (run.policy_version,), warnings_of(run)),
        episodes=episodes,
        shown=await _shown(platform, chosen, {}, asked),
        group=max(1, run.spec.group_size),
        steps=steps,
        verdicts=verdicts,
        notices=tuple(notices),
    )


def _header(kind: str, run: "Run", versions: Sequence[int], warnings: tuple[str, ...]) -> Header:
    settings = differing_settings(run.spec)
    return Header(run.run_id, kind, state_word(run), facts_of(run, versions), settings, warnings)


async def _summaries(platform: "Platform", run_id: str, notices: list[str]) -> "list[TrajectorySummary]":
    """Oldest first."""
    from upcycle.rpc import RemoteError

    try:
        found = await summaries_of(platform, run_id, MAX_SUMMARIES)
    except (RemoteError, UpcycleError, TimeoutError) as error:
        notices.append(f"without episodes: {error or 'no answer in time'}")
        return []
    if len(found) >= MAX_SUMMARIES:
        notices.append(f"only the newest {len(found):,} episodes are on this page")
    return list(found.values())[::-1]


def _episode(summary: "TrajectorySummary", *, is_mixed: bool) -> EpisodeRow:
    """is_mixed: of a run on several tasksets, of which each task says which one it is of."""
    identity = summary.episode
    of = f"{plain_name(identity.taskset)}: " if is_mixed and identity.taskset else ""
    return EpisodeRow(
        task_slug=f"{of}{identity.task_slug}",
        family=identity.family or "default",
        episode_id=identity.episode_id,
        trajectory_id=identity.trajectory_id,
        reward=summary.reward if summary.graded else None,
        success=summary.graded and summary.success,
        task_digest=identity.task_digest,
        failure="" if summary.graded else summary.ledger.reason or "not graded",
        policy_failure=summary.failure.kind,
        num_turns=summary.num_turns,
        num_tokens=summary.num_sampled_tokens,
        subscores=dict(flat_subscores(summary.subscores)),
    )


async def _shown(
    platform: "Platform", chosen: Sequence[tuple[EpisodeRow, str]], details: Mapping[str, str], asked: Asked
) -> tuple[ShownEpisode, ...]:
    limit = asyncio.Semaphore(READ_CONCURRENCY)

    async def one(row: EpisodeRow, why: str) -> ShownEpisode:
        async with limit:
            return await _read(platform, row, why, details.get(row.episode_id, ""), asked)

    return tuple(await asyncio.gather(*(one(row, why) for row, why in chosen)))


async def _read(platform: "Platform", row: EpisodeRow, why: str, detail: str, asked: Asked) -> ShownEpisode:
    from upcycle.api.trajectory.v1.service_pb2 import GetTrajectoryRequest
    from upcycle.rpc import RemoteError, remote_errors

    request = GetTrajectoryRequest(trajectory_id=row.trajectory_id or row.episode_id)
    try:
        with remote_errors(f"read {request.trajectory_id}"):
            record = await platform.trajectories.GetTrajectory(request, timeout=CALL_TIMEOUT_S)
    except (RemoteError, UpcycleError, TimeoutError) as error:  # it never had one, or its body was removed
        notice = f"no trajectory: {error or 'no answer in time'}"
        return ShownEpisode(row, why, detail=kept(detail, MAX_DETAIL_CHARS), notice=notice)
    return shown_episode(row, why, record, detail, tokens=asked.tokens)
