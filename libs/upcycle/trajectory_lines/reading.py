"""Lines of a trajectories file, and what each of them teaches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from upcycle.errors import TasksetInvalid, UpcycleError
from upcycle.task_rows import EnvironmentRef, Task, canonical_json, check_name
from upcycle.trajectory_lines.writing import FORMAT

_FAMILY: Final = FORMAT.rpartition("/")[0] + "/"
_OF_A_COMMAND: Final = ("launch", "done")
WAY_OUT: Final = "give what `upcycle eval` with an agent of others wrote, or name a run"


class NoTrajectories(UpcycleError, ValueError):
    """A file, or a line of one, that holds no trajectory."""

    kind = "no_trajectories"


def checked_row(row: Any, where: str) -> Mapping[str, Any]:
    """The JSON of one line. Raises NoTrajectories for what is none, or is of a format that this version does
    not know."""
    if isinstance(row, dict) and row.get("kind") in _OF_A_COMMAND and "schema_version" in row:
        raise NoTrajectories(
            f"{where}: a line that `upcycle eval --json` printed, for `upcycle compare`: it has no turns",
            "give the trajectories.jsonl that its line `done` names, or the id of the run",
        )
    if not isinstance(row, dict) or not isinstance(row.get("task"), dict):
        raise NoTrajectories(f"{where}: no trajectory: it has no task", WAY_OUT)
    if (written := row.get("format", FORMAT)) != FORMAT:
        raise NoTrajectories(
            f"{where}: its format is {str(written)!r:.80}, and this version reads {FORMAT!r}",
            "read it with the version that wrote it, or a newer one",
        )
    return row


def is_trajectory(row: Any) -> bool:
    """Whether a line of conversations is one of a trajectories file; other files may have a `format`, too."""
    if not isinstance(row, dict):
        return False
    written, task = row.get("format"), row.get("task")
    is_ours = isinstance(written, str) and written.startswith(_FAMILY)
    return is_ours or ("turns" in row and isinstance(task, dict) and "slug" in task)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What SFT takes of a trajectory. task: its digest; empty where the line names none. succeeded: it has a
    reward, and the scenario calls it a success."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    task: str
    succeeded: bool


def demonstration_of(row: Mapping[str, Any], where: str) -> Demonstration:
    """Raises NoTrajectories for a line without messages or with a digest that is not its task's."""
    messages, tools = row.get("messages"), row.get("tools") or []
    for name, value in (("messages", messages), ("tools", tools)):
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise NoTrajectories(f"{where}: its {name} are no list of objects", WAY_OUT)
    succeeded = row.get("reward") is not None and row.get("success") is True
    return Demonstration(messages or (), tools, _digest(row["task"], where), succeeded)


def _digest(task: Mapping[str, Any], where: str) -> str:
    """Made of the content where that is known: no line says by its own digest that it is another task."""
    said, environment = str(task.get("digest") or ""), task.get("environment")
    if not isinstance(environment, Mapping) or "scenario" not in task:
        return said
    try:
        ref = EnvironmentRef(check_name("environment", environment.get("name")))
        digest = Task(ref, task["scenario"], canonical_json(task.get("args", {}))).digest
    except TasksetInvalid as error:
        raise NoTrajectories(f"{where}: its task is none: {error}", WAY_OUT) from error
    if said not in ("", digest):
        raise NoTrajectories(
            f"{where}: its task has digest {digest[:12]}, and the line says {said[:12]}",
            "leave `digest` as it was written, or leave it out",
        )
    return digest
