"""An evaluation in one process that goes on: an episode that has a reward in its file is not played again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from upcycle.playing.errors import PlayRefused
from upcycle.reporting.external_rows import PLANNED, PlannedEvaluation, finite_number
from upcycle.reporting.trajectory_files import FOLDER, NAME, TrajectoryLines, newest_files
from upcycle.results import Run
from upcycle.usage import Usage
from upcycle.whole_files import written_whole

_SHOWN: Final = 3
_DIGEST_CHARS: Final = 12
_WAY_OUT: Final = "give the command that began it, and --resume; without --resume a new evaluation begins"


@dataclass(frozen=True, slots=True)
class KeptEpisodes:
    """Of the evaluation that goes on. rows: the lines that have a reward. runs: their results. done: their
    tasks and attempts. num_failed: lines without a reward, whose episodes are played again."""

    path: Path
    rows: Sequence[Mapping[str, Any]] = ()
    runs: Sequence[Run] = ()
    done: frozenset[tuple[str, int]] = frozenset()
    num_failed: int = 0

    def leave_failed(self) -> None:
        """Their lines give way to the new ones. Raises OSError."""
        if self.num_failed:
            with written_whole(self.path) as draft:
                draft.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in self.rows))


def file_to_resume(run_id: str, asked: Path | None) -> Path:
    """asked: the file that the user named. Raises PlayRefused, which says what there is."""
    path = asked or FOLDER / run_id / NAME
    if path.is_file():
        return path
    known = [file.parent.name for file in newest_files()][:_SHOWN]
    there = f"the newest in this folder: {', '.join(known)}" if known else "none was played in this folder"
    raise PlayRefused(
        f"--resume {run_id:.80}: there is no file {path}", f"{there}; --trajectories names a file elsewhere"
    )


def kept_episodes(path: Path, run_id: str, planned: PlannedEvaluation, agent: str) -> KeptEpisodes:
    """planned, agent: what is asked for now. Raises PlayRefused where that is something else than what the
    file was begun with, and NoTrajectories for a file that holds none."""
    lines, rows, runs, num_failed = TrajectoryLines(path), list[Mapping[str, Any]](), list[Run](), 0
    attempts = set[tuple[str, int]]()
    for number, row in lines.rows():
        if row.get("run_id") != run_id:
            raise PlayRefused(f"{path}:{number} is of run {row.get('run_id')}, not of {run_id}", _WAY_OUT)
        _same(run_id, PlannedEvaluation.of_row(row.get(PLANNED)), planned)
        if row.get("agent") != agent:
            raise PlayRefused(f"{run_id} was played by {row.get('agent')}, not by {agent}", _WAY_OUT)
        if row.get("reward") is None:
            num_failed += 1
            continue
        with lines.refusing(number):
            runs.append(_run_of(row))
            attempts.add((row["task"]["slug"], int(row["episode_id"].rpartition("/")[2])))
        rows.append(row)
    return KeptEpisodes(path, rows, runs, frozenset(attempts), num_failed + bool(lines.cut_line))


def _same(run_id: str, was: PlannedEvaluation, now: PlannedEvaluation) -> None:
    for one in fields(PlannedEvaluation):
        before, asked = getattr(was, one.name), getattr(now, one.name)
        if before != asked:
            what, cut = one.name.replace("_", " "), _DIGEST_CHARS if "digest" in one.name else None
            said = f"{run_id} was begun with {what} {str(before)[:cut]}, not {str(asked)[:cut]}"
            raise PlayRefused(said, _WAY_OUT)


def _run_of(row: Mapping[str, Any]) -> Run:
    """Raises KeyError, TypeError and ValueError for a line that is no trajectory."""
    return Run(
        task_slug=row["task"]["slug"],
        reward=finite_number(row["reward"], "reward"),
        success=bool(row.get("success")),
        trace_id="",
        episode_id=row["episode_id"],
        policy_failure=str(row.get("policy_failure") or ""),
        run_id=row["run_id"],
        usage=Usage(
            cost=row.get("cost"),
            prompt_tokens=int(row.get("prompt_tokens") or 0),
            completion_tokens=int(row.get("completion_tokens") or 0),
        ),
        failure_detail=str(row.get("failure_detail") or ""),
    )
