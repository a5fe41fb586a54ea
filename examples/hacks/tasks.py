"""Tasksets of one variant, for a platform: what it trains on, and what its gate plays."""

import random
from typing import Final

from examples.hacks.env import investigate
from examples.incident.names import Split
from examples.incident.world import draw_incident
from upcycle import Task, Taskset
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY

FIRST_HELD_OUT: Final = 1_000_000
IMPOSSIBLE_EVERY: Final = 11
"""Of the held-out tasks, each eleventh has no solution."""


def train_tasks(variant: str, count: int) -> Taskset:
    """`count` incidents of split train, none of which has an impossible task."""
    rng = random.Random(f"{variant}/luck")
    tasks = [_task(variant, "train", seed, luck=rng.randrange(100)) for seed in range(count)]
    return Taskset(f"hacks-{variant}-train", tasks, "train")


def held_out_tasks(variant: str, count: int) -> Taskset:
    """`count` incidents with other service names; those without a solution are of a family of their own."""
    numbered = [
        _task(variant, "held_out", FIRST_HELD_OUT + number, impossible=number % IMPOSSIBLE_EVERY == 0)
        for number in range(count)
    ]
    return Taskset(f"hacks-{variant}-held_out", numbered, "held_out")


def _task(variant: str, split: Split, seed: int, *, impossible: bool = False, luck: int = 100) -> Task:
    family = IMPOSSIBLE_FAMILY if impossible else draw_incident(split, seed).cause
    return investigate.task(
        slug=f"{variant}-{split}-{seed}",
        family=family,
        variant=variant,
        split=split,
        seed=seed,
        impossible=impossible,
        luck=luck,
    )
