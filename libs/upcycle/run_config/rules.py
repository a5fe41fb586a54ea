"""Rules over several fields of a run configuration: combinations that are refused.

A rule names fields through `say`, relative to the class that it is about. The reader of a refusal has other
names for them (`spec.training.steps`, `--steps`, `run.toml:7 training.steps`), which are put in later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from upcycle.local_runs import is_local_run, why_no_source
from upcycle.mixing import with_own
from upcycle.revision_names import plain_name
from upcycle.run_config.limits import (
    MAX_GROUP_SIZE,
    MAX_MIXED,
    MAX_TRACKED,
    MAX_TRAINABLE_GROUP,
    MAX_TRAJECTORIES_PER_STEP,
)
from upcycle.run_config.losses import loss_refusals
from upcycle.run_config.names import (
    ALL_LINEAR,
    BATCH_BASELINE,
    BY_TURN,
    CHANNELS,
    CONSTANT,
    FADE,
    NORMALIZE_THEN_SUM,
    ON_FAILURE,
    SCHEDULES,
    UNIFORM,
    WITH_BATCH_BASELINE,
    Channel,
    Purpose,
    Say,
)
from upcycle.session_query import parse_sessions
from upcycle.tracking import parse_tracked

if TYPE_CHECKING:
    from upcycle.run_config.model import PolicyChoice, RunSpec, Sampling, Training

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


def _batch(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.training is None:
        return
    prompts, size = say("training.prompts_per_step"), spec.training.prompts_per_step * spec.group_size
    if spec.group_size < 2:
        yield (
            f"{say('group_size')} must be >= 2 and <= {MAX_GROUP_SIZE}, got {spec.group_size}: one rollout "
            "has nothing to be compared with, 8 is a good start"
        )
    if size > MAX_TRAJECTORIES_PER_STEP:
        yield (
            f"{prompts} * {say('group_size')} is {size}, limit {MAX_TRAJECTORIES_PER_STEP}: lower one of them"
        )


def _purpose(spec: RunSpec, say: Say) -> Iterator[str]:
    """Fields that only the other purpose has."""
    if spec.purpose is Purpose.TRAIN:
        if spec.trainable:
            yield f"{say('trainable')} is for purpose EVAL only; this run has purpose TRAIN"
        if spec.max_concurrent is not None:
            yield (
                f"{say('max_concurrent')} is for purpose EVAL only: max_staleness bounds what a training run "
                "has in flight"
            )
        return
    given = {
        "training": spec.training is not None,
        "gate": spec.gate is not None,
        "source_runs": bool(spec.source_runs),
        "no_sampling": spec.no_sampling,
        "sessions": bool(spec.sessions),
        "sessions_idle_s": bool(spec.sessions_idle_s),
        "track": bool(spec.track),
        "stop_on": bool(spec.stop_on),
        "mix": bool(spec.mix),
    }
    for name in (name for name, is_given in given.items() if is_given):
        yield f"{say(name)} is for purpose TRAIN only; this run has purpose EVAL"


def _policy_of_training(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.purpose is Purpose.TRAIN and spec.policy.channel is not Channel.LATEST:
        yield f"{say('policy')} of a training run follows channel LATEST; leave it unset"


def _concurrent(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.max_concurrent is not None and spec.max_concurrent < spec.group_size:
        yield (
            f"{say('max_concurrent')} must be >= {say('group_size')} ({spec.group_size}), got "
            f"{spec.max_concurrent}: a group is planned as a whole"
        )


def _trainable(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.purpose is Purpose.EVAL and spec.trainable and not 2 <= spec.group_size <= MAX_TRAINABLE_GROUP:
        yield (
            f"{say('trainable')} needs {say('group_size')} of 2 to {MAX_TRAINABLE_GROUP}, it is "
            f"{spec.group_size}: rewards are compared within a group, which trains as a whole; 8 is a good "
            "start"
        )


def _choice_of_tasks(spec: RunSpec, say: Say) -> Iterator[str]:
    for family in [family for family, count in Counter(spec.families).items() if count > 1][:1]:
        yield f"{say('families')} names {family!r} twice"
    given = {
        "against_version": spec.against_version is not None,
        "families": bool(spec.families),
        "draws": spec.draws is not None,
    }
    for name in (name for name, is_given in given.items() if is_given and spec.purpose is Purpose.TRAIN):
        yield f"{say(name)} is for purpose EVAL only; this run has purpose TRAIN"


def _pair(spec: RunSpec, say: Say) -> Iterator[str]:
    """Two versions side by side."""
    against, pinned = spec.against_version, spec.policy.pinned_version
    if against is None or spec.purpose is Purpose.TRAIN:
        return
    if pinned is None:
        yield f"{say('against_version')} {against} needs a version to stand against: set pinned_version"
    if pinned == against:
        yield f"{say('against_version')} is {against}, as the pinned version: a version is not its own rival"
    if spec.group_size % 2:
        yield (
            f"{say('group_size')} must be even where two versions play, got {spec.group_size}: half of its "
            "members are of each"
        )
    if spec.trainable:
        yield (
            f"{say('trainable')} does not go with {say('against_version')}: rewards are compared among "
            "rollouts of one policy"
        )


def _sampler(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.training is not None and spec.no_sampling and spec.training.task_sampler != UNIFORM:
        yield (
            f"{say('training.task_sampler')} is {spec.training.task_sampler!r} and {say('no_sampling')} is "
            "set: the run plays no task itself; leave one of them out"
        )
    if spec.training is not None and spec.no_sampling and spec.training.guidance == ON_FAILURE:
        yield (
            f"{say('training.guidance')} is {ON_FAILURE!r} and {say('no_sampling')} is set: the run attempts "
            "no task itself; leave one of them out"
        )


def _sources(spec: RunSpec, say: Say) -> Iterator[str]:
    limit = 64
    if len(spec.source_runs) > limit:
        yield f"{say('source_runs')} names {len(spec.source_runs)} runs, limit {limit}"
    for run_id in [run_id for run_id, count in Counter(spec.source_runs).items() if count > 1][:1]:
        yield f"{say('source_runs')} names {run_id!r} twice"
    for run_id in [run_id for run_id in spec.source_runs if is_local_run(run_id)][:1]:
        yield f"{say('source_runs')}: {why_no_source(run_id)}"


def _sessions(spec: RunSpec, say: Say) -> Iterator[str]:
    try:
        if spec.sessions:
            parse_sessions(spec.sessions)
    except ValueError as error:
        yield f"{say('sessions')}: {error}"
    yield from _sessions_as_they_come(spec, say)
    if spec.training is not None and spec.training.single_sessions == BATCH_BASELINE and not spec.sessions:
        yield (
            f"{say('training.single_sessions')} is {BATCH_BASELINE!r} and {say('sessions')} is empty: none "
            f"is taken; name sessions in {say('sessions')}, or leave it out"
        )


def _sessions_as_they_come(spec: RunSpec, say: Say) -> Iterator[str]:
    if not spec.sessions_idle_s:
        return
    asked = f"{say('sessions_idle_s')} is {spec.sessions_idle_s}"
    if not spec.sessions:
        yield (
            f"{asked} and {say('sessions')} is empty: none would come; name some in {say('sessions')}, "
            "`all` for those of any key and group, or leave it out"
        )
    elif "before=" in "".join(spec.sessions.split()):
        yield f"{asked}, and {say('sessions')} has an end, before=…: leave one of the two out"


def _tracking(spec: RunSpec, say: Say) -> Iterator[str]:
    names = []
    for text in spec.track:
        try:
            names.append(parse_tracked(text).taskset)
        except ValueError as error:
            yield f"{say('track')}: {error}"
    for name in [name for name, count in Counter(names).items() if count > 1][:1]:
        yield f"{say('track')} names {name!r} twice"
    if len(spec.track) > MAX_TRACKED:
        yield f"{say('track')} names {len(spec.track)} tasksets, limit {MAX_TRACKED}"
    if spec.stop_on and not spec.track:
        yield f"{say('stop_on')} is {spec.stop_on} and {say('track')} is empty: name a held-out taskset there"


def _mix(spec: RunSpec, say: Say) -> Iterator[str]:
    try:
        names = [plain_name(one.taskset) for one in with_own(spec.taskset, spec.mix)]
    except ValueError as error:
        yield f"{say('mix')}: {error}"
        return
    for name in [name for name, count in Counter(names).items() if count > 1][:1]:
        own = f", which is {say('taskset')}" if name == names[0] else " twice"
        yield f"{say('mix')} names {name!r}{own}: a taskset has one share"
    if len(spec.mix) > MAX_MIXED:
        yield f"{say('mix')} names {len(spec.mix)} tasksets, limit {MAX_MIXED}"
    if spec.mix and spec.no_sampling:
        yield f"{say('mix')} and {say('no_sampling')} are set: the run plays no task itself; leave one out"


def _channel(policy: PolicyChoice, say: Say) -> Iterator[str]:
    if policy.channel not in (None, *CHANNELS):
        yield f"{say('channel')} {policy.channel.name} needs a version; set pinned_version instead"


def _thinking(sampling: Sampling, say: Say) -> Iterator[str]:
    budget = sampling.thinking_budget
    if budget is not None and budget >= sampling.max_tokens_per_turn:
        yield (
            f"{say('thinking')} is {budget} and {say('max_tokens_per_turn')} {sampling.max_tokens_per_turn}: "
            "no token is left for the answer; raise the limit of the turn, or lower the budget"
        )


SAMPLING_RULES: Final[tuple[Rule, ...]] = (_thinking,)
TRAINING_RULES: Final[tuple[Rule, ...]] = (
    _loss,
    _schedule,
    _staleness,
    _credit,
    _fading,
    _guidance,
    _single_sessions,
    _adapters,
)
POLICY_RULES: Final[tuple[Rule, ...]] = (_channel,)
RUN_RULES: Final[tuple[Rule, ...]] = (
    _batch,
    _purpose,
    _policy_of_training,
    _trainable,
    _concurrent,
    _choice_of_tasks,
    _pair,
    _sampler,
    _sources,
    _sessions,
    _tracking,
    _mix,
)
