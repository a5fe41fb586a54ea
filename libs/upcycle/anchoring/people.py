"""Calibration files: one JSON line for each task that a person played.

Lines are only added. A last line that its writer did not finish is left out when the file is read, which is
said, and is refused by name when the next line is to be added.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from upcycle.anchoring.percentiles import AnchorRefused

SCHEMA: Final = "upcycle-calibration/1"
FOLDER: Final = Path(".upcycle/baselines")
"""Where the files are by default, each named after its taskset."""
MAX_PERSON_CHARS: Final = 80
_WAY_OUT: Final = "give a file that `upcycle baseline record` wrote"


@dataclass(frozen=True, slots=True)
class PersonScore:
    """One task that a person played to its end. date: when it ended, ISO 8601 in UTC. source_digest: of the
    code that judged it."""

    person: str
    taskset: str
    task: str
    task_digest: str
    family: str
    reward: float
    success: bool
    seconds: float
    date: str
    source_digest: str

    @classmethod
    def of_row(cls, row: Any, where: str) -> Self:
        """From a line. Raises AnchorRefused, naming it."""
        if not isinstance(row, Mapping) or row.get("schema") != SCHEMA:
            raise AnchorRefused(f"{where}: no line of a calibration ({SCHEMA})", _WAY_OUT)
        missing = [one.name for one in fields(cls) if one.name not in row]
        if missing:
            raise AnchorRefused(f"{where}: it has no {missing[0]}", _WAY_OUT)
        reward, texts = row["reward"], ("person", "task_digest", "family", "source_digest")
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not 0 <= reward <= 1:
            raise AnchorRefused(f"{where}: reward {reward!r:.40} is outside 0 to 1", _WAY_OUT)
        for name in texts:
            if not isinstance(row[name], str):
                raise AnchorRefused(f"{where}: {name} is {row[name]!r:.40}, and no text", _WAY_OUT)
        return cls(**{one.name: row[one.name] for one in fields(cls)})


@dataclass(frozen=True, slots=True)
class PeopleScores:
    """What a file holds, oldest first. notice: that a cut last line was left out; "" where none was."""

    scores: tuple[PersonScore, ...] = ()
    notice: str = ""

    @property
    def people(self) -> tuple[str, ...]:
        """Each once, by name."""
        return tuple(sorted({one.person for one in self.scores}))

    def firsts(self) -> "PeopleScores":
        """Without what a person played again: the second time is easier."""
        kept: dict[tuple[str, str, str], PersonScore] = {}
        for one in self.scores:
            kept.setdefault((one.person, one.task_digest, one.source_digest), one)
        return PeopleScores(tuple(kept.values()), self.notice)


def file_for(taskset: str) -> Path:
    """Where the scores of people on a taskset are by default."""
    return FOLDER / f"{taskset}.jsonl"


def checked_person(name: str) -> str:
    """Raises AnchorRefused."""
    if not name.strip() or len(name) > MAX_PERSON_CHARS or not name.isprintable():
        raise AnchorRefused(
            f"person {name!r:.100} is no printable text of 1 to {MAX_PERSON_CHARS} characters",
            "any name will do: --person ann",
        )
    return name.strip()


def read_people(path: Path) -> PeopleScores:
    """Raises AnchorRefused, naming file and line."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise AnchorRefused(f"{path} cannot be read: {error.strerror}", _WAY_OUT) from error
    rows: list[PersonScore] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                where = f"line {number}, the last one of {path.name}"
                return PeopleScores(tuple(rows), f"{where}, is cut off: it is left out")
            raise AnchorRefused(f"{path}:{number}: not JSON: {error}", _WAY_OUT) from error
        rows.append(PersonScore.of_row(row, f"{path}:{number}"))
    return PeopleScores(tuple(rows))


def check_can_append(path: Path) -> None:
    """Before a person plays. Raises AnchorRefused for a file that holds anything else, and for a last line
    that is cut off: the next one would be lost in it."""
    if path.exists() and (found := read_people(path)).notice:
        raise AnchorRefused(f"{path}: {found.notice}", "remove that line, then record again")


def append(path: Path, score: PersonScore) -> None:
    """One line more, on the disk when this returns. Raises AnchorRefused for a reward outside 0 to 1, and
    OSError."""
    if not (math.isfinite(score.reward) and 0 <= score.reward <= 1):
        raise AnchorRefused(
            f"reward {score.reward:g} of task {score.task} is outside 0 to 1: it is not recorded",
            "only rewards from 0 to 1 are anchored",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"schema": SCHEMA, **asdict(score)}, ensure_ascii=False).encode() + b"\n"
    if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        line = b"\n" + line  # an editor left the last line without its end
    with path.open("ab") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
