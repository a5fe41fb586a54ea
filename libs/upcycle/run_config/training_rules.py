"""Rules over several fields of a training run's algorithm: combinations that are refused. As `rules`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from upcycle.run_config.losses import loss_refusals
from upcycle.run_config.names import (
    ALL_LINEAR,
    BATCH_BASELINE,
    BY_TURN,
    CONSTANT,
    FADE,
    FAILED_TASKS,
    HIERARCHICAL,
    MAX_RL,
    MAX_SUCCESS,
    MIN_SUCCESS,
    NORMALIZE_THEN_SUM,
    ON_FAILURE,
    SCHEDULES,
    SELF_PLAY_ALPHA,
    SOLVED_TASKS,
    UNIFORM,
    WITH_BATCH_BASELINE,
    Say,
)
from upcycle.run_config.self_play import is_pair

if TYPE_CHECKING:
    from upcycle.run_config.model import Training

Rule = Callable[[Any, Say], Iterator[str]]


def _loss(training: Training, say: Say) -> Iterator[str]:
    yield from loss_refusals(
        training.loss,
        training.loss_config,
        kl_estimator=training.kl_estimator,
        kl_placement=training.kl_placement,
        say=say,
    )


def _schedule(training: Training, say: Say) -> Iterator[str]:
    """Of a run in epochs the number of steps is known when its taskset is: only then is the rest checked."""
    name, steps, warmup = training.lr_schedule, training.steps, training.warmup_steps
    falling = " or ".join(one for one in SCHEDULES if one != CONSTANT)
    if training.epochs is None and name != CONSTANT and steps == 0:
        yield (
            f"{say('lr_schedule')} {name!r} falls over the steps of a run, and {say('steps')} is 0, which "
            f"has no end: give {say('steps')} a number, or choose {CONSTANT}"
        )
    if training.epochs is None and 0 < steps <= warmup:
        limit = f">= 0 and below {say('steps')} ({steps})"
        yield f"{say('warmup_steps')} must be {limit}, got {warmup}: some step must have the full rate"
    if name == CONSTANT and training.min_lr_fraction > 0:
        yield (
            f"{say('min_lr_fraction')} is {training.min_lr_fraction:g} but a constant rate falls to nothing "
            f"less: set {say('lr_schedule')} to {falling}, or leave it out"
        )


def _staleness(training: Training, say: Say) -> Iterator[str]:
    pace, limit = training.max_staleness, training.stale_after
    if 0 < limit < pace:
        yield (
            f"{say('stale_after')} is {limit} and {say('max_staleness')} {pace}: groups that sampling may "
            "have open would be thrown away; give it at least as many versions, or leave it out"
        )


def _credit(training: Training, say: Say) -> Iterator[str]:
    by_turn = training.turn_credit == BY_TURN
    for name, default in (("turn_discount", 1.0), ("turn_reward_weight", 1.0)):
        if not by_turn and getattr(training, name) != default:
            yield (
                f"{say(name)} is set but {say('turn_credit')} is {training.turn_credit!r}: nothing reads it; "
                f"set {say('turn_credit')} to {BY_TURN}, or leave it out"
            )
    if by_turn and training.advantage == NORMALIZE_THEN_SUM:
        yield (
            f"{say('turn_credit')} {BY_TURN!r} compares what a turn led to, one number, and "
            f"{say('advantage')} {NORMALIZE_THEN_SUM!r} the parts of a reward: choose one of them"
        )


def _following(training: Training, say: Say) -> Iterator[str]:
    if training.kl_success_growth and not training.loss_config.get("kl_coefficient"):
        yield (
            f"{say('kl_success_growth')} is {training.kl_success_growth:g} and {say('loss_config')} has no "
            "kl_coefficient: nothing grows; give it one, or leave this out"
        )


def _fading(training: Training, say: Say) -> Iterator[str]:
    parts, pays_turns = training.process_rewards, training.turn_credit == BY_TURN
    if training.reward_schedule == FADE:
        if not parts and not (pays_turns and training.turn_reward_weight):
            yield (
                f"{say('reward_schedule')} is {FADE!r} and nothing fades: name the graders that pay for the "
                f"process in {say('process_rewards')}, or set {say('turn_credit')} to {BY_TURN}"
            )
        return
    for name, default in (("fade_at", 0.8), ("fade_steps", 10), ("process_rewards", ())):
        if getattr(training, name) != default:
            yield (
                f"{say(name)} is set but {say('reward_schedule')} is {training.reward_schedule!r}: nothing "
                f"reads it; set {say('reward_schedule')} to {FADE}, or leave it out"
            )


def _guidance(training: Training, say: Say) -> Iterator[str]:
    if training.guidance != ON_FAILURE and training.guidance_max_share != 0.25:
        yield (
            f"{say('guidance_max_share')} is set but {say('guidance')} is {training.guidance!r}: nothing "
            f"reads it; set {say('guidance')} to {ON_FAILURE}, or leave it out"
        )


def _new_tasks(training: Training, say: Say) -> Iterator[str]:
    for name, default in _OF_NEW_TASKS:
        if training.new_tasks == "off" and getattr(training, name) != default:
            yield (
                f"{say(name)} is set but {say('new_tasks')} is 'off': nothing reads it; set "
                f"{say('new_tasks')} to {FAILED_TASKS} or {SOLVED_TASKS}, or leave it out"
            )


_OF_NEW_TASKS: Final = (
    ("new_tasks_share", 0.25),
    ("new_tasks_retire_after", 2),
    ("new_tasks_difficulty", ""),
)
"""Options that only runs with new tasks have, with their defaults."""


def _difficulty(training: Training, say: Say) -> Iterator[str]:
    least, most = training.new_tasks_min_success, training.new_tasks_max_success
    if not training.new_tasks_difficulty and (least, most) != (MIN_SUCCESS, MAX_SUCCESS):
        name = "new_tasks_max_success" if least == MIN_SUCCESS else "new_tasks_min_success"
        yield (
            f"{say(name)} is set but {say('new_tasks_difficulty')} is empty: nothing reads it; "
            "name the argument there that says how hard a task is, or leave it out"
        )
    if least >= most:
        yield (
            f"{say('new_tasks_min_success')} is {least:g} and {say('new_tasks_max_success')} {most:g}: "
            "no new task would be played; leave room between them"
        )


def _self_play(training: Training, say: Say) -> Iterator[str]:
    if not training.self_play:
        yield from _not_self_play(training, say)
        return
    chosen = f"{say('self_play')} is {training.self_play!r}"
    if not is_pair(training.self_play):
        yield f"{chosen}, not PROPOSER:SOLVER, the names of two scenarios, as inject:repair"
    for name, plain, why in _ALONE:
        if getattr(training, name) != plain:
            yield f"{chosen} and {say(name)} is {getattr(training, name)!r}: {why}; leave one of them out"
    if training.advantage in (MAX_RL, NORMALIZE_THEN_SUM):
        yield (
            f"{chosen} and {say('advantage')} is {training.advantage!r}: what a proposal is paid may be "
            f"negative, and has no parts; choose {HIERARCHICAL} or dr_grpo"
        )
    if training.advantage == HIERARCHICAL and training.turn_credit == BY_TURN:
        yield (
            f"{say('advantage')} {HIERARCHICAL!r} compares whole proposals of a step with one another, and "
            f"{say('turn_credit')} is {BY_TURN!r}: choose one of them"
        )


def _not_self_play(training: Training, say: Say) -> Iterator[str]:
    for name, default in (("self_play_alpha", SELF_PLAY_ALPHA), ("self_play_order", 1)):
        if getattr(training, name) == default:
            continue
        yield (
            f"{say(name)} is set but {say('self_play')} is empty: nothing reads it; set "
            f"{say('self_play')} to PROPOSER:SOLVER, or leave it out"
        )
    if training.advantage == HIERARCHICAL:
        yield (
            f"{say('advantage')} {HIERARCHICAL!r} compares each role of a run that plays against itself with "
            f"its own, and {say('self_play')} is empty: set it to PROPOSER:SOLVER, or choose another one"
        )


_ALONE: Final = (
    ("new_tasks", "off", "two sources of new tasks would take one another's turns"),
    ("guidance", "off", "a solver that was told how says nothing of how hard a proposal is"),
    ("task_sampler", UNIFORM, "a proposer's task teaches by what is proposed, which no sampler counts"),
    ("solved_groups", "train", "the proposals of a group that all are valid are what self-play compares"),
)
"""Options that do not go with self-play, with the one value that does, and why."""


def _single_sessions(training: Training, say: Say) -> Iterator[str]:
    if training.single_sessions != BATCH_BASELINE:
        return
    chosen = f"{say('single_sessions')} is {BATCH_BASELINE!r}"
    if training.advantage not in WITH_BATCH_BASELINE:
        yield (
            f"{chosen} and {say('advantage')} is {training.advantage!r}, which divides by what one reward "
            f"does not have: set {say('advantage')} to {' or '.join(WITH_BATCH_BASELINE)}"
        )
    if training.turn_credit == BY_TURN:
        yield (
            f"{chosen} and {say('turn_credit')} is {BY_TURN!r}: turns of one session have no others of the "
            "same index beside them; leave one of them out"
        )
    if training.prompts_per_step < 2:
        yield (
            f"{chosen} and {say('prompts_per_step')} is 1: a session is compared with the other groups of a "
            f"step; set {say('prompts_per_step')} to 2 or more"
        )


def _adapters(training: Training, say: Say) -> Iterator[str]:
    targets = training.lora_targets
    if training.lora_rank == 0:
        for name, default in (("lora_alpha", 0.0), ("lora_targets", ALL_LINEAR)):
            if getattr(training, name) != default:
                yield (
                    f"{say(name)} is set but {say('lora_rank')} is 0: all weights train, and nothing reads "
                    f"it; give {say('lora_rank')} a number, or leave it out"
                )
    elif not all(one.strip() for one in targets.split(",")):
        yield (
            f"{say('lora_targets')} {targets!r} holds an empty name: give {ALL_LINEAR}, or names of layers "
            "with commas between them"
        )


TRAINING_RULES: Final[tuple[Rule, ...]] = (
    _loss,
    _schedule,
    _staleness,
    _credit,
    _following,
    _fading,
    _guidance,
    _new_tasks,
    _difficulty,
    _self_play,
    _single_sessions,
    _adapters,
)
