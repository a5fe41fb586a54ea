"""Which episodes a page shows whole: those without a reward, the worst, the best, and a sample."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.evenly import evenly
from upcycle.reporting.episodes import EpisodeRow
from upcycle.viewing.errors import TooManyEpisodes

DEFAULT_SHOWN: Final = 24
MAX_SHOWN: Final = 2_000
_PART: Final = 4


@dataclass(frozen=True, slots=True)
class Asked:
    """limit: so many episodes at most; None: all of them. tokens: with their tokens and log-probabilities.
    Raises TooManyEpisodes."""

    limit: int | None = DEFAULT_SHOWN
    tokens: bool = False

    def __post_init__(self) -> None:
        if self.limit is not None and not 0 <= self.limit <= MAX_SHOWN:
            raise TooManyEpisodes(f"--limit is {self.limit}", f"show 0 to {MAX_SHOWN:,} episodes")

    def chosen(self, episodes: Sequence[EpisodeRow]) -> list[tuple[EpisodeRow, str]]:
        """Episodes with the word that says why each was chosen. Raises TooManyEpisodes where all are asked
        for."""
        if self.limit is None:
            if len(episodes) > MAX_SHOWN:
                raise TooManyEpisodes(
                    f"--all would show {len(episodes):,} episodes, a page holds {MAX_SHOWN:,}",
                    "choose with --limit, and read the others with `upcycle trajectories show`",
                )
            return [(one, "") for one in episodes]
        if len(episodes) <= self.limit:
            return [(one, "") for one in _worst_first(episodes)]
        return _some(episodes, self.limit)


def _some(episodes: Sequence[EpisodeRow], limit: int) -> list[tuple[EpisodeRow, str]]:
    """A quarter of each kind; what one of them leaves free is for the sample."""
    ranked = _worst_first([one for one in episodes if one.reward is not None])
    chosen: dict[str, tuple[EpisodeRow, str]] = {}

    def take(rows: Iterable[EpisodeRow], why: str, count: int) -> None:
        left = [one for one in rows if one.episode_id not in chosen]
        for one in _one_per_task_first(left)[:count]:
            chosen[one.episode_id] = (one, why)

    take((one for one in episodes if one.reward is None), "no reward", limit // _PART)
    take(ranked, "worst", -(-limit // _PART))
    take(reversed(ranked), "best", limit // _PART)
    rest = [one for one in episodes if one.episode_id not in chosen]
    free = limit - len(chosen)
    chosen |= {one.episode_id: (one, "sample") for one in evenly(rest, free)}
    return list(chosen.values())


def _worst_first(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    """Those without a reward before all."""
    return sorted(
        rows, key=lambda one: (one.reward is not None, one.reward or 0.0, one.task_slug, one.episode_id)
    )


def _one_per_task_first(rows: Iterable[EpisodeRow]) -> list[EpisodeRow]:
    """The first of each task, then the others, each in the given order."""
    first: dict[str, EpisodeRow] = {}
    others = []
    for one in rows:
        if one.task_slug in first:
            others.append(one)
        else:
            first[one.task_slug] = one
    return [*first.values(), *others]
