"""An evaluation in a file: the output of `upcycle eval … --json`, or a `trajectories.jsonl`."""

import json
from pathlib import Path
from typing import Any, Final

from upcycle.reporting.episodes import EvaluatedRun, NoEvaluation
from upcycle.reporting.trajectory_files import TrajectoryLines, read_file

WAY_OUT: Final = "give the output of `upcycle eval … --json`, a trajectories.jsonl, or the id of a run"


def evaluation_in(path: Path) -> EvaluatedRun:
    """Of either kind of file. Raises NoEvaluation, and NoTrajectories for a line that is no trajectory."""
    lines = _lines(path)
    if lines and isinstance(_parsed(path, *lines[0]).get("task"), dict):
        return _of_trajectories(path)
    for number, line in reversed(lines):
        row = _parsed(path, number, line)
        if isinstance(row.get("evaluation"), dict):
            return EvaluatedRun.from_json(row["evaluation"])
    raise NoEvaluation(f"{path} has no trajectory and no line `done` with an evaluation", WAY_OUT)


def _of_trajectories(path: Path) -> EvaluatedRun:
    found = read_file(TrajectoryLines(path))
    if len(found.run_ids) > 1:
        runs = ", ".join(found.run_ids)
        raise NoEvaluation(f"{path} holds {len(found.run_ids)} evaluations: {runs}", "give a file of one")
    return found.run


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [(number, line) for number, line in enumerate(file, start=1) if line.strip()]
    except OSError as error:
        raise NoEvaluation(f"{path} cannot be read: {error.strerror}", WAY_OUT) from error


def _parsed(path: Path, number: int, line: str) -> dict[str, Any]:
    """An object, empty for what is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NoEvaluation(f"{path}:{number}: not JSON: {error}", WAY_OUT) from error
    return row if isinstance(row, dict) else {}
