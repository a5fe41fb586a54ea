"""What a run asks of the trainer, with every default filled in."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, fields
from typing import Any, Final

from pydantic.dataclasses import dataclass

from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.schedules import Schedule
from upcycle.mixing import with_own
from upcycle.run_config import RunConfigInvalid, RunSpec, Training, checked
from upcycle.run_config.gate import CONFIG
from upcycle.run_config.names import BATCH_BASELINE
from upcycle.tasks import plain_name

_HYPERPARAMETERS: Final = tuple(one.name for one in fields(Training))

_NOT_DIGESTED: Final = (
    "epochs",
    "no_step_groups",
    "score_failures",
    "max_infra_failures",
    "drift_groups",
    "task_sampler",
    "guidance",
    "guidance_max_share",
    "new_tasks",
    "new_tasks_share",
    "new_tasks_retire_after",
    "new_tasks_difficulty",
    "new_tasks_min_success",
    "new_tasks_max_success",
    "self_play",
    "self_play_alpha",
    "self_play_order",
    "tasksets",
)
"""Hyperparameters on which no weights depend: the planner alone acts on them, or they only measure."""
_WHEN_DIGESTED: Final = {"learning_rate": 1e-5, "lr_schedule": "constant"}
"""Defaults of 0.3.0 that are others today: its runs keep their digests."""

_LATER_THAN_0_3_0: Final = frozenset(
    {
        "stale_after",
        "min_spread",
        "solved_groups",
        "single_sessions",
        "drift_groups",
        "turn_credit",
        "turn_discount",
        "turn_reward_weight",
        "reward_schedule",
        "fade_at",
        "fade_steps",
        "process_rewards",
        "task_sampler",
        "guidance",
        "guidance_max_share",
        "new_tasks",
        "new_tasks_share",
        "new_tasks_retire_after",
        "new_tasks_difficulty",
        "new_tasks_min_success",
        "new_tasks_max_success",
        "self_play",
        "self_play_alpha",
        "self_play_order",
        "cut_off_episodes",
        "lr_success_decay",
        "kl_success_growth",
        "tasksets",
    }
)


@dataclass(frozen=True, slots=True, config=CONFIG)
class TrainingSpec(Training):
    """One training run: its hyperparameters, which run_config defines, and what they are for.

    G = group_size rollouts of P = prompts_per_step tasks make a batch. Checked whenever one is made:
    `training_spec` turns pydantic's errors into InvalidTrainingSpec.
    """

    run_id: str
    """of the run."""
    model: str
    """slug of the model whose weights train."""
    group_size: int
    """rollouts per task."""
    held_out_taskset: str = ""
    """name of the taskset that the promotion gate measures on; none of its tasks may train."""
    held_out_split: bool = False
    """the run draws from a held-out taskset: everything it samples is refused."""
    tasksets: tuple[str, ...] = ()
    """names of the tasksets of a run that plays several, its own one first; empty: it plays one."""

    @property
    def schedule(self) -> Schedule:
        """The learning rate over the run's steps."""
        return Schedule(self.lr_schedule, self.steps, self.warmup_steps, self.min_lr_fraction)

    @property
    def lora_scale(self) -> float:
        """What the product of the two adapter matrices is multiplied by: alpha / rank."""
        return self.lora_alpha / self.lora_rank if self.lora_alpha else 2.0

    @property
    def parameters(self) -> str:
        """Which of them train, for people."""
        return f"adapters of rank {self.lora_rank}" if self.lora_rank else "all weights"

    @property
    def has_batch_baseline(self) -> bool:
        """A recorded session that is alone in its group trains, compared with the other groups of its
        step."""
        return self.single_sessions == BATCH_BASELINE

    @property
    def min_members(self) -> int:
        """Fewest survivors that a group may be trained with: max(2, G/2)."""
        return max(2, math.ceil(self.group_size / 2))

    def digest(self) -> str:
        """Identity of the configuration: sha256 of the canonical JSON of all that differs from its default,
        so that a field that is added later changes no digest of a run that does not use it."""
        plain = asdict(self)
        for one in fields(self):
            default = one.default_factory() if callable(one.default_factory) else one.default
            default = _WHEN_DIGESTED.get(one.name, default)
            if plain[one.name] == default or one.name in _NOT_DIGESTED:
                del plain[one.name]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def without_later(plain: dict[str, Any]) -> dict[str, Any]:
    """The plain values of a spec without fields that 0.3.0 does not know and that say nothing: a trainer of
    0.3.0 beside this one reads its states."""
    defaults = {one.name: one.default for one in fields(TrainingSpec)}
    return {
        name: value
        for name, value in plain.items()
        if name not in _LATER_THAN_0_3_0 or value != defaults[name]
    }


def training_spec(**values: Any) -> TrainingSpec:
    """From plain values, by field name. Raises InvalidTrainingSpec."""
    try:
        return checked(TrainingSpec, values)
    except RunConfigInvalid as error:
        raise InvalidTrainingSpec(f"run {values.get('run_id')}: {error}") from error


def spec_of_run(run_id: str, run: RunSpec, *, held_out_split: bool) -> TrainingSpec:
    """The trainer's part of a run. Raises InvalidTrainingSpec for an evaluation, and for a length in epochs,
    which the planner makes steps of."""
    if run.training is None or run.training.epochs is not None:
        raise InvalidTrainingSpec(f"run {run_id} asks for no steps")
    return training_spec(
        run_id=run_id,
        model=run.policy.model,
        group_size=run.group_size,
        held_out_taskset=run.gate.taskset if run.gate is not None else "",
        held_out_split=held_out_split,
        tasksets=tuple(plain_name(one.taskset) for one in with_own(run.taskset, run.mix)) if run.mix else (),
        **{name: getattr(run.training, name) for name in _HYPERPARAMETERS},
    )
