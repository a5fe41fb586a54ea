"""What a training configuration may say: names, limits, and what does not go together."""

from upcycle.run_config.limits import (
    GATE_LIMITS,
    LIMITS,
    MAX_GROUP_SIZE,
    MAX_TRAINABLE_GROUP,
    MAX_TRAJECTORIES_PER_STEP,
    Limit,
)
from upcycle.run_config.losses import LOSSES, OBJECTIVE_OPTIONS, Loss, loss_refusals
from upcycle.run_config.names import (
    ADVANTAGES,
    AGGREGATIONS,
    ALL_LINEAR,
    CLONING,
    KL_ESTIMATORS,
    KL_PLACEMENTS,
    SCHEDULES,
    Say,
    unknown,
)
from upcycle.run_config.rules import DEFAULTS, gate_refusals, refusals

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "ALL_LINEAR",
    "CLONING",
    "DEFAULTS",
    "GATE_LIMITS",
    "KL_ESTIMATORS",
    "KL_PLACEMENTS",
    "LIMITS",
    "LOSSES",
    "MAX_GROUP_SIZE",
    "MAX_TRAINABLE_GROUP",
    "MAX_TRAJECTORIES_PER_STEP",
    "OBJECTIVE_OPTIONS",
    "SCHEDULES",
    "Limit",
    "Loss",
    "Say",
    "gate_refusals",
    "loss_refusals",
    "refusals",
    "unknown",
]
