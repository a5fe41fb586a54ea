"""The rows of an evaluation: what its report and a comparison read, from the platform or from a file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from upcycle.errors import UpcycleError


class NoEvaluation(UpcycleError, ValueError):
    """A file, or a run, that holds no finished evaluation."""

    kind = "no_evaluation"


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One planned episode. reward: None where it has none, and `failure` says why; policy_failure: why it is
    0, where the policy caused a failure. ended: how its last turn ended. num_tokens, subscores: as far as the
    trajectory store has them. first_tool_error, ended: of episodes that were read.
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


@dataclass(frozen=True, slots=True)
class EvaluatedRun:
    """An evaluation that is over. source_digest: of the code that judged it; "" where it is not known.
    duration_s: from its submission to its end. num_unread: unsuccessful episodes whose trajectory was not
    read; notice: what could not be read, in words.
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
    num_unread: int = 0
    notice: str = ""

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


def evaluation_in(path: Path) -> EvaluatedRun:
    """The evaluation of a file that `upcycle eval … --json` wrote. Raises NoEvaluation."""
    way_out = "use the output of `upcycle eval … --json`, or name a run"
    for line in reversed(_lines(path)):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise NoEvaluation(f"{path}: not JSON lines: {error}", way_out) from error
        if isinstance(row, dict) and isinstance(row.get("evaluation"), dict):
            return EvaluatedRun.from_json(row["evaluation"])
    raise NoEvaluation(f"{path} has no line `done` with an evaluation", way_out)


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise NoEvaluation(f"{path} cannot be read: {error}", "give a file of JSON lines") from error


def _known(cls: type, row: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: value for name, value in row.items() if name in names}
