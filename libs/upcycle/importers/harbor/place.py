"""Where one episode of a task directory is played: a folder that stands for its image, or a container."""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from upcycle.importers.harbor.dockerfile import Files
from upcycle.importers.harbor.reading import TEST, HarborTask

SHELL_S: Final = 25.0
"""A call of a tool may take 30 s."""
MAX_OUTPUT_CHARS: Final = 16_000
REWARDS: Final = "/logs/verifier"
_KEY: Final = "reward"


class TaskPlace(ABC):
    """One episode's place. Paths are those of the image."""

    def __init__(self, task: HarborTask) -> None:
        self._task = task

    def shell(self, command: str) -> str:
        """The end of what it prints, and how it ended."""
        status, said = self._run(command, self._task.variables, SHELL_S)
        ended = f"not over within {SHELL_S:g} s" if status is None else f"exit status {status}"
        return f"{said[-MAX_OUTPUT_CHARS:]}\n({ended})"

    def verdict(self) -> Mapping[str, Any]:
        """Put the tests in their place, run them, and read the reward. Raises RuntimeError where they write
        none, or are not over in time."""
        task = self._task
        self._replace(REWARDS, {})
        self._replace("/tests", task.tests)
        status, said = self._run(
            f"bash /tests/{TEST}", {**task.variables, **task.verifier_variables}, task.verifier_s
        )
        if status is None:
            raise RuntimeError(f"tests/{TEST} was not over within {task.verifier_s:g} s")
        return {**self._rewards(status, said), "content": said[-2000:]}

    def _rewards(self, status: int, said: str) -> Mapping[str, Any]:
        try:
            written = self._content(f"{REWARDS}/reward.json")
            if written is not None:
                values = json.loads(written)
                reward = values[_KEY] if _KEY in values or len(values) != 1 else next(iter(values.values()))
                others = {name: value for name, value in values.items() if name != _KEY}
                return {"score": _number(reward), "info": {"rewards": others} if others else {}}
            text = self._content(f"{REWARDS}/reward.txt")
            if text is None:
                raise FileNotFoundError(f"{REWARDS}/reward.txt")
            return {"score": _number(text)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RuntimeError(
                f"tests/{TEST} ended with status {status} and wrote no reward to {REWARDS} ({error!r:.120})"
                f": {said[-500:]}"
            ) from error

    @abstractmethod
    def _run(self, command: str, variables: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
        """Run it with bash: its status, None where it was not over in time; and what it printed."""

    @abstractmethod
    def _replace(self, folder: str, files: Files) -> None:
        """Remove what an agent may have put at a folder's path, and make the folder with these files."""

    @abstractmethod
    def _content(self, path: str) -> str | None:
        """Of a file; None where there is none."""


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no reward")
    return number
