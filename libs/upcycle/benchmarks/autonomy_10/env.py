"""The environment: one simulated computer, tools for its screen and its shell, and a scenario that looks at
how it was left."""

import copy
from collections.abc import Generator
from typing import Any, Final

from upcycle import Environment
from upcycle.errors import UnknownName
from upcycle.scenario import Reference

from .apps import desktop
from .categories import CATEGORIES
from .grading import grade
from .machine.state import Computer
from .problems import TASKS_PER_CATEGORY, ComputerProblem
from .shell.running import run

env = Environment("autonomy-10")

NUM_TASKS: Final = TASKS_PER_CATEGORY * len(CATEGORIES)

# An episode is a process of its own, so its computer is this module's state: set by the scenario.
_machines: list[Computer] = []


@env.tool()
def shell(command: str) -> str:
    """Run a command line in the shell of the computer: ls, cat, grep, find, mv, cp, rm, mkdir, sed, chmod,
    ps, kill, systemctl, crontab, pkg and others; help names them. Pipes, ;, && and redirections work."""
    ran = run(_machine(), command)
    ended = f"(exit status {ran.status})"
    return f"{ran.text}\n{ended}".strip() if ran.status or not ran.text else ran.text


@env.tool()
def screen() -> str:
    """What is on the screen: text, and elements as [name]."""
    return desktop.shown(_machine())


@env.tool()
def open_app(name: str) -> str:
    """Open an app at its first page: mail, calendar, tables, notes, settings or browser (the intranet)."""
    return desktop.open_app(_machine(), name)


@env.tool()
def click(element: str) -> str:
    """Click an element of the screen, by its name without the brackets."""
    return desktop.click(_machine(), element)


@env.tool()
def type_text(element: str, text: str) -> str:
    """Write a text into a field of the screen, in the place of what it holds."""
    return desktop.type_text(_machine(), element, text)


@env.scenario("work")
def work(number: int) -> Generator[Any, Any, None]:
    """Do the work of one of the tasks."""
    problem = drawn(number)
    given = copy.deepcopy(problem.machine)
    _machines.append(problem.machine)
    try:
        yield problem.text
        yield grade(problem.goals, given, problem.machine)
    finally:
        _machines.pop()


@work.gold
def done(number: int) -> Reference:
    """Does what is asked; for `upcycle check`."""
    return Reference("The work is finished.", drawn(number).calls())


def drawn(number: int) -> ComputerProblem:
    """The problem of a task, with a fresh computer. Raises UnknownName."""
    if not 0 <= number < NUM_TASKS:
        raise UnknownName(f"autonomy-10 has no task {number}", f"its tasks are 0 to {NUM_TASKS - 1}")
    return CATEGORIES[number % len(CATEGORIES)].problem(number // len(CATEGORIES))


def _machine() -> Computer:
    if not _machines:
        raise RuntimeError("no computer is on: start the scenario 'work' before calling tools")
    return _machines[-1]
