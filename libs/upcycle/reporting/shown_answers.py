"""Which tools told the agent word for word what it had to find: by the rule of `upcycle check`."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from upcycle.leaks import leaked, secret_arguments
from upcycle.reporting.episodes import EpisodeRow


class TaskSecrets:
    """What the agent has to find, by task."""

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        """arguments: of the scenario, by the task's slug."""
        self._of = {slug: secret_arguments(given) for slug, given in arguments.items()}
        self._all = [secret for of_task in self._of.values() for secret in of_task]

    @classmethod
    def of_json(cls, arguments: Mapping[str, str]) -> Self:
        """Of arguments as the platform keeps them."""
        return cls({slug: _object(text) for slug, text in arguments.items()})

    def __bool__(self) -> bool:
        """Whether any task has one."""
        return bool(self._all)

    def shown_by(self, slug: str, results: Iterable[tuple[str, str]]) -> str:
        """The first tool whose result holds it; "" where none does. results: name and text of each call."""
        secrets = self._of.get(slug)
        found = (name for name, text in results if secrets and leaked(secrets, text, self._all))
        return next(found, "")


def _object(text: str) -> Mapping[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return {}
    return given if isinstance(given, dict) else {}


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """A task of which a tool's result held the answer, in so many of its episodes that were read."""

    task: str
    tool: str
    count: int


def shown_answers(episodes: Iterable[EpisodeRow]) -> tuple[ShownAnswer, ...]:
    """Those of an evaluation, the most frequent first."""
    counts = Counter((one.task_slug, one.answer_shown_by) for one in episodes if one.answer_shown_by)
    return tuple(ShownAnswer(*key, count) for key, count in sorted(counts.items(), key=_order))


def _order(item: tuple[tuple[str, str], int]) -> tuple[int, tuple[str, str]]:
    return -item[1], item[0]
