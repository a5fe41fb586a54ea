"""The file that an evaluation in one process writes, `trajectories.jsonl`, as an evaluation.

A line may be long, and hold anything; what is no trajectory is refused with its number. A last line that is
no JSON is one that its writer did not finish: it is left out, and `cut_line` says so.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from upcycle.local_runs import is_local_run
from upcycle.reporting.episodes import EpisodeRow, EvaluatedRun
from upcycle.reporting.external_rows import NOT_KNOWN, PLANNED, PlannedEvaluation, episode_row_of
from upcycle.trajectory_lines.reading import WAY_OUT, NoTrajectories, checked_row
from upcycle.usage import Usage, total_usage

FOLDER: Final = Path(".upcycle/evaluations")
"""Where the files are by default, each in a folder named after its evaluation."""
NAME: Final = "trajectories.jsonl"
_SUFFIXES: Final = (".json", ".jsonl")


def file_of(name: str) -> Path | None:
    """The file that a name stands for: its own, that of a folder, that of an evaluation that was started in
    this folder; None for what can only be a run of the platform. Raises NoTrajectories."""
    path = Path(name)
    if path.is_file() or path.suffix in _SUFFIXES:
        return path
    if not path.is_dir() and not is_local_run(name):
        return None
    found = (path if path.is_dir() else FOLDER / name) / NAME
    if not found.is_file():
        raise NoTrajectories(f"{name}: there is no file {found} here", WAY_OUT)
    return found


def newest_file() -> Path | None:
    """Of the evaluations in one process that were started in this folder."""
    return next(iter(newest_files()), None)


def newest_files() -> list[Path]:
    """All of those that hold something, the newest first."""
    found = [(path.stat(), path) for path in FOLDER.glob(f"*/{NAME}")]
    held = sorted((stat.st_mtime_ns, path) for stat, path in found if stat.st_size)
    return [path for _, path in reversed(held)]


class TrajectoryLines:
    """cut_line: number of a last line that its writer did not finish, known after a pass; 0: none is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut_line = 0

    @property
    def notice(self) -> str:
        """That a line was left out; "" where none was."""
        where = f"line {self.cut_line}, the last one of {self.path.name}"
        return f"{where}, is cut off: it is left out" if self.cut_line else ""

    def rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Number and row of each. Raises NoTrajectories."""
        damaged: NoTrajectories | None = None
        for number, line in self._numbered():
            if damaged is not None:
                raise damaged
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                self.cut_line = number
                damaged = NoTrajectories(f"{self.path}:{number}: not JSON: {error}", WAY_OUT)
                continue
            yield number, checked_row(row, f"{self.path}:{number}")

    def _numbered(self) -> Iterator[tuple[int, str]]:
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise NoTrajectories(f"{self.path} cannot be read: {error.strerror}", WAY_OUT) from error

    @contextmanager
    def refusing(self, number: int) -> Iterator[None]:
        """What a line that is no trajectory raises, as NoTrajectories with its number."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            said = f"{type(error).__name__}: {error}"
            raise NoTrajectories(f"{self.path}:{number}: no trajectory: {said[:200]}", WAY_OUT) from error


@dataclass(frozen=True, slots=True)
class TrajectoryFile:
    """What a file says. places: number of the line of each episode, by its id; usage: of all lines;
    planned: what was asked for, NOT_KNOWN where the lines do not say, or do not say one thing."""

    run: EvaluatedRun
    places: Mapping[str, int]
    run_ids: tuple[str, ...]
    environment: str
    usage: Usage
    planned: PlannedEvaluation


def read_file(lines: TrajectoryLines) -> TrajectoryFile:
    """Raises NoTrajectories."""
    rows: list[EpisodeRow] = []
    places: dict[str, int] = {}
    tallies = _Tallies()
    for number, found in lines.rows():
        with lines.refusing(number):
            row = episode_row_of(found, f"line {number}")
        if row.episode_id in places:
            row = replace(row, episode_id=f"{row.episode_id}, line {number}")
        places[row.episode_id] = number
        rows.append(row)
        tallies.add(found)
    if not rows:
        only = f": {lines.notice}" if lines.cut_line else ""
        raise NoTrajectories(f"{lines.path} holds no trajectory{only}", WAY_OUT)
    run = replace(_evaluated(rows, tallies), notice=lines.notice)
    environments = ", ".join(tallies.environments)
    return TrajectoryFile(run, places, tuple(tallies.runs), environments, tallies.usage, tallies.asked)


class _Tallies:
    """What all lines say together. planned: what was asked for, by run."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.agents: Counter[str] = Counter()
        self.environments: Counter[str] = Counter()
        self.planned: dict[str, PlannedEvaluation] = {}
        self._usages: list[Usage] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """One line more."""
        run_id = str(row.get("run_id") or "play")
        self.runs[run_id] += 1
        self.agents[str(row.get("agent") or "not named")] += 1
        environment = row["task"].get("environment")
        named = environment.get("name") if isinstance(environment, Mapping) else None
        self.environments[str(named or "not named")] += 1
        if run_id not in self.planned:
            self.planned[run_id] = PlannedEvaluation.of_row(row.get(PLANNED))
        self._usages.append(_usage(row))

    @property
    def usage(self) -> Usage:
        """Of all lines."""
        return total_usage(self._usages)

    @property
    def asked(self) -> PlannedEvaluation:
        """Of the one run that the file holds."""
        return next(iter(self.planned.values())) if len(self.planned) == 1 else NOT_KNOWN

    @property
    def num_planned(self) -> int:
        """Of all runs; 0 where one of them does not say."""
        counts = [one.num_episodes for one in self.planned.values()]
        return sum(counts) if all(counts) else 0


def _usage(row: Mapping[str, Any]) -> Usage:
    read, written, cost = (row.get(name) for name in ("prompt_tokens", "completion_tokens", "cost"))
    return Usage(
        cost=float(cost) if isinstance(cost, int | float) else None,
        prompt_tokens=read if isinstance(read, int) else 0,
        completion_tokens=written if isinstance(written, int) else 0,
    )


def _evaluated(rows: Sequence[EpisodeRow], tallies: _Tallies) -> EvaluatedRun:
    attempts = Counter(one.task_slug for one in rows)
    planned = tallies.asked
    return EvaluatedRun(
        run_id=next(iter(tallies.runs)),
        taskset=planned.taskset or ", ".join(tallies.environments),
        taskset_digest=planned.taskset_digest,
        source_digest=planned.source_digest,
        model=", ".join(tallies.agents),
        versions=(),
        group=planned.group or max(attempts.values()),
        sampling=planned.sampling,
        duration_s=0.0,
        episodes=tuple(sorted(rows, key=lambda one: one.episode_id)),
        num_planned=tallies.num_planned,
    )
