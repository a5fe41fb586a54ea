"""A training taskset of the same work: other repositories, none of which the benchmark has."""

from upcycle import Task, Taskset

from .env import practice
from .naming import named

NUM_TASKS = 200


def _task(seed: int) -> Task:
    slug, family = named("train", seed)
    return practice.task(slug=slug, family=family, seed=seed)


tasks = Taskset("repair-train", [_task(seed) for seed in range(NUM_TASKS)], "train")
