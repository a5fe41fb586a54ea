"""The tasksets, drawn from seeds: tasks of `held_out` only measure, and have workbooks of their own.

SIZE "column" is for tiny models: a short prompt, and one call that solves it. "workbook" is the size of the
benchmark sheet-50: several columns, and lists that are to be cleaned. No task of the benchmark is among them.
"""

from env import Size, Split, complete, drawn

from upcycle import Task, Taskset

SIZE: Size = "column"
NUM_TRAIN = 200
NUM_HELD_OUT = 100


def task(split: Split, seed: int) -> Task:
    """The task of a seed."""
    kind, _ = drawn(SIZE, split, seed)
    return complete.task(slug=f"{split}-{seed:07d}", family=kind.family, size=SIZE, split=split, seed=seed)


train = Taskset("my-agent-train", [task("train", seed) for seed in range(NUM_TRAIN)], "train")
held_out = Taskset("my-agent-held-out", [task("held_out", seed) for seed in range(NUM_HELD_OUT)], "held_out")
