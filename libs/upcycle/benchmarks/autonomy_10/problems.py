"""A task as it is drawn: the machine, what is asked, what is right at the end, and a way to get there."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .machine.state import Computer

Call = tuple[str, dict[str, Any]]
Calls = tuple[Call, ...]
TASKS_PER_CATEGORY: Final = 12


@dataclass(frozen=True, slots=True)
class Want:
    """One thing as it is to be at the end. attributes: those that are asked for; None: it is gone."""

    thing: str
    attributes: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Goal:
    """A part of the reward. needs: names of goals without which it is worth nothing."""

    name: str
    wants: tuple[Want, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deed:
    """Calls of the reference that belong together; they begin at no place that another deed leads to."""

    calls: Calls
    changes: bool = True


@dataclass(slots=True)
class Plan:
    """The reference as it is written down."""

    deeds: list[Deed] = field(default_factory=list)

    def look(self, *calls: Call) -> None:
        """Calls that only read."""
        self.deeds.append(Deed(calls, changes=False))

    def act(self, *calls: Call) -> None:
        """Calls that change something."""
        self.deeds.append(Deed(calls))


@dataclass(frozen=True, slots=True)
class ComputerProblem:
    """What one task gives and asks. machine: fresh, for one play."""

    text: str
    machine: Computer
    goals: tuple[Goal, ...]
    deeds: tuple[Deed, ...]

    def calls(self) -> Calls:
        """The reference: what solves it."""
        return tuple(call for deed in self.deeds for call in deed.calls)


Maker = Callable[[random.Random], ComputerProblem]


@dataclass(frozen=True, slots=True)
class Category:
    """One kind of work."""

    name: str
    make: Maker

    def problem(self, seed: int) -> ComputerProblem:
        """The problem of a seed; the same each time."""
        return self.make(random.Random(f"autonomy-10/{self.name}/{seed}"))


def shell(command: str) -> Call:
    """A call of the tool `shell`."""
    return "shell", {"command": command}


def opened(app: str, *elements: str) -> Calls:
    """Calls that open an app and click elements, one after another."""
    return (("open_app", {"name": app}), *(click(one) for one in elements))


def click(element: str) -> Call:
    """A call of the tool `click`."""
    return "click", {"element": element}


def typed(element: str, text: str) -> Call:
    """A call of the tool `type_text`."""
    return "type_text", {"element": element, "text": text}


def mailed(to: str, subject: str, body: str) -> Calls:
    """Calls that send a message."""
    fields = (typed("to", to), typed("subject", subject), typed("body", body))
    return (*opened("mail", "new"), *fields, click("send"))


def noted(title: str, text: str) -> Calls:
    """Calls that write a new note."""
    return (*opened("notes", "new"), typed("title", title), typed("text", text), click("save"))


def written(path: str, text: str) -> Call:
    """A call that writes a file of a few lines."""
    quoted = text.replace("'", "'\\''")
    return shell(f"printf '%s\\n' '{quoted}' > {path}")
