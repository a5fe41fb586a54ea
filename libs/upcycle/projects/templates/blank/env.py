"""The environment: one tool over a shop's stock, and a scenario that grades a number."""

import random
from typing import Literal

from upcycle import Environment, EvaluationResult, SubScore

ITEMS = ("apples", "bulbs", "candles", "dates", "eggs", "figs", "gloves", "hats")
_NEAR = 10

env = Environment("my-agent")

# An episode is a process of its own, so this module's state is private to it.
_stock: dict[str, int] = {}


@env.tool()
def stock(item: str) -> str:
    """How many of an item are in stock."""
    if item not in _stock:
        raise ValueError(f"no item {item!r}; there are {', '.join(_stock)}")
    return str(_stock[item])


@env.scenario("count")
async def count(split: Literal["train", "held_out"], seed: int):
    """Subtract what was sold from what is in stock."""
    rng = random.Random(f"{split}/{seed}")
    _stock.clear()
    _stock.update({item: rng.randint(20, 99) for item in ITEMS})
    item, sold = rng.choice(ITEMS), rng.randint(2, 19)
    answer = yield f"{sold} {item} were sold today. How many are left? Answer with the number alone."
    yield evaluation(str(answer), _stock[item] - sold)


def evaluation(answer: str, left: int) -> EvaluationResult:
    """1 for the number; a near number earns a little, so that attempts differ."""
    text = answer.strip()
    said = int(text) if text.isdecimal() and len(text) < 4 else None
    exact = float(said == left)
    near = 0.0 if said is None else max(0.0, 1 - abs(said - left) / _NEAR)
    score = 0.8 * exact + 0.2 * near
    parts = (SubScore("exact", exact, 0.8), SubScore("near", near, 0.2))
    return EvaluationResult(score, exact == 1.0, parts, {"left": left})
