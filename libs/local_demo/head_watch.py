"""The registry's watch of head in the demo: how much it plays, and when it has played it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.run_client import completed, is_over

WATCH: Final = "watch"
"""The label of a run that watches head begins with it."""
WATCH_PAIRS: Final = 100
"""Pairs of a head and the version before it. The registry plays them in runs of 50, after its candidates."""
WATCH_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "CHECKPOINT_REGISTRY_WATCH_PAIRS": str(WATCH_PAIRS),
        "CHECKPOINT_REGISTRY_WATCH_TRICKLE_S": "0",  # else a demo that stays would play on, hour after hour
    }
)


@dataclass(frozen=True, slots=True)
class WatchedHead:
    """The last head that was promoted. rolled_back: why it is head no more; "" while it is."""

    version: int
    pairs: int
    rolled_back: str = ""

    @property
    def shortfall(self) -> str:
        """What its watch did not show; "" where head stayed through all of it."""
        if self.rolled_back:
            return f"v{self.version} went back: {self.rolled_back}"
        if self.pairs < WATCH_PAIRS:
            return f"head v{self.version} was watched over {self.pairs} pairs, {WATCH_PAIRS} wanted"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        return asdict(self)


def watch_runs(runs: Iterable[Run], version: int) -> list[Run]:
    """Those that watch this head of the demo's only model."""
    return [run for run in runs if _watched_version(run.spec.label) == version]


def pairs_played(runs: Iterable[Run]) -> int:
    """Of runs that are complete: an episode of each side."""
    return sum(run.counts.settled for run in runs if completed(run)) // 2


def is_watch_over(runs: Iterable[Run]) -> bool:
    """Whether a head's watch played all its pairs, and plays none now."""
    its = list(runs)
    return all(map(is_over, its)) and pairs_played(its) >= WATCH_PAIRS


def _watched_version(label: str) -> int | None:
    """Of `watch incident@v14 against v7`: 14."""
    words = label.split()
    version = words[1].rpartition("@v")[2] if len(words) > 1 and words[0] == WATCH else ""
    return int(version) if version.isdigit() else None
