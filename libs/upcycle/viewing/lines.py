"""The trajectories of an evaluation in one process (`trajectories.jsonl`) as a page.

The file is read twice: every line becomes a row, then the chosen ones are read whole. A line may be long, and
hold anything; what is no trajectory is refused with its number.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.report import report_of
from upcycle.run_pages.values import Header, RunPage, ShownEpisode
from upcycle.viewing.asked import Asked
from upcycle.viewing.errors import NoTrajectories
from upcycle.viewing.line_episodes import episode_row_of, shown_line

_WAY_OUT: Final = "give what `upcycle eval` with an agent of others wrote, or name a run"


def page_of_lines(path: Path, asked: Asked) -> RunPage:
    """Raises NoTrajectories and TooManyEpisodes."""
    rows: list[EpisodeRow] = []
    places: dict[str, int] = {}
    tallies = _Tallies()
    for number, line in _lines(path):
        found = _parsed(path, number, line)
        with _refusing(path, number):
            row = episode_row_of(found, f"line {number}")
        if row.episode_id in places:
            row = replace(row, episode_id=f"{row.episode_id}, line {number}")
        places[row.episode_id] = number
        rows.append(row)
        tallies.add(found)
    if not rows:
        raise NoTrajectories(f"{path} holds no trajectory", _WAY_OUT)
    run = _evaluated(rows, tallies)
    warnings = (f"{path.name} holds {len(tallies.runs)} runs: {', '.join(tallies.runs)}",)
    return RunPage(
        header=Header(
            run.run_id,
            "evaluation in one process",
            "as far as it is written",
            tuple(tallies.facts(path)),
            warnings=warnings if len(tallies.runs) > 1 else (),
        ),
        episodes=run.episodes,
        shown=tuple(_shown(path, asked, rows, places)),
        report=report_of(run),
        group=run.group,
    )


class _Tallies:
    """What all lines say together."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self._agents: Counter[str] = Counter()
        self._environments: Counter[str] = Counter()
        self._tokens = Counter[str]()
        self._costs: list[float] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """One line more."""
        self.runs[str(row.get("run_id") or "play")] += 1
        self._agents[str(row.get("agent") or "not named")] += 1
        environment = row["task"].get("environment")
        named = environment.get("name") if isinstance(environment, Mapping) else None
        self._environments[str(named or "not named")] += 1
        for name in ("prompt_tokens", "completion_tokens"):
            if isinstance(count := row.get(name), int):
                self._tokens[name] += count
        if isinstance(cost := row.get("cost"), int | float):
            self._costs.append(cost)

    @property
    def agent(self) -> str:
        """Each agent once."""
        return ", ".join(self._agents)

    @property
    def environment(self) -> str:
        """Each environment once."""
        return ", ".join(self._environments)

    def facts(self, path: Path) -> Iterator[tuple[str, str]]:
        """For the top of the page."""
        yield "agent", self.agent
        yield "environment", self.environment
        yield "file", path.name
        yield "episodes", str(self.runs.total())
        tokens = self._tokens
        yield "tokens", f"{tokens['prompt_tokens']:,} read, {tokens['completion_tokens']:,} written"
        if self._costs:
            yield "cost", f"{sum(self._costs):.4g}"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise NoTrajectories(f"{path} cannot be read: {error}", _WAY_OUT) from error


def _parsed(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NoTrajectories(f"{path}:{number}: not JSON: {error}", _WAY_OUT) from error
    if not isinstance(row, dict) or not isinstance(row.get("task"), dict):
        raise NoTrajectories(f"{path}:{number}: no trajectory: it has no task", _WAY_OUT)
    return row


@contextmanager
def _refusing(path: Path, number: int) -> Iterator[None]:
    """What a line that is no trajectory raises, as NoTrajectories with its number."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise NoTrajectories(f"{path}:{number}: no trajectory: {said[:200]}", _WAY_OUT) from error


def _evaluated(rows: Sequence[EpisodeRow], tallies: _Tallies) -> EvaluatedRun:
    attempts = Counter(one.task_slug for one in rows)
    return EvaluatedRun(
        run_id=next(iter(tallies.runs)),
        taskset=tallies.environment,
        taskset_digest="",
        source_digest="",
        model=tallies.agent,
        versions=(),
        group=max(attempts.values()),
        sampling={},
        duration_s=0.0,
        episodes=tuple(sorted(rows, key=lambda one: one.episode_id)),
    )


def _shown(
    path: Path, asked: Asked, rows: Sequence[EpisodeRow], places: Mapping[str, int]
) -> Iterator[ShownEpisode]:
    """The chosen episodes in the order of the choice; their lines are read once more."""
    chosen = asked.chosen(rows)
    wanted = {places[row.episode_id]: (row, why) for row, why in chosen}
    found = {}
    for number, line in _lines(path):
        if number in wanted:
            row, why = wanted[number]
            with _refusing(path, number):
                found[row.episode_id] = shown_line(row, why, _parsed(path, number, line))
    for row, _ in chosen:
        if row.episode_id in found:
            yield found[row.episode_id]
