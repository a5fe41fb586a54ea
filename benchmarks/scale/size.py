"""How much a platform holds, and the names of what is in it."""

from dataclasses import dataclass
from typing import Final

EPISODES_PER_RUN: Final = 500
GROUP_SIZE: Final = 4
TASKS: Final = 125
"""Of the one taskset: a run plays each once, in groups of GROUP_SIZE."""
RUNS_PER_MODEL: Final = 10
VERSIONS_PER_MODEL: Final = 200
CHECKPOINT_EVERY: Final = 10
STANDING_SHARE: Final = 10
"""One training run, which goes on until it is stopped, has a tenth of the episodes of all others."""
SAMPLED_EVERY: Final = 10
"""Every tenth run trains, the others evaluate."""
RUN_S: Final = 600
"""One run follows the other after so many seconds; RUNS_BEFORE after now none does."""
HEX: Final = 2**32
_ODD: Final = 2654435761


@dataclass(frozen=True, slots=True)
class Size:
    """runs: of each model RUNS_PER_MODEL, each of EPISODES_PER_RUN episodes."""

    runs: int

    @property
    def models(self) -> int:
        """Each with the same number of runs."""
        return max(1, self.runs // RUNS_PER_MODEL)

    @property
    def episodes(self) -> int:
        """In planner and store."""
        return self.runs * EPISODES_PER_RUN

    @property
    def standing_episodes(self) -> int:
        """Of the one run that is not over, beside these."""
        return self.episodes // STANDING_SHARE

    def __str__(self) -> str:
        return (
            f"{self.models:,} models, {self.runs:,} runs, {self.episodes:,} episodes, "
            f"{self.standing_episodes:,} of a standing run"
        )


def run_name(number: int) -> str:
    """Scattered, as ids of runs are."""
    return f"run-{number * _ODD % HEX:012x}"


def model_name(number: int) -> str:
    """Of the n-th model."""
    return f"model-{number:05d}"


def scattered(number: str) -> str:
    """The number in `run_name`, in SQL."""
    return f"({number}) * {_ODD} % {HEX}"
