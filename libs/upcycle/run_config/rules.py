"""Rules over several fields of a run configuration: combinations that are refused.

A rule names fields through `say`, relative to the class that it is about. The reader of a refusal has other
names for them (`spec.training.steps`, `--steps`, `run.toml:7 training.steps`), which are put in later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

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
from upcycle.run_config.names import BATCH_BASELINE, CHANNELS, ON_FAILURE, UNIFORM, Channel, Purpose, Say
from upcycle.run_config.training_rules import Rule
from upcycle.session_query import parse_sessions
from upcycle.tracking import parse_tracked

if TYPE_CHECKING:
    from upcycle.run_config.model import RunSpec, Sampling
    from upcycle.run_config.policy import PolicyChoice


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
    if spec.training is not None and spec.no_sampling and spec.training.new_tasks != "off":
        yield (
            f"{say('training.new_tasks')} is {spec.training.new_tasks!r} and {say('no_sampling')} is set: "
            "the run plays no task itself; leave one of them out"
        )
    yield from _follows_no_episode(spec, say)


def _follows_no_episode(spec: RunSpec, say: Say) -> Iterator[str]:
    for name in ("lr_success_decay", "kl_success_growth"):
        if spec.training is not None and spec.no_sampling and getattr(spec.training, name):
            yield (
                f"{say(f'training.{name}')} is {getattr(spec.training, name):g} and {say('no_sampling')} is "
                "set: it follows the success of episodes that the run plays itself; leave one of them out"
            )


def _self_play(spec: RunSpec, say: Say) -> Iterator[str]:
    if spec.training is not None and spec.no_sampling and spec.training.self_play:
        yield (
            f"{say('training.self_play')} is {spec.training.self_play!r} and {say('no_sampling')} is set: "
            "the run plays no task itself; leave one of them out"
        )


def _no_taskset(spec: RunSpec, say: Say) -> Iterator[str]:
    """What a run may not ask for that is about no tasks."""
    if spec.taskset:
        return
    if not spec.sessions or spec.source_runs or not spec.no_sampling:
        yield (
            f"{say('taskset')} must be set; only a training run with {say('sessions')} and "
            f"{say('no_sampling')}, and without {say('source_runs')}, needs none"
        )
    if spec.training is not None and spec.training.epochs is not None:
        yield (
            f"{say('training.epochs')} are passes over a taskset, and {say('taskset')} is empty: name one, "
            f"or set {say('training.steps')}"
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
    _self_play,
    _no_taskset,
    _sources,
    _sessions,
    _tracking,
    _mix,
)
