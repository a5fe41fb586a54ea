"""Tasks against the environment that they name, before anything is registered or played."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from upcycle.errors import SourceRefused, TasksetInvalid, UpcycleError

if TYPE_CHECKING:
    from upcycle.environment import Environment
    from upcycle.tasks import Taskset


def refuse_unplayable(path: Path, tasksets: "Iterable[Taskset]") -> None:
    """Raises TasksetInvalid for a task whose scenario or arguments its environment does not have, and what
    is wrong with the environment. One that is not on this machine, or that needs packages which are not, is
    not known here."""
    for taskset in tasksets:
        environment = _loaded(taskset)
        if environment is None:
            continue
        for task in taskset:
            try:
                environment.scenario_named(task.scenario).schema.check(task.args)
            except UpcycleError as error:
                raise TasksetInvalid(f"{path}: task {task.slug!r}: {error.message}", error.hint) from error


def _loaded(taskset: "Taskset") -> "Environment | None":
    from upcycle.environment import load_environment

    where = taskset.environment
    if not where.path or not Path(where.path).is_file():
        return None
    try:
        return load_environment(where.path, where.name)
    except SourceRefused:  # one that a platform has
        return None
    except UpcycleError:
        raise
    except Exception:
        return None
