"""Everything that a run has: one definition for command line, files, planner, trainer and docs."""

from upcycle.run_config.gate import Gate
from upcycle.run_config.limits import (
    MAX_EPISODE_DEADLINE_S,
    MAX_GROUP_SIZE,
    MAX_TRAINABLE_GROUP,
    MAX_TRAJECTORIES_PER_STEP,
    Limit,
)
from upcycle.run_config.losses import LOSSES, OBJECTIVE_OPTIONS, Loss, loss_refusals
from upcycle.run_config.model import RunSpec, Sampling, Training
from upcycle.run_config.names import (
    ADVANTAGES,
    AGGREGATIONS,
    ALL_LINEAR,
    KL_ESTIMATORS,
    KL_PLACEMENTS,
    SCHEDULES,
    SFT_LOSS,
    Channel,
    Purpose,
    Say,
    unknown,
)
from upcycle.run_config.policy import PolicyChoice
from upcycle.run_config.refusing import RunConfigInvalid, checked, reasons_of

__all__ = [
    "ADVANTAGES",
    "AGGREGATIONS",
    "ALL_LINEAR",
    "KL_ESTIMATORS",
    "KL_PLACEMENTS",
    "LOSSES",
    "MAX_EPISODE_DEADLINE_S",
    "MAX_GROUP_SIZE",
    "MAX_TRAINABLE_GROUP",
    "MAX_TRAJECTORIES_PER_STEP",
    "OBJECTIVE_OPTIONS",
    "SCHEDULES",
    "SFT_LOSS",
    "Channel",
    "Gate",
    "Limit",
    "Loss",
    "PolicyChoice",
    "Purpose",
    "RunConfigInvalid",
    "RunSpec",
    "Sampling",
    "Say",
    "Training",
    "checked",
    "loss_refusals",
    "reasons_of",
    "unknown",
]
