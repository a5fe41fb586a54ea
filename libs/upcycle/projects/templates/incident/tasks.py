"""The tasksets, drawn from seeds: tasks of `held_out` only measure.

NAMES "few" is for tiny models: sixteen service names in all tasks. With "new" the names of a held-out task
occur in no training task.
"""

from env import investigate
from names import Names, Split
from world import draw_incident

from upcycle import Task, Taskset

NAMES: Names = "few"
NUM_TRAIN = 200
NUM_HELD_OUT = 100
FIRST_HELD_OUT = 1_000_000


def task(split: Split, seed: int) -> Task:
    """The task of a seed; its family is the cause."""
    family = draw_incident(split, seed, NAMES).cause
    return investigate.task(slug=f"{split}-{seed:07d}", family=family, split=split, seed=seed, names=NAMES)


train = Taskset("my-agent-train", [task("train", seed) for seed in range(NUM_TRAIN)], "train")
held_out = Taskset(
    "my-agent-held-out", [task("held_out", FIRST_HELD_OUT + seed) for seed in range(NUM_HELD_OUT)], "held_out"
)
