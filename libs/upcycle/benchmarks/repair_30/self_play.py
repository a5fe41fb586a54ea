"""Tasks of the proposer in a run that plays against itself: `--self-play plant:mend`, on the training
repositories alone."""

from upcycle import Task, Taskset

from .env import plant
from .planting import library_of

NUM_TASKS = 40
"""Each shows other visible tests of its repository."""


def _task(seed: int) -> Task:
    name = library_of(seed).name
    return plant.task(slug=f"plant-{name}-{seed:03d}", family=f"plant-{name}", seed=seed)


tasks = Taskset("repair-plant", [_task(seed) for seed in range(NUM_TASKS)], "train")
