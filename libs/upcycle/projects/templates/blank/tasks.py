"""The tasksets, drawn from seeds: tasks of `held_out` only measure."""

from env import Split, pack

from upcycle import Task, Taskset

NUM_TRAIN = 200
NUM_HELD_OUT = 100
FIRST_HELD_OUT = 1_000_000


def task(split: Split, seed: int) -> Task:
    """The task of a seed."""
    return pack.task(slug=f"{split}-{seed:07d}", split=split, seed=seed)


train = Taskset("my-agent-train", [task("train", seed) for seed in range(NUM_TRAIN)], "train")
held_out = Taskset(
    "my-agent-held-out", [task("held_out", FIRST_HELD_OUT + seed) for seed in range(NUM_HELD_OUT)], "held_out"
)
