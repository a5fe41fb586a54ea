"""Tasksets, and which side of the line a task is on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from episodes import Split
from scenario_runner.domain.environments import EnvironmentSource
from scenario_runner.domain.taskset_checks import TasksetCheck


@dataclass(frozen=True, slots=True)
class RunnableTask:
    """One task of a registered taskset."""

    slug: str
    scenario: str
    args_json: str
    family: str
    digest: str


@dataclass(frozen=True, slots=True)
class RegisteredTaskset:
    """A taskset as registered. `tasks` may be left out where only the header is needed. spellings: of tasks
    that may be written otherwise, from each such digest to the task's; known while it is registered."""

    name: str
    digest: str
    split: Split
    source: EnvironmentSource
    num_tasks: int
    tasks: tuple[RunnableTask, ...] = ()
    revision: int = 1
    spellings: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def key(self) -> str:
        """What its tasks are stored under, and what names exactly this revision: `name`, then `name@2`, …"""
        return self.name if self.revision == 1 else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class TasksetFacts:
    """A registered taskset without its tasks. sides: how many of them are on which side. source_digest: of
    the environment's code as it lies there now, "" where it is not known."""

    taskset: RegisteredTaskset
    registered_at: datetime
    sides: Mapping[Split, int] = field(default_factory=dict)
    source_digest: str = ""
    checks: tuple[TasksetCheck, ...] = ()
    """What was found in it, those under way first, then the newest."""


@dataclass(frozen=True, slots=True)
class TasksetUser:
    """A run that plays a taskset, or is gated on it. is_gone: retention removed its groups and episodes."""

    run_id: str
    model: str
    is_gone: bool = False
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """Which side a task is on, and who put it there: `taskset NAME`, `gradient of WHO`, `new task of RUN`."""

    digest: str
    split: Split
    claimed_by: str
