"""The studies, by the name that `make study METHOD=` takes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchmarks.study import best_of, pages, self_play
from benchmarks.study.arms import Arm, Study, trained
from benchmarks.study.corridor import Kinds, Table
from upcycle.harness.context import COMPRESS, STOP

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

_TRANSFORMER: Final[Mapping[str, Any]] = {"transformer": True, "learning_rate": 3e-4}
"""A small Qwen3 in the place of the table, at a rate with which it learns about as fast."""

_TRANSFORMER_FAST: Final[Mapping[str, Any]] = {**_TRANSFORMER, "learning_rate": 1e-3}

BY_CHANCE: Final = Kinds(turns=(8, 8), actions=6, start=(1.0, 1.0), cut_off=0.3)
"""The long kinds, three of ten episodes of which a limit cuts off whatever they did."""
BY_DETOURS: Final = Kinds(turns=(8, 8), actions=6, start=(2.0, 2.0), most_detours=1)
"""Long kinds whose second detour is beyond the limit."""

_DEEP_SWE: Final[Mapping[str, Any]] = {"advantage": "rloo", "aggregation": "constant_length"}
"""What examples/training/repair.toml chooses."""
_PURE_RL: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "leave_out": {"cut_off_episodes": "leave_out"},
    "DeepSWE": _DEEP_SWE,
    "DeepSWE, leave_out": {**_DEEP_SWE, "cut_off_episodes": "leave_out"},
    "DeepSWE, KL .1": {**_DEEP_SWE, "loss_config": {"kl_coefficient": 0.1}},
    "grpo, row_mean": {"advantage": "grpo", "aggregation": "row_mean"},
}
_NOISY: Final[Mapping[str, Any]] = {"learning_rate": 1.0, "prompts_per_step": 2}
"""Two groups a step at twenty times the rate."""
_WITH_KL: Final[Mapping[str, Any]] = {**_TRANSFORMER_FAST, "loss_config": {"kl_coefficient": 0.02}}

_FILTERED: Final[Mapping[str, Any]] = {"new_tasks_difficulty": "turns"}
"""New tasks only where 0.05 to 0.75 of attempts are expected to succeed."""
_CURRICULA: Final[Mapping[str, Mapping[str, Any]]] = {
    "off (default)": {},
    "solved": {"new_tasks": "solved"},
    "failed, share .1": {"new_tasks": "failed", "new_tasks_share": 0.1},
    "failed (share .25)": {"new_tasks": "failed"},
    "failed, share .5": {"new_tasks": "failed", "new_tasks_share": 0.5},
    "failed, .25, retire after 4": {"new_tasks": "failed", "new_tasks_retire_after": 4},
    "failed (.25), filter": {"new_tasks": "failed", **_FILTERED},
    "failed, .5, filter": {"new_tasks": "failed", "new_tasks_share": 0.5, **_FILTERED},
}

_SELF_PLAYS: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("proposals at random", self_play.FROZEN, {}),
    ("paid for being valid", self_play.VALID, {}),
    ("alpha .8 (default)", self_play.PAID, {"self_play": "propose:walk"}),
    ("alpha .2", self_play.PAID, {"self_play": "propose:walk", "self_play_alpha": 0.2}),
    ("alpha .8, hierarchical", self_play.PAID, {"self_play": "propose:walk", "advantage": "hierarchical"}),
    ("alpha .8, order 2", self_play.PAID, {"self_play": "propose:walk", "self_play_order": 2}),
)


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
                "transformer, train": {**_TRANSFORMER},
                "transformer, skip": {**_TRANSFORMER, "solved_groups": "skip"},
                "the same, x 3, train": {**_TRANSFORMER, "learning_rate": 1e-3},
                "the same, x 3, skip": {**_TRANSFORMER, "learning_rate": 1e-3, "solved_groups": "skip"},
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
    "generator": Study(
        "new_tasks",
        "self-evolving curriculum, new tasks of failed ones: WebRL, arXiv:2411.02337",
        "success",
        1,
        _options(
            HOPELESS, 60, {name: {"learning_rate": 0.2, **chosen} for name, chosen in _CURRICULA.items()}
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
                **{
                    f"transformer, {schedule}, {rate:g}": {
                        **_TRANSFORMER,
                        "lr_schedule": schedule,
                        "learning_rate": rate,
                        "prompts_per_step": 2,
                    }
                    for rate in (1e-3, 3e-3, 1e-2)
                    for schedule in ("linear", "constant")
                },
            },
        ),
    ),
    "pure_rl": Study(
        "examples/training/repair.toml",
        "reinforcement learning alone: DeepSWE, together.ai/blog/deepswe",
        "success",
        1,
        tuple(
            Arm(f"{limit}: {name}", partial(trained, kinds, steps=60, **chosen))
            for limit, kinds in (("cut off by chance", BY_CHANCE), ("by detours", BY_DETOURS))
            for name, chosen in _PURE_RL.items()
        ),
    ),
    "follow_success": Study(
        "lr_success_decay, kl_success_growth",
        "rate and KL weight that follow success, as a curriculum of WebRL may, arXiv:2411.02337",
        "success",
        1,
        _options(
            UNEQUAL,
            60,
            {
                "default": {},
                "decay .5": {"lr_success_decay": 0.5},
                "decay .9": {"lr_success_decay": 0.9},
                "2 groups, x 20": {**_NOISY},
                "the same, decay .5": {**_NOISY, "lr_success_decay": 0.5},
                "the same, decay .9": {**_NOISY, "lr_success_decay": 0.9},
                "the same, linear": {**_NOISY, "lr_schedule": "linear"},
                "transformer": {**_TRANSFORMER_FAST},
                "transformer, KL .02": {**_WITH_KL},
                "the same, growth 4": {**_WITH_KL, "kl_success_growth": 4.0},
                "transformer, KL .1": {**_WITH_KL, "loss_config": {"kl_coefficient": 0.1}},
            },
        ),
        ("success", "area", "drift", "reward", "drawn"),
    ),
    "context": Study(
        "--context compress",
        "dynamic context compression, M-GRPO and a warm start: WebAgent-R1, arXiv:2505.16421",
        "success",
        1,
        tuple(
            Arm(
                name,
                partial(pages.measured, context=context, thinks=thinks, sft_steps=sft, advantage=advantage),
            )
            for name, context, thinks, sft, advantage in (
                ("stop (default)", STOP, False, 0, "dr_grpo"),
                ("stop, SFT", STOP, False, 20, "dr_grpo"),
                ("compress", COMPRESS, False, 0, "dr_grpo"),
                ("compress, SFT", COMPRESS, False, 20, "dr_grpo"),
                ("compress, thinking", COMPRESS, True, 0, "dr_grpo"),
                ("compress, thinking, SFT", COMPRESS, True, 20, "dr_grpo"),
                ("the same, m_grpo", COMPRESS, True, 20, "m_grpo"),
            )
        ),
        ("success", "short", "long", "area", "drawn"),
    ),
    "ssr": Study(
        "self_play",
        "self-play that proposes and solves, paid by the pass rate: Self-play SWE-RL, arXiv:2512.18552",
        "success",
        1,
        tuple(
            Arm(name, partial(self_play.measured, teaches=teaches, **chosen))
            for name, teaches, chosen in _SELF_PLAYS
        ),
        ("success", "area", "useful", "valid", "drawn"),
    ),
    "reward_model": Study(
        "upcycle reward-model train --epochs --learning-rate",
        "how the reward model of best_of is trained",
        "chosen",
        1,
        tuple(
            Arm(name, partial(best_of.measured, num_tasks=64, epochs=epochs, learning_rate=rate))
            for name, epochs, rate in (
                ("1 epoch, 1e-3", 1, 1e-3),
                ("3 epochs, 1e-3", 3, 1e-3),
                ("6 epochs, 1e-3", 6, 1e-3),
                ("12 epochs, 1e-3", 12, 1e-3),
                ("3 epochs, 1e-4", 3, 1e-4),
                ("12 epochs, 1e-4", 12, 1e-4),
                ("3 epochs, 3e-3", 3, 3e-3),
            )
        ),
        ("chosen", "mean", "any", "gain", "within"),
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
