"""How many attempts at a new task are expected to succeed, by what a run played lately of its family. Pure.

One argument of the scenario, a number, says how hard a task is; which way is not assumed. WebRL
(arXiv:2411.02337) asks a critic, and keeps new tasks that it gives between 0.05 and 0.75.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from upcycle.run_config import Training

LOOK_BACK_STEPS: Final = 8
"""As many steps' groups count: a policy that learns solves later what it could not."""
LEAST_ATTEMPTS: Final = 4
"""At tasks of one value, of which its share is taken."""
_NUMBERS: Final = ("integer", "number")
_LARGEST: Final = 10**300


@dataclass(frozen=True, slots=True)
class Attempts:
    """Graded attempts at tasks whose argument has this value."""

    value: float
    num_graded: int
    num_successes: int

    @property
    def share(self) -> float:
        """That succeeds of them, between 0 and 1: as if one more attempt had half succeeded."""
        return (self.num_successes + 0.5) / (self.num_graded + 1)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Of a task with this value: share of attempts that succeed, by what was played at the nearest values on
    both sides, which may be its own."""

    value: float
    below: Attempts
    above: Attempts

    @property
    def success(self) -> float:
        """On the line between both."""
        width = self.above.value - self.below.value
        part = (self.value - self.below.value) / width if width else 0.0
        return self.below.share + part * (self.above.share - self.below.share)

    def said(self, argument: str) -> str:
        """For people, with what it rests on."""
        sides = dict.fromkeys((self.below, self.above))
        played = " and ".join(
            f"{one.num_successes} of {one.num_graded} attempts with {argument} {one.value:g}" for one in sides
        )
        return f"{argument} {self.value:g} is expected to succeed with {self.success:.2f}: {played} did"


def is_number(schema: Mapping[str, Any], argument: str) -> bool:
    """Whether a scenario with this schema takes a number by that name."""
    return _declared(schema, argument).get("type") in _NUMBERS


def value_of(args_json: str, argument: str, schema: Mapping[str, Any]) -> float | None:
    """Of a task's argument, or its default; None where it is no number, or none that a float can hold."""
    value = json.loads(args_json).get(argument, _declared(schema, argument).get("default"))
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        return None
    return float(value)


def _declared(schema: Mapping[str, Any], argument: str) -> Mapping[str, Any]:
    properties = schema.get("properties")
    found = properties.get(argument) if isinstance(properties, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def pooled(found: Iterable[Attempts]) -> list[Attempts]:
    """One for each value of which enough was played, by value."""
    by_value: dict[float, Attempts] = {}
    for one in found:
        old = by_value.get(one.value, Attempts(one.value, 0, 0))
        graded, successes = old.num_graded + one.num_graded, old.num_successes + one.num_successes
        by_value[one.value] = Attempts(one.value, graded, successes)
    known = (one for one in by_value.values() if one.num_graded >= LEAST_ATTEMPTS)
    return sorted(known, key=lambda one: one.value)


def expected(value: float, played: Iterable[Attempts]) -> Expectation | None:
    """None where it lies outside of what was played: only playing it tells."""
    known = pooled(played)
    below = [one for one in known if one.value <= value]
    above = [one for one in known if one.value >= value]
    return Expectation(value, below[-1], above[0]) if below and above else None


def is_fit(training: Training, success: float) -> bool:
    """Whether a new task is played of which so many attempts may be expected to succeed."""
    return training.new_tasks_min_success <= success <= training.new_tasks_max_success
