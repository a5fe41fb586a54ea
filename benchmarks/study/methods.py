"""The studies, by the name that `make study METHOD=` takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchmarks.study import best_of
from benchmarks.study.arms import Arm, Study, trained
from benchmarks.study.corridor import Kinds, Table

LONG: Final = Kinds(turns=(8, 8), actions=6, start=(1.0, 1.0))
"""Eight turns that all must be right, or detours: success of about 1 % at first, so the outcome alone is a
rare word."""
UNEQUAL: Final = Kinds(turns=(2, 2, 3, 4, 5), start=(2.5, 2.0, 1.0, 0.8, 0.6), detour_cost=0.05)
"""Easy kinds that are soon solved but for detours, beside hard ones."""

MIXED: Final = Kinds(
    turns=(1, 1, 1, 1, 1, 1, 12, 12, 5, 5), start=(4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.0, 0.0, 1.0, 1.0)
)
"""Six kinds that are solved, two that are out of reach, two that can be learned."""
HOPELESS: Final = Kinds(turns=(10, 10), actions=8, start=(0.0, 0.0))
"""Ten turns without an idea of the right action: success of one in a million."""


def _options(kinds: Kinds, steps: int, named: Mapping[str, Mapping[str, Any]]) -> tuple[Arm, ...]:
    return tuple(Arm(name, partial(trained, kinds, steps=steps, **chosen)) for name, chosen in named.items())


STUDIES: Final[Mapping[str, Study]] = {
    "turn_credit": Study(
        "turn_credit",
        "Zeng et al. 2025, arXiv:2505.11821; M-GRPO: WebAgent-R1, arXiv:2505.16421",
        "area",
        1,
        _options(
            LONG,
            60,
            {
                "episode (default)": {},
                "episode, m_grpo": {"advantage": "m_grpo"},
                "turn": {"turn_credit": "turn"},
                "turn, discount .9": {"turn_credit": "turn", "turn_discount": 0.9},
                "turn, discount .5": {"turn_credit": "turn", "turn_discount": 0.5},
                "turn, without turn rewards": {"turn_credit": "turn", "turn_reward_weight": 0.0},
                "turn, m_grpo": {"turn_credit": "turn", "advantage": "m_grpo"},
            },
        ),
    ),
    "solved_groups": Study(
        "solved_groups",
        "groups that differ in a graded tail only",
        "success",
        1,
        _options(
            UNEQUAL,
            60,
            {
                "train (default)": {},
                "skip": {"solved_groups": "skip"},
                "train, grpo": {"advantage": "grpo"},
                "skip, grpo": {"advantage": "grpo", "solved_groups": "skip"},
                "min_spread .1": {"min_spread": 0.1},
            },
        ),
    ),
    "task_sampler": Study(
        "task_sampler",
        "self-evolving curriculum: WebRL, arXiv:2411.02337",
        "success",
        1,
        _options(
            MIXED,
            40,
            {"uniform (default)": {}, "spread": {"task_sampler": "spread"}, "age": {"task_sampler": "age"}},
        ),
    ),
    "guidance": Study(
        "guidance",
        "guidance and re-attempt: Agent-RLVR, arXiv:2506.11425",
        "success",
        1,
        _options(
            HOPELESS,
            60,
            {
                "off (default)": {},
                "on_failure, share .1": {"guidance": "on_failure", "guidance_max_share": 0.1},
                "on_failure (share .25)": {"guidance": "on_failure"},
                "on_failure, share .5": {"guidance": "on_failure", "guidance_max_share": 0.5},
            },
        ),
    ),
    "warm_start": Study(
        "upcycle train --sft before the run",
        "behaviour cloning before RL: WebAgent-R1, arXiv:2505.16421",
        "success",
        1,
        tuple(
            Arm(
                name, partial(trained, HOPELESS, steps=60, before=partial(Table.sft, steps=steps, per_kind=8))
            )
            for name, steps in (
                ("no warm start", 0),
                ("40 steps of cloning", 40),
                ("80 steps of cloning", 80),
            )
        ),
    ),
    "lr_schedule": Study(
        "lr_schedule",
        "TRL's default is linear, prime-rl's constant",
        "success",
        1,
        _options(
            UNEQUAL,
            60,
            {
                "linear (default)": {"lr_schedule": "linear"},
                "constant": {},
                "cosine": {"lr_schedule": "cosine"},
                "linear, rate x 3": {"lr_schedule": "linear", "learning_rate": 0.15},
                "constant, rate x 3": {"learning_rate": 0.15},
                "linear, x 20, 2 groups": {
                    "lr_schedule": "linear",
                    "learning_rate": 1.0,
                    "prompts_per_step": 2,
                },
                "constant, x 20, 2 groups": {"learning_rate": 1.0, "prompts_per_step": 2},
            },
        ),
    ),
    "best_of": Study(
        "upcycle eval --best-of 4 --select orm",
        "an outcome reward model at test time: Agent-RLVR, arXiv:2506.11425; ORM: WebRL, arXiv:2411.02337",
        "chosen",
        1,
        tuple(
            Arm(name, partial(best_of.measured, num_tasks=tasks, shuffled=is_shuffled))
            for name, tasks, is_shuffled in (
                ("a random one of 4", 0, False),
                ("ORM of 16 tasks", 16, False),
                ("ORM of 64 tasks", 64, False),
                ("ORM of 256 tasks", 256, False),
                ("ORM of 256, shuffled grades", 256, True),
            )
        ),
        ("chosen", "mean", "any", "gain", "within"),
    ),
}
