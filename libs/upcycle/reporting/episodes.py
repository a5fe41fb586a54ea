"""The rows of an evaluation: what its report and a comparison read, from the platform or from a file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from upcycle.errors import UpcycleError
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.wording import amount


class NoEvaluation(UpcycleError, ValueError):
    """A file, or a run, that holds no finished evaluation."""

    kind = "no_evaluation"


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One planned episode. reward: None where it has none, and `failure` says why; policy_failure: why it is
    0, where the policy caused a failure. ended: how its last turn ended. num_tokens, subscores: as far as the
    trajectory store has them. first_tool_error, ended, answer_shown_by: of episodes that were read; the last
    is the tool whose result held the answer.
    """

    task_slug: str
    family: str
    episode_id: str
    trajectory_id: str
    reward: float | None
    success: bool
    task_digest: str = ""
    failure: str = ""
    policy_failure: str = ""
    num_turns: int = 0
    num_tokens: int | None = None
    engine_s: float = 0.0
    environment_s: float = 0.0
    subscores: Mapping[str, float] = field(default_factory=dict)
    first_tool_error: str = ""
    ended: str = ""
    answer_shown_by: str = ""

    @property
    def show_name(self) -> str:
        """What `upcycle trajectories show` calls it."""
        return self.trajectory_id or self.episode_id


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """An evaluation that is over. source_digest: of the code that judged it; "" where it is not known.
    duration_s: from its submission to its end. num_planned: episodes that were asked for, where that is known
    and may be more than there are. num_unread: unsuccessful episodes whose trajectory was not read; notice:
    what could not be read, in words.
    """

    run_id: str
    taskset: str
    taskset_digest: str
    source_digest: str
    model: str
    versions: tuple[int, ...]
    group: int
    sampling: Mapping[str, Any]
    duration_s: float
    episodes: tuple[EpisodeRow, ...]
    num_planned: int = 0
    num_unread: int = 0
    notice: str = ""

    @property
    def counted(self) -> tuple[EpisodeRow, ...]:
        """The episodes that say what the policy can do: not those of tasks without a solution."""
        return tuple(one for one in self.episodes if one.family != IMPOSSIBLE_FAMILY)

    @property
    def shortfall(self) -> str:
        """`graded 12 of 40 tasks; interrupted`, of one that was ended before its last episode; else ""."""
        if len(self.episodes) >= self.num_planned:
            return ""
        graded = sum(one.reward is not None for one in self.episodes)
        planned = amount(self.num_planned, "task" if self.group == 1 else "episode")
        return f"graded {graded:,} of {planned}; interrupted"

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Fields of a later version are left out. Raises NoEvaluation for a field that is missing."""
        try:
            episodes = tuple(EpisodeRow(**_known(EpisodeRow, one)) for one in row["episodes"])
            values = {**_known(cls, row), "episodes": episodes, "versions": tuple(row["versions"])}
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise NoEvaluation(
                f"not an evaluation: {error}", "use what `upcycle eval --json` wrote"
            ) from error


def _known(cls: type, row: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in row.items() if name in names}
