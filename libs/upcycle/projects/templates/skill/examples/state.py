"""An environment whose reward looks at what the agent's calls left behind: a table is to be booked.

upcycle check .agents/skills/upcycle-environment/examples/state.py
"""

import random

from upcycle import Environment, EvaluationResult, SubScore
from upcycle.scenario import Reference

HOURS = (17, 18, 19, 20, 21)

env = Environment("booking-example")
_free: dict[int, int] = {}
_booked: list[tuple[int, int]] = []


@env.tool()
def free_seats(hour: int) -> str:
    """How many seats are free at an hour."""
    if hour not in _free:
        raise ValueError(f"closed at {hour}; open at {', '.join(map(str, HOURS))}")
    return str(_free[hour])


@env.tool()
def book(hour: int, seats: int) -> str:
    """Book seats at an hour."""
    if not 0 < seats <= _free.get(hour, 0):
        raise ValueError(f"there are not {seats} seats free at {hour}; ask free_seats")
    _free[hour] -= seats
    _booked.append((hour, seats))
    return "booked"


@env.scenario("table")
def table(seed: int):
    """Book the earliest hour with enough seats."""
    free, seats, hour = drawn(seed)
    _free.clear()
    _free.update(free)
    _booked.clear()
    yield f"Book a table for {seats} at the earliest hour from {HOURS[0]} to {HOURS[-1]} that has room."
    once = float(len(_booked) == 1 and _booked[0][1] == seats)  # more bookings than one are a dump
    right = float(once and _booked[0][0] == hour)
    parts = (SubScore("booked once", once, 0.05), SubScore("the earliest hour", right, 0.95))
    yield EvaluationResult(0.05 * once + 0.95 * right, right == 1, parts)


@table.gold
def booked(seed: int) -> Reference:
    """Looks at each hour, then books."""
    _, seats, hour = drawn(seed)
    looks = [("free_seats", {"hour": one}) for one in HOURS if one <= hour]
    return Reference("Booked.", [*looks, ("book", {"hour": hour, "seats": seats})])


def drawn(seed: int) -> tuple[dict[int, int], int, int]:
    """Free seats by hour, how many are asked for, and the earliest hour that has them."""
    rng = random.Random(f"table/{seed}")
    seats, hour = rng.randint(3, 8), rng.choice(HOURS)
    free = {one: rng.randint(0, seats - 1) if one < hour else rng.randint(seats, 20) for one in HOURS}
    return free, seats, hour


tasks = [table.task(slug=f"table-{seed}", seed=seed) for seed in range(10)]
