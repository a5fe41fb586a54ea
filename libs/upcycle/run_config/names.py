"""Names that a run configuration may use. What they compute is in grpo_math and in the trainer; a test
proves that the tables there have the same names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final


class Purpose(StrEnum):
    """What a run is for."""

    TRAIN = "train"
    EVAL = "eval"


class Channel(StrEnum):
    """Which moving version of a model: the newest published, the promoted, or one that a gate judges."""

    LATEST = "latest"
    HEAD = "head"
    CANDIDATE = "candidate"


CHANNELS: Final = (Channel.LATEST, Channel.HEAD)
"""The channels that a run may play; a candidate is pinned by its version."""
NORMALIZE_THEN_SUM: Final = "normalize_then_sum"
HIERARCHICAL: Final = "hierarchical"
"""The advantage of runs that play against themselves: each role is compared with its own."""
MAX_RL: Final = "max_rl"
ADVANTAGES: Final = ("batch", "dr_grpo", "grpo", HIERARCHICAL, "m_grpo", MAX_RL, NORMALIZE_THEN_SUM, "rloo")
AGGREGATIONS: Final = ("constant_length", "row_mean", "row_sum", "sum", "token_mean", "turn_mean")
KL_ESTIMATORS: Final = ("k1", "k2", "k3", "k3_plus")
KL_PLACEMENTS: Final = ("loss", "reward")
CONSTANT: Final = "constant"
LINEAR: Final = "linear"
SCHEDULES: Final = (CONSTANT, "cosine", LINEAR)
SOLVED_GROUPS: Final = ("skip", "train")
LEAVE_OUT, BATCH_BASELINE = "leave_out", "batch"
SINGLE_SESSIONS: Final = (BATCH_BASELINE, LEAVE_OUT)
CUT_OFF_EPISODES: Final = (LEAVE_OUT, "train")
WITH_BATCH_BASELINE: Final = ("dr_grpo", "rloo")
"""Advantages that single sessions can have: the others divide by what one reward does not have."""
BY_EPISODE, BY_TURN = "episode", "turn"
TURN_CREDITS: Final = (BY_EPISODE, BY_TURN)
UNIFORM, SPREAD, AGE = "uniform", "spread", "age"
TASK_SAMPLERS: Final = (AGE, SPREAD, UNIFORM)
ON_FAILURE: Final = "on_failure"
GUIDANCE: Final = ("off", ON_FAILURE)
FAILED_TASKS, SOLVED_TASKS = "failed", "solved"
NEW_TASKS: Final = (FAILED_TASKS, "off", SOLVED_TASKS)
MIN_SUCCESS: Final = 0.05
MAX_SUCCESS: Final = 0.75
"""Of new tasks that a run keeps: what WebRL (arXiv:2411.02337) keeps of those that its critic looks at."""
SELF_PLAY_ALPHA: Final = 0.8
FADE: Final = "fade"
REWARD_SCHEDULES: Final = (CONSTANT, FADE)
SFT_LOSS: Final = "cross_entropy"
"""The loss of SFT. It compares no rollouts, so it is for interactive training only."""
ALL_LINEAR: Final = "all-linear"
"""Adapters beside every linear layer but the output head."""

Say = Callable[[str], str]
"""What the reader of a refusal calls a field: `steps`, `spec.training.steps`, `--steps`."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The refusal of a name that is not one of `known`, with the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{what} {name!r} does not exist; {hint}known: {', '.join(names)}"
