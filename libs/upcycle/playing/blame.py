"""Whose failure an episode is that was played here: the words and rules of docs/reference/failures.md."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import InfrastructureError, UpcycleError
from upcycle.playing.episode import PlayedEpisode, PlayLimits
from upcycle.playing.forking import EpisodeHosts

_TOOL: Final = "tool "
_EMPTY: Final[Mapping[str, Any]] = {"turns": [{"text": "", "tool_calls": []}]}
"""One empty turn, as the fleet tries it."""
_MAX_OUTPUT_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True)
class Blame:
    """failure: why there is no reward. policy_failure: why the reward is 0. detail: for people."""

    failure: str = ""
    policy_failure: str = ""
    detail: str = ""


async def blame_for(episode: PlayedEpisode, hosts: EpisodeHosts, limits: PlayLimits, output: str) -> Blame:
    """What a failure of the environment counts as. A scenario that failed on the answer is tried again in a
    fresh process with an empty answer: if it fails there too, no answer caused it."""
    failure = episode.failure
    if failure is None:
        return Blame()
    said = failure.traceback.rstrip() or failure.message
    if failure.traceback and failure.message not in failure.traceback:
        said = f"{failure.message}\n{said}"
    detail = f"{failure.during}: {said}"
    if output.strip():
        detail += f"\nthe environment printed:\n{output.strip()[-_MAX_OUTPUT_CHARS:]}"
    if failure.kind == InfrastructureError.kind:
        return Blame(failure.kind, "", detail)
    if failure.during.startswith(_TOOL):
        by_policy = {"timeout": "tool_timeout", "process_ended": "process_ended"}.get(failure.kind)
        return Blame("", by_policy, detail) if by_policy else Blame(failure.kind, "", detail)
    if failure.during == "grade" and await _grades_nothing(episode, hosts, limits):
        return Blame("", "answer_error", detail)
    return Blame("environment_broken", "", detail)


async def _grades_nothing(episode: PlayedEpisode, hosts: EpisodeHosts, limits: PlayLimits) -> bool:
    from upcycle.rewards import evaluation_result, foreign_result

    task = episode.task
    host = await hosts.new(task)
    try:
        async with host.channel() as channel:
            await channel.start(task.scenario, task.args, timeout_s=limits.start_s)
            row = await channel.grade("", _EMPTY, timeout_s=limits.grade_s)
            welcome = channel.welcome
            is_foreign = welcome is not None and not welcome.speaks_tools
            (foreign_result if is_foreign else evaluation_result)(row)
    except (UpcycleError, TypeError, ValueError):
        return False
    finally:
        await host.end()
    return True
