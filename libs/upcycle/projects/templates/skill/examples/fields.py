"""An environment whose answer is a JSON object of which each field is paid: an order is to be read.

upcycle check .agents/skills/upcycle-environment/examples/fields.py
"""

import json
import random
from typing import Any

from upcycle import Environment, EvaluationResult, SubScore

ITEMS = ("bolt", "cable", "hinge", "lamp", "rope", "torch")
NAMES = ("Ada", "Bela", "Carla", "Dario", "Edda", "Farid")
WEIGHTS = {"customer": 0.2, "item": 0.3, "count": 0.5}

env = Environment("order-example")


@env.scenario("order")
def order(seed: int):
    """Read who wants how many of what; the letter takes one thing back."""
    wanted, dropped = drawn(seed)
    answer = yield (
        f"{wanted['customer']} writes: I first wanted {dropped[1]} of {dropped[0]}, but leave that. "
        f"Send me {wanted['count']} of {wanted['item']} instead.\n"
        "What is ordered? Answer with one JSON object: customer, item, count."
    )
    yield grade(wanted, str(answer))


@order.gold
def read(seed: int) -> str:
    """The object."""
    return json.dumps(drawn(seed)[0])


def grade(wanted: dict[str, Any], answer: str) -> EvaluationResult:
    """The share of the fields that are right; none where the customer is wrong: that is another letter."""
    try:
        said = json.loads(answer) if len(answer) < 1_000 else None
    except (ValueError, RecursionError):
        said = None
    is_order = isinstance(said, dict) and said.keys() == wanted.keys()
    right = {name: is_order and said[name] == value for name, value in wanted.items()}
    values = {name: float(right["customer"] and one) for name, one in right.items()}
    parts = tuple(SubScore(name, values[name], weight) for name, weight in WEIGHTS.items())
    return EvaluationResult(sum(one.value * one.weight for one in parts), all(right.values()), parts)


def drawn(seed: int) -> tuple[dict[str, Any], tuple[str, int]]:
    """What is ordered, and what was taken back."""
    rng = random.Random(f"order/{seed}")
    item, dropped = rng.sample(ITEMS, 2)
    count, other = rng.sample(range(2, 100), 2)
    return {"customer": f"{rng.choice(NAMES)}-{seed:03d}", "item": item, "count": count}, (dropped, other)


tasks = [order.task(slug=f"order-{seed}", seed=seed) for seed in range(10)]
