"""Episodes that were played in this process as rows of an evaluation, which `upcycle compare` reads."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.reading import MAX_ERROR_CHARS

if TYPE_CHECKING:
    from upcycle.external.evaluating import ExternalEpisode


def episode_row(played: "ExternalEpisode", task_digest: str) -> EpisodeRow:
    """Without a trajectory of the platform; everything that was said is at hand, so each end is known."""
    run, row = played.run, played.row
    return EpisodeRow(
        task_slug=run.task_slug,
        family=row["task"]["family"],
        episode_id=run.episode_id,
        trajectory_id="",
        reward=None if run.is_error else run.reward,
        success=run.success and not run.is_error,
        task_digest=task_digest,
        failure=run.failure,
        policy_failure=run.policy_failure,
        num_turns=len(row["turns"]),
        num_tokens=row["completion_tokens"],
        subscores=dict(flat_subscores(row["subscores"])),
        first_tool_error=first_tool_error(row["turns"]),
        ended="" if run.is_error else run.policy_failure or str(row["stop_reason"]),
    )


def flat_subscores(subscores: Sequence[Mapping[str, Any]], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every node of the reward tree with its path, `style/length`."""
    for one in subscores:
        path = f"{prefix}{one['name']}"
        yield path, one["value"]
        yield from flat_subscores(one.get("children", ()), f"{path}/")


def first_tool_error(turns: Sequence[Mapping[str, Any]]) -> str:
    """`lookup: no such host #`, digits alike; "" where no call failed."""
    for turn in turns:
        for call in turn.get("tool_calls") or ():
            if call.get("is_error"):
                line = next(iter(str(call.get("result")).strip().splitlines()), "")
                return f"{call['name']}: {re.sub('[0-9]+', '#', line)[:MAX_ERROR_CHARS]}"
    return ""
