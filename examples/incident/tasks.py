"""The tasksets: `train`, and from other seeds and other service names `held_out`, by which the gate judges,
and `audit`, which neither trains nor gates. Families are the causes.

`practice` and `first` hold the first tasks of `train`: the demo trains on `practice` while an evaluation of
it runs beside the training, and begins with an evaluation of `first`.
"""

from examples.incident.env import investigate
from examples.incident.names import Split
from examples.incident.world import draw_incident
from upcycle import Task, Taskset

NUM_TRAIN = 1024
NUM_PRACTICE = 96
NUM_FIRST = 48
NUM_HELD_OUT = 120
NUM_AUDIT = 120
# Seeds of the splits do not meet, though a split is part of its incidents' seeds anyway.
FIRST_SEED: dict[Split, int] = {"train": 0, "held_out": 1_000_000}
FIRST_AUDIT_SEED = 2_000_000


def _task(split: Split, seed: int) -> Task:
    family = draw_incident(split, seed).cause
    return investigate.task(slug=f"{split}-{seed:07d}", family=family, split=split, seed=seed)


def _taskset(name: str, split: Split, count: int) -> Taskset:
    first = FIRST_SEED[split]
    return Taskset(f"incident-{name}", [_task(split, seed) for seed in range(first, first + count)], split)


train = _taskset("train", "train", NUM_TRAIN)
practice = _taskset("practice", "train", NUM_PRACTICE)
first = _taskset("first", "train", NUM_FIRST)
held_out = _taskset("held_out", "held_out", NUM_HELD_OUT)
audit = Taskset(
    "incident-audit",
    [_task("held_out", seed) for seed in range(FIRST_AUDIT_SEED, FIRST_AUDIT_SEED + NUM_AUDIT)],
    "audit",
)
