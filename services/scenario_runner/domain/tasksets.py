"""Tasksets, and which side of the line a task is on."""

from dataclasses import dataclass

from episodes import Split
from scenario_runner.domain.environments import EnvironmentSource


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
    """A taskset as registered. `tasks` may be left out where only the header is needed."""

    name: str
    digest: str
    split: Split
    source: EnvironmentSource
    num_tasks: int
    tasks: tuple[RunnableTask, ...] = ()
    revision: int = 1

    @property
    def key(self) -> str:
        """What its tasks are stored under, and what names exactly this revision: `name`, then `name@2`, …"""
        return self.name if self.revision == 1 else f"{self.name}@{self.revision}"


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """Which side a task is on, and who put it there: `taskset NAME` or `gradient of WHO`."""

    digest: str
    split: Split
    claimed_by: str
