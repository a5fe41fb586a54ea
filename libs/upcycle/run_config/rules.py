"""Every rule of a training configuration that needs neither the model nor the trainer's own settings.

The command line, the planner and the trainer call the same functions, so that what one accepts no other
refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from upcycle.run_config.limits import GATE_LIMITS, LIMITS, MAX_TRAJECTORIES_PER_STEP
from upcycle.run_config.losses import LOSSES, loss_refusals
from upcycle.run_config.names import (
    ADVANTAGES,
    AGGREGATIONS,
    ALL_LINEAR,
    CLONING,
    CONSTANT,
    SCHEDULES,
    Say,
    unknown,
)

DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "steps": 100,
        "prompts_per_step": 16,
        "max_staleness": 4,
        "learning_rate": 1e-5,
        "max_grad_norm": 1.0,
        "loss": "ppo",
        "advantage": "dr_grpo",
        "checkpoint_every_steps": 10,
        "loss_config": MappingProxyType({}),
        "weight_decay": 0.0,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "aggregation": "",
        "kl_estimator": "k3",
        "kl_placement": "loss",
        "lr_schedule": CONSTANT,
        "warmup_steps": 0,
        "min_lr_fraction": 0.0,
        "lora_rank": 0,
        "lora_alpha": 0.0,
        "lora_targets": ALL_LINEAR,
        "no_step_groups": 0,
    }
)
"""What a configuration means that leaves a field out; those of the contract (TrainingConfig)."""

_Values = Mapping[str, Any]


def refusals(config: object, *, group_size: int, say: Say = str) -> list[str]:
    """Why a training run cannot be what this configuration says; empty where it can.

    config: has the fields of TrainingConfig as attributes, or is a mapping of them; what it lacks has its
    default. group_size: rollouts per task. say: what the reader calls a field.
    """
    values = {**_values(config, DEFAULTS), "group_size": group_size}
    return [text for rule in _RULES for text in rule(values, say)]


def gate_refusals(config: object, *, say: Say = str) -> list[str]:
    """Why a promotion gate cannot be what this configuration says. config: as for refusals."""
    values = _values(config, dict.fromkeys(GATE_LIMITS))
    chosen = {name: value for name, value in values.items() if value is not None}
    return [
        GATE_LIMITS[name].refusal(say(name), value)
        for name, value in chosen.items()
        if not GATE_LIMITS[name].holds(value)
    ]


def _values(config: object, defaults: _Values) -> dict[str, Any]:
    if isinstance(config, Mapping):
        return {name: config.get(name, default) for name, default in defaults.items()}
    return {name: getattr(config, name, default) for name, default in defaults.items()}


def _numbers(values: _Values, say: Say) -> Iterator[str]:
    for name, limit in LIMITS.items():
        if not limit.holds(values[name]):
            yield limit.refusal(say(name), values[name])


def _batch(values: _Values, say: Say) -> Iterator[str]:
    size = values["prompts_per_step"] * values["group_size"]
    if size > MAX_TRAJECTORIES_PER_STEP:
        yield (
            f"{say('prompts_per_step')} * {say('group_size')} is {size}, limit {MAX_TRAJECTORIES_PER_STEP}: "
            "lower one of them"
        )


def _credit(values: _Values, say: Say) -> Iterator[str]:
    if values["advantage"] not in ADVANTAGES:
        yield unknown(say("advantage"), values["advantage"], ADVANTAGES)
    if values["aggregation"] and values["aggregation"] not in AGGREGATIONS:
        yield unknown(say("aggregation"), values["aggregation"], AGGREGATIONS)


def _loss(values: _Values, say: Say) -> Iterator[str]:
    offered = sorted(set(LOSSES) - {CLONING})
    if values["loss"] == CLONING:
        yield (
            f"{say('loss')} {CLONING!r} imitates and compares no rollouts, a training run compares them: "
            f"choose one of {', '.join(offered)}; "
            "conversations are cloned by `upcycle train --sft`"
        )
    yield from loss_refusals(
        values["loss"],
        values["loss_config"],
        kl_estimator=values["kl_estimator"],
        kl_placement=values["kl_placement"],
        offered=offered,
        say=say,
    )


def _schedule(values: _Values, say: Say) -> Iterator[str]:
    name, steps = values["lr_schedule"], values["steps"]
    warmup, fraction = values["warmup_steps"], values["min_lr_fraction"]
    falling = " or ".join(one for one in SCHEDULES if one != CONSTANT)
    if name not in SCHEDULES:
        yield unknown(say("lr_schedule"), name, SCHEDULES)
    elif name != CONSTANT and steps == 0:
        yield (
            f"{say('lr_schedule')} {name!r} falls over the steps of a run, and {say('steps')} is 0, which "
            f"has no end: give {say('steps')} a number, or choose {CONSTANT}"
        )
    if warmup < 0 or 0 < steps <= warmup:
        limit = f" and below {say('steps')} ({steps})" if steps > 0 else ""
        yield (f"{say('warmup_steps')} must be >= 0{limit}, got {warmup}: some step must have the full rate")
    if name == CONSTANT and fraction > 0:
        yield (
            f"{say('min_lr_fraction')} is {fraction:g} but a constant rate falls to nothing less: "
            f"set {say('lr_schedule')} to {falling}, or leave it out"
        )


def _adapters(values: _Values, say: Say) -> Iterator[str]:
    targets = values["lora_targets"]
    if values["lora_rank"] == 0:
        for name in ("lora_alpha", "lora_targets"):
            if values[name] != DEFAULTS[name]:
                yield (
                    f"{say(name)} is set but {say('lora_rank')} is 0: all weights train, and nothing reads "
                    f"it; give {say('lora_rank')} a number, or leave it out"
                )
    elif not all(one.strip() for one in targets.split(",")):
        yield (
            f"{say('lora_targets')} {targets!r} holds an empty name: give {ALL_LINEAR}, or names of layers "
            "with commas between them"
        )


_RULES: Final[tuple[Callable[[_Values, Say], Iterator[str]], ...]] = (
    _numbers,
    _batch,
    _credit,
    _loss,
    _schedule,
    _adapters,
)
