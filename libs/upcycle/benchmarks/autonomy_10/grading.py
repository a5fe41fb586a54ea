"""The reward of a machine as an agent left it: the share of what is asked that is right at the end.

Of each goal, what is right counts its share, and what was changed to something else takes twice its share.
Everything that is not asked for has to stay: each thing that was changed or added takes a quarter of the
reward, and where one is gone the reward is 0. How the agent got there does not matter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from upcycle import EvaluationResult, SubScore

from .machine.facts import Attributes, Facts, facts_of
from .machine.state import Computer
from .problems import Goal, Want

COST_OF_WRONG: Final = 2.0
COST_OF_DAMAGE: Final = 0.25
SCRATCH: Final = ("file:/tmp/",)
"""What begins so may be made, changed and removed."""
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Damage:
    """What was to stay. gone, touched: things."""

    gone: tuple[str, ...]
    touched: tuple[str, ...]

    @property
    def factor(self) -> float:
        """What is left of the reward."""
        return 0.0 if self.gone else max(0.0, 1.0 - COST_OF_DAMAGE * len(self.touched))


def grade(goals: tuple[Goal, ...], given: Computer, left: Computer) -> EvaluationResult:
    """The reward of what the agent left."""
    before, after = facts_of(given), facts_of(left)
    if before == after:
        return EvaluationResult(0.0, False, info={"reason": "nothing was changed"})
    damage = damage_of([want for goal in goals for want in goal.wants], before, after)
    values: dict[str, float] = {}
    for goal in goals:
        least = min((values[name] for name in goal.needs), default=1.0)
        values[goal.name] = least * _value(goal, before, after)
    score = damage.factor * sum(values.values()) / len(values)
    parts = tuple(SubScore(name, value * damage.factor, 1 / len(values)) for name, value in values.items())
    info = {"gone": list(damage.gone[:_SHOWN]), "touched": list(damage.touched[:_SHOWN])}
    is_done = damage.factor == 1 and all(value == 1 for value in values.values())
    return EvaluationResult(1.0 if is_done else min(score, 1.0), is_done, parts, info)


def damage_of(wants: list[Want], before: Facts, after: Facts) -> Damage:
    """What was changed and was to stay."""
    asked: dict[str, Attributes | None] = {one.thing: None for one in wants if one.attributes is None}
    for want in wants:
        if want.attributes is not None:
            asked[want.thing] = {**(asked.get(want.thing) or {}), **want.attributes}
    gone = [
        thing
        for thing in before
        if thing not in after and asked.get(thing, {}) is not None and not thing.startswith(SCRATCH)
    ]
    return Damage(tuple(gone), tuple(dict.fromkeys(_touched(asked, before, after))))


def _touched(asked: dict[str, Attributes | None], before: Facts, after: Facts) -> Iterator[str]:
    for thing, attributes in after.items():
        if thing.startswith(SCRATCH):
            continue
        if thing not in before:
            if thing not in asked and attributes.get("is") != "folder":
                yield thing
            continue
        free = asked.get(thing, {})
        for name, value in before[thing].items():
            if free is not None and name not in free and attributes.get(name) != value:
                yield thing


def _value(goal: Goal, before: Facts, after: Facts) -> float:
    right = sum(_is_right(want, after) for want in goal.wants)
    wrong = sum(not _is_right(want, after) and _was_changed(want, before, after) for want in goal.wants)
    return max(0.0, (right - COST_OF_WRONG * wrong) / len(goal.wants))


def _is_right(want: Want, facts: Facts) -> bool:
    found = facts.get(want.thing)
    if want.attributes is None or found is None:
        return want.attributes is None and found is None
    return all(same(found.get(name, ""), value) for name, value in want.attributes.items())


def _was_changed(want: Want, before: Facts, after: Facts) -> bool:
    one, other = before.get(want.thing), after.get(want.thing)
    if one is None or other is None or want.attributes is None:
        return one != other
    return any(one.get(name) != other.get(name) for name in want.attributes)


def same(found: str, wanted: str) -> bool:
    """Two texts say the same: capitals, white space, and `7.50` for `7.5` are no difference."""
    one, other = _plain(found), _plain(wanted)
    if one == other:
        return True
    try:
        return abs(float(one) - float(other)) < 1e-9
    except ValueError:
        return False


def _plain(text: str) -> str:
    lines = [" ".join(line.split()) for line in text.casefold().strip().splitlines()]
    return "\n".join(line for line in lines if line)
