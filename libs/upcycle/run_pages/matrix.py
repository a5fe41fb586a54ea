"""Tasks × attempts: one row a task, one cell an episode."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from upcycle.reporting.episodes import EpisodeRow
from upcycle.reporting.report import by_task

MAX_TASKS: Final = 500
MAX_ATTEMPTS: Final = 64
SHADES: Final = 10
"""Shades 0 to 10: a reward of 0, of 1, and between."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One episode. shade: None where it has no reward. anchor: of the episode below; "" where it is not
    shown."""

    text: str
    shade: int | None
    mark: str
    anchor: str


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task. mean: of its rewards; None without one. num_more: attempts that have no cell."""

    slug: str
    family: str
    mean: float | None
    num_solved: int
    num_played: int
    cells: tuple[Cell, ...]
    num_more: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """columns: numbers of attempts, from 1. num_left_out: tasks that have no line."""

    columns: tuple[int, ...]
    lines: tuple[TaskLine, ...]
    num_left_out: int


def matrix_of(episodes: Iterable[EpisodeRow], anchors: Mapping[str, str]) -> Matrix:
    """anchors: by episode id. The tasks with the lowest mean reward come first, and stay where there are too
    many."""
    lines = sorted((_line(slug, rows, anchors) for slug, rows in by_task(episodes).items()), key=_worst_first)
    kept = lines[:MAX_TASKS]
    columns = max((len(line.cells) for line in kept), default=0)
    return Matrix(tuple(range(1, columns + 1)), tuple(kept), len(lines) - len(kept))


def _worst_first(line: TaskLine) -> tuple[float, str]:
    return (math.inf if line.mean is None else line.mean, line.slug)


def _line(slug: str, rows: Sequence[EpisodeRow], anchors: Mapping[str, str]) -> TaskLine:
    rewards = [one.reward for one in rows if one.reward is not None]
    return TaskLine(
        slug=slug,
        family=rows[0].family,
        mean=sum(rewards) / len(rewards) if rewards else None,
        num_solved=sum(one.success for one in rows),
        num_played=len(rows),
        cells=tuple(_cell(one, anchors) for one in rows[:MAX_ATTEMPTS]),
        num_more=max(0, len(rows) - MAX_ATTEMPTS),
    )


def _cell(row: EpisodeRow, anchors: Mapping[str, str]) -> Cell:
    anchor = anchors.get(row.episode_id, "")
    if row.reward is None:
        return Cell(row.failure or "missing", None, "", anchor)
    mark = "✓" if row.success else "×" if row.policy_failure else ""
    return Cell(f"{row.reward:.2f}", shade(row.reward), mark, anchor)


def shade(reward: float) -> int:
    """0 to 10; a reward of a foreign environment may lie outside 0 to 1."""
    return round(min(1.0, max(0.0, reward)) * SHADES)
