"""Other spellings of a task: its arguments with a default of the scenario written out, or left out.

The scenario gets the same call either way, so they are one task. It has a digest for each of them, and a
claim on one side of the line is a claim of all.
"""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import Any, Final

from upcycle.errors import TasksetInvalid
from upcycle.task_rows import canonical_json, task_digest

MAX_OPEN: Final = 3
"""Arguments at their default of which every combination is a spelling: 8 of them. Of more, all written out
and all left out are."""


def other_spellings(environment: str, scenario: str, args_json: str, schema: Mapping[str, Any]) -> set[str]:
    """The digests of a task as it may be written otherwise. schema: of the scenario's arguments; a default
    that it does not tell makes no spelling."""
    given = json.loads(args_json)
    try:
        at_default = {
            name: default
            for name, default in _defaults(schema).items()
            if name not in given or _same(given[name], default)
        }
        fixed = {name: value for name, value in given.items() if name not in at_default}
        out = [{name: at_default[name] for name in names} for names in _choices(at_default)]
        written = [canonical_json(fixed | one) for one in out]
    except (TasksetInvalid, RecursionError):  # a default of a served environment that is no JSON
        return set()
    found = {task_digest(environment, scenario, one) for one in written}
    return found - {task_digest(environment, scenario, args_json)}


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    named = {name: one for name, one in properties.items() if isinstance(one, Mapping)}
    return {name: one["default"] for name, one in named.items() if "default" in one}


def _choices(names: Mapping[str, Any]) -> list[tuple[str, ...]]:
    every = tuple(names)
    if len(every) > MAX_OPEN:
        return [(), every]
    return [some for size in range(len(every) + 1) for some in combinations(every, size)]


def _same(value: Any, default: Any) -> bool:
    """Whether they are one content: 7 and 7.0 are, 1 and true are not."""
    return task_digest("", "", canonical_json(value)) == task_digest("", "", canonical_json(default))
