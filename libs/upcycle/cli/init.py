"""`upcycle init`."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.projects.errors import ProjectRefused
from upcycle.projects.writing import (
    NUM_DEMONSTRATIONS,
    PRESETS,
    NewProject,
    demonstrate,
    new_folder,
    next_commands,
    write_project,
)
from upcycle.tasks import MAX_TASKS
from upcycle.wording import amount


def init(
    name: Path,
    /,
    *,
    preset: str = PRESETS[0],
    num_tasks: Annotated[int, Parameter(name="--tasks")] = 200,
    num_held_out: Annotated[int, Parameter(name="--held-out")] = 100,
    num_demonstrations: Annotated[int, Parameter(name="--demonstrations")] = NUM_DEMONSTRATIONS,
    as_json: JsonFlag = False,
) -> int:
    """Write a new project: environment, tasksets, reference player, demonstrations, training run, test.

    :param name: folder to make; its last part names the environment, the model and the tasksets.
    :param preset: blank (pack a shop's stock, one tool), incident (find the service at fault, four tools),
        mcp (the same with the tools of an MCP server named sentry), or sheet (fill in a workbook).
    :param num_tasks: tasks of the train taskset, drawn from seeds.
    :param num_held_out: tasks of the held-out taskset, drawn from other seeds.
    :param num_demonstrations: episodes of the reference player to write; 0: none.
    :param as_json: one JSON line.
    """
    project = NewProject(name, preset, num_tasks, num_held_out)
    if not 0 <= num_demonstrations <= MAX_TASKS:
        raise ProjectRefused(f"--demonstrations is {num_demonstrations}", f"use 0 to {MAX_TASKS}")
    with new_folder(project) as folder:
        written = write_project(project, folder)
        if not as_json:
            _say_written(project, written, num_demonstrations)
        if num_demonstrations:
            demonstrate(folder, num_demonstrations)
            written.append("demonstrations.jsonl")
    commands = next_commands(project)
    if as_json:
        made = {"folder": str(name), "preset": preset, "files": written}
        print_json("project", {**made, "commands": [command for command, _ in commands]})
        return Exit.OK
    print(f"cd {shlex.quote(str(name))}")
    for command, purpose in commands:
        print(f"{command}   # {purpose}")
    return Exit.OK


def _say_written(project: NewProject, written: Sequence[str], num_demonstrations: int) -> None:
    """A file a line, a folder with its number of files, and what is done now."""
    folders = Counter(f"{name.rpartition('/')[0]}/" for name in written if "/" in name)
    own = [name for name in written if "/" not in name]
    _line(f"{project.folder}: preset {project.preset}")
    inside = [f"{folder}  ({amount(number, 'file')})" for folder, number in sorted(folders.items())]
    for line in (*own, *inside):
        _line(f"  {line}")
    if num_demonstrations:
        slow = ", which takes a while: each recomputes its workbook" if project.preset == "sheet" else ""
        tasks = amount(num_demonstrations, "task")
        _line(f"  demonstrations.jsonl: the reference player plays {tasks}{slow} …")


def _line(text: str) -> None:
    human().print(text, markup=False, soft_wrap=True)
