"""`upcycle baseline …`: people play tasks, and their scores stand beside those of scripted players."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from upcycle.anchoring.people import (
    PersonScore,
    append,
    check_can_append,
    checked_person,
    file_for,
    read_people,
)
from upcycle.anchoring.percentiles import AnchorRefused
from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json
from upcycle.cli.report_text import one_line, table
from upcycle.playing.errors import PlayerFailed, PlayRefused
from upcycle.shipped import BENCHMARKS, OTHER_NAMES, benchmark_named
from upcycle.tasks_files import TASKS_FILES
from upcycle.wording import amount

if TYPE_CHECKING:
    from upcycle.cli.play_view import PlayView
    from upcycle.playing.episode import PlayedEpisode
    from upcycle.tasks import Task, Taskset

MAX_TURNS: Final = 500
"""The tasks of autonomy-10 take up to 38 calls of tools, and a person looks around."""


@dataclass(frozen=True, slots=True)
class _Recording:
    """Who plays which taskset, and where the scores go."""

    person: str
    taskset: str
    path: Path
    max_turns: int


def record(
    source: str,
    /,
    *,
    person: str,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    limit: int | None = None,
    again: Annotated[bool, Parameter(negative="")] = False,
    max_turns: int = MAX_TURNS,
    as_json: JsonFlag = False,
) -> int:
    """Play the tasks of a benchmark at the keyboard; each score is added to a calibration file.

    Tasks that this person has played are left out, so the command may be ended (/quit) and started again. A
    task that is left, or whose environment fails, is not recorded. `upcycle eval --benchmark` then shows the
    percentile of a model's rewards among these people too.

    :param source: a benchmark (sheet-50, repair-30, autonomy-10), a tasks file, or FILE:SLUG.
    :param person: who plays: any name.
    :param output: the file; by default .upcycle/baselines/TASKSET.jsonl.
    :param limit: at most so many tasks.
    :param again: also what this person has played; a report counts the first time.
    :param max_turns: most turns of a task.
    :param as_json: one JSON line `score` for each task, and no episode on standard output.
    """
    found, slug = _named(source)
    recording = _Recording(checked_person(person), found.name, output or file_for(found.name), max_turns)
    _check(recording, limit)
    digest = _source_digest(found)
    tasks = [task for task in found if not slug or task.slug == slug]
    waiting = tasks if again else _without_played(tasks, recording, digest)
    if not waiting:
        raise PlayRefused(
            f"{recording.person} has played {_all_of(tasks)} ({recording.path})",
            "--again plays them once more",
        )
    return _played(waiting[:limit], recording, as_json)


def _check(recording: _Recording, limit: int | None) -> None:
    """Raises PlayRefused, and AnchorRefused of a file that cannot be written, before the first task."""
    for flag, number in (("--limit", limit), ("--max-turns", recording.max_turns)):
        if number is not None and number < 1:
            raise PlayRefused(f"{flag} is {number}", "give at least 1")
    if not sys.stdin.isatty():
        raise PlayRefused("no person plays: standard input is no terminal", "start it at a terminal")
    check_can_append(recording.path)


def show(source: str, /, *, file: Path | None = None, as_json: JsonFlag = False) -> int:
    """Who played how many tasks of a benchmark, with their mean reward, beside its scripted players.

    :param source: a benchmark, or the name of a taskset that people played.
    :param file: the calibration file; by default .upcycle/baselines/SOURCE.jsonl.
    :param as_json: one JSON line `baseline`.
    """
    name = OTHER_NAMES.get(source, source)
    path = file or file_for(name)
    if not path.exists() and name not in BENCHMARKS:
        raise AnchorRefused(
            f"no person has played {name!r:.80}: there is no file {path}",
            f"record some: upcycle baseline record {name} --person NAME",
        )
    rows = [*_people_rows(path), *_scripted_rows(name)]
    if as_json:
        print_json("baseline", {"taskset": name, "players": [row.to_json() for row in rows]})
        return Exit.OK
    if path.exists() and (notice := read_people(path).notice):
        print(notice)
    lines = [["player", "tasks", "reward", "minutes a task"]]
    for row in rows:
        minutes = "–" if row.seconds is None else f"{row.seconds / 60:.1f}"
        lines.append([one_line(row.player, 60), str(row.tasks), f"{row.reward:.3f}", minutes])
    for line in table(lines):
        print(line)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _PlayerRow:
    """Means over the tasks of a player. seconds: of a task; None for scripts."""

    player: str
    is_person: bool
    tasks: int
    reward: float
    seconds: float | None

    def to_json(self) -> dict[str, object]:
        """All fields."""
        return asdict(self)


def _people_rows(path: Path) -> Iterator[_PlayerRow]:
    found: defaultdict[str, list[PersonScore]] = defaultdict(list)
    for one in read_people(path).firsts().scores if path.exists() else ():
        found[one.person].append(one)
    for person, scores in sorted(found.items()):
        many = len(scores)
        reward, seconds = (sum(one.reward for one in scores), sum(one.seconds for one in scores))
        yield _PlayerRow(person, True, many, reward / many, seconds / many)


def _scripted_rows(name: str) -> Iterator[_PlayerRow]:
    import json

    if name not in BENCHMARKS:
        return
    file = BENCHMARKS[name].tasks_file.parent / "baseline.json"
    table_of = json.loads(file.read_text())
    for player in table_of["players"]:
        what = f"{player['player']} ({table_of['anchor']}: {player['skill']})"
        yield _PlayerRow(what, False, len(player["rewards"]), player["reward"], None)


def _named(source: str) -> "tuple[Taskset, str]":
    """The taskset and the slug, or "", that a person means."""
    from upcycle.cli.tasksets import load_tasksets
    from upcycle.playing.choosing import chosen_task, split_source

    if not any(ending in source for ending in TASKS_FILES):
        benchmark, _ = benchmark_named(source)
        return load_tasksets(benchmark.tasks_file)[benchmark.name], ""
    path, slug = split_source(source)
    found = load_tasksets(path)
    task = chosen_task(path, found.values(), slug)
    if len(found) > 1 and not slug:
        raise PlayRefused(f"{path} defines {', '.join(found)}", f"name a task: {path}:{task.slug}")
    return next(one for one in found.values() if task in one.tasks), slug


def _source_digest(taskset: "Taskset") -> str:
    from upcycle.environment.source_files import source_digest

    where = taskset.environment
    return source_digest(where.path) if where.path else ""


def _without_played(tasks: "list[Task]", recording: _Recording, digest: str) -> "list[Task]":
    if not recording.path.exists():
        return tasks
    played = {
        one.task_digest
        for one in read_people(recording.path).scores
        if (one.person, one.source_digest) == (recording.person, digest)
    }
    return [task for task in tasks if task.digest not in played]


def _all_of(tasks: "list[Task]") -> str:
    return f"task {tasks[0].slug}" if len(tasks) == 1 else f"all {len(tasks)} tasks"


def _played(tasks: "list[Task]", recording: _Recording, as_json: bool) -> int:
    """Play one after the other; the exit status."""
    from upcycle.cli.play import view_of

    view, num_recorded = view_of(as_json), 0
    status = Exit.OK
    for number, task in enumerate(tasks, start=1):
        view.say(f"task {number} of {len(tasks)}: {task.slug}", "bold")
        try:
            score = _one(task, recording, view)
        except PlayerFailed:
            view.say("left: this task is not recorded", "dim")
            break
        if score is None:
            status = Exit.FAILED
            break
        append(recording.path, score)
        num_recorded += 1
        if as_json:
            print_json("score", asdict(score))
    view.say(f"{amount(num_recorded, 'task')} recorded in {recording.path}")
    return status


def _one(task: "Task", recording: _Recording, view: "PlayView") -> PersonScore | None:
    """None where the environment failed. Raises PlayerFailed."""
    from upcycle.cli.play import host_of, person_at, play_one
    from upcycle.environment.source_files import source_digest
    from upcycle.playing.budgets import limits_of

    host = host_of(task)
    digest = source_digest(task.environment.path) if task.environment.path else ""
    limits = limits_of({"max_turns": recording.max_turns})
    episode: PlayedEpisode = asyncio.run(play_one(task, host, person_at(view), view, limits))
    view.ended(episode, host.output())
    if episode.result is None:
        return None
    return PersonScore(
        person=recording.person,
        taskset=recording.taskset,
        task=task.slug,
        task_digest=task.digest,
        family=task.family,
        reward=episode.result.score,
        success=bool(episode.result.success),
        seconds=round(episode.seconds, 1),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        source_digest=digest,
    )
