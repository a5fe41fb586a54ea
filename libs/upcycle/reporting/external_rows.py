"""Episodes of an evaluation in one process as rows, as they end and as a line of its file."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Self

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.reading import MAX_ERROR_CHARS
from upcycle.reporting.shown_answers import TaskSecrets
from upcycle.task_rows import canonical_json, task_digest

if TYPE_CHECKING:
    from upcycle.external.evaluating import ExternalEpisode

PLANNED: Final = "planned"
"""The field of a line that says what its evaluation was asked for."""
_MOST_TOKENS: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class PlannedEvaluation:
    """What an evaluation in one process was asked for. It stands in each line, so that a file that ends early
    says so. num_episodes: 0 where it is not known."""

    taskset: str = ""
    split: str = ""
    taskset_digest: str = ""
    source_digest: str = ""
    group: int = 0
    num_episodes: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The inverse of `of_row`."""
        return asdict(self)

    @classmethod
    def of_row(cls, row: Any) -> Self:
        """Unknown fields, and those that are not what they should be, are left out."""
        if not isinstance(row, Mapping):
            return cls()
        empty, found = cls(), {one.name: row.get(one.name) for one in fields(cls)}
        fitting = {name: value for name, value in found.items() if type(value) is type(getattr(empty, name))}
        return cls(**{name: value for name, value in fitting.items() if value})


NOT_KNOWN: Final = PlannedEvaluation()


def episode_row(played: "ExternalEpisode", task_digest: str, secrets: TaskSecrets) -> EpisodeRow:
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
        answer_shown_by=secrets.shown_by(run.task_slug, tool_results(row["turns"])),
    )


def tool_results(turns: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The name of the tool and the text of each result, in their order."""
    for turn in turns:
        for call in turn.get("tool_calls") or ():
            yield str(call.get("name")), str(call.get("result"))


def episode_row_of(row: Mapping[str, Any], name: str) -> EpisodeRow:
    """name: of an episode that has none. Raises KeyError, TypeError, ValueError, AttributeError,
    OverflowError or RecursionError for a line that is no trajectory."""
    task, reward = row["task"], None if row.get("reward") is None else finite_number(row["reward"], "reward")
    policy_failure = str(row.get("policy_failure") or "")
    tokens = row.get("completion_tokens")
    return EpisodeRow(
        task_slug=str(task["slug"]),
        family=str(task.get("family") or "default"),
        episode_id=str(row.get("episode_id") or name),
        trajectory_id="",
        reward=reward,
        success=reward is not None and bool(row.get("success")),
        failure="" if reward is not None else _failure_kind(row),
        task_digest=_digest(task),
        policy_failure=policy_failure,
        num_turns=len(row["turns"]),
        num_tokens=tokens if isinstance(tokens, int) and 0 <= tokens < _MOST_TOKENS else None,
        subscores={
            path: finite_number(value, "a subscore")
            for path, value in flat_subscores(row.get("subscores") or ())
        },
        first_tool_error=first_tool_error(row["turns"]),
        ended="" if reward is None else policy_failure or str(row.get("stop_reason") or ""),
    )


def finite_number(value: Any, what: str) -> float:
    """Raises ValueError, which says what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} {value!r:.40} is no finite number")
    return float(value)


def _failure_kind(row: Mapping[str, Any]) -> str:
    failure = row.get("failure")
    kind = failure.get("kind") if isinstance(failure, Mapping) else ""
    return str(row.get("failure_kind") or kind or "no reward")


def _digest(task: Mapping[str, Any]) -> str:
    """As `Task.digest`; of a task without its environment what the line says."""
    environment = task.get("environment")
    if not isinstance(environment, Mapping):
        return str(task.get("digest") or "")
    args = canonical_json(task.get("args") or {})
    return task_digest(str(environment.get("name") or ""), str(task.get("scenario") or ""), args)


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
