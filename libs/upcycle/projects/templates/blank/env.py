"""The environment: one tool over a shop's stock, and a scenario that grades a number."""

import random
from typing import Literal

from upcycle import Environment, EvaluationResult, SubScore
from upcycle.scenario import Reference

Split = Literal["train", "held_out"]

ITEMS = ("apples", "bulbs", "candles", "dates", "eggs", "figs", "gloves", "hats")
PER_BOX = 10
_NEAR = 3
NEAR_WEIGHT = 0.07  # little enough that a guess which is off by one earns less than 0.05

env = Environment("my-agent")

# An episode is a process of its own, so this module's state is private to it.
_stock: dict[str, int] = {}


@env.tool()
def stock(item: str) -> str:
    """How many of an item are in stock."""
    if item not in _stock:
        raise ValueError(f"no item {item!r}; there are {', '.join(_stock)}")
    return str(_stock[item])


@env.scenario("pack")
async def pack(split: Split, seed: int):
    """Look up how many there are, and say how many boxes they fill."""
    item, count = _asked_for(split, seed)
    others = random.Random(seed)
    _stock.clear()
    _stock.update({one: others.randint(20, 99) for one in ITEMS} | {item: count})
    answer = yield f"Pack all {item}, {PER_BOX} in a box. How many boxes? Answer with the number alone."
    yield evaluation(str(answer), -(-count // PER_BOX))


@pack.gold
def packed(split: Split, seed: int) -> Reference:
    """The right answer, after one look; for `upcycle check`."""
    item, count = _asked_for(split, seed)
    return Reference(str(-(-count // PER_BOX)), [("stock", {"item": item})])


def _asked_for(split: Split, seed: int) -> tuple[str, int]:
    """Item and count of a task. One pair in five is held out: no training task has it."""
    pairs = [(place, item, count) for place, item in enumerate(ITEMS) for count in range(20, 100)]
    wanted = split == "held_out"
    fitting = [(item, count) for place, item, count in pairs if ((place + count) % 5 == 0) == wanted]
    return random.Random(f"{split}/{seed}").choice(fitting)


def evaluation(answer: str, boxes: int) -> EvaluationResult:
    """1 for the number; a near number earns a little, so that attempts differ."""
    text = answer.strip()
    said = int(text) if text.isdecimal() and len(text) < 3 else None
    exact = float(said == boxes)
    near = 0.0 if said is None else max(0.0, 1 - abs(said - boxes) / _NEAR)
    parts = (SubScore("exact", exact, 1 - NEAR_WEIGHT), SubScore("near", near, NEAR_WEIGHT))
    score = (1 - NEAR_WEIGHT) * exact + NEAR_WEIGHT * near
    return EvaluationResult(score, exact == 1.0, parts, {"boxes": boxes})
