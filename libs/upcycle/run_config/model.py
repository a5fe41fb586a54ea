"""Everything that a run has: names, types, limits, defaults, units. The proto messages have the same fields.

Frozen pydantic dataclasses: whatever makes one, checks it. `checked` turns pydantic's errors into sentences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field, replace
from fractions import Fraction
from typing import Annotated, Any, Final

from pydantic import Strict, model_validator
from pydantic.dataclasses import dataclass

from upcycle.harness.context import POLICIES as CONTEXTS
from upcycle.harness.context import STOP
from upcycle.mixing import with_own
from upcycle.run_config.breaking import keep_rules, refuse_two_lengths
from upcycle.run_config.gate import CONFIG, Flag, Gate, Number, Whole
from upcycle.run_config.limits import (
    LARGEST,
    MAX_EPISODE_DEADLINE_S,
    MAX_GROUP_SIZE,
    POSITIVE,
    Limit,
    OneOf,
    Text,
)
from upcycle.run_config.losses import NO_TRAINING_LOSS, TRAINING_LOSSES
from upcycle.run_config.names import (
    ADVANTAGES,
    AGGREGATIONS,
    ALL_LINEAR,
    BY_EPISODE,
    CONSTANT,
    CUT_OFF_EPISODES,
    GUIDANCE,
    KL_ESTIMATORS,
    KL_PLACEMENTS,
    LEAVE_OUT,
    LINEAR,
    MAX_SUCCESS,
    MIN_SUCCESS,
    NEW_TASKS,
    REWARD_SCHEDULES,
    SCHEDULES,
    SELF_PLAY_ALPHA,
    SINGLE_SESSIONS,
    SOLVED_GROUPS,
    TASK_SAMPLERS,
    TURN_CREDITS,
    UNIFORM,
    Purpose,
)
from upcycle.run_config.policy import PolicyChoice
from upcycle.run_config.rules import RUN_RULES, SAMPLING_RULES
from upcycle.run_config.thinking import Thinking
from upcycle.run_config.training_rules import TRAINING_RULES
from upcycle.tracking import STOP_RULES, is_by_platform

FULL_RATE: Final = 1e-6
LORA_RATE: Final = 1e-5
"""Learning rates by what trains: those of prime-rl and TRL; adapters take about ten times as much."""

Seed = Annotated[int, Strict(), Limit(-(2**62), 2**62)]


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class Sampling:
    """How a policy is sampled."""

    temperature: Annotated[Number, Limit(0, 10)] = 1.0
    """sampling temperature; 0 takes the likeliest token. Training needs 1, which the loss assumes."""
    top_p: Annotated[Number, Limit(0, 1, above=True)] = 1.0
    """tokens are drawn from the likeliest ones that hold this share of the probability; 1 draws from all."""
    max_turns: Annotated[Whole, Limit(1, 1000)] = 8
    """most turns of an episode."""
    max_tokens_per_turn: Annotated[Whole, Limit(1, 1 << 20)] = 128
    """most tokens that one turn samples."""
    max_tokens_per_episode: Annotated[Whole, Limit(1, 1 << 22)] = 2048
    """most tokens of an episode, prompt and completions together."""
    seed: Seed = 0
    """random seed of sampling; every episode and every turn derives its own."""
    thinking: Thinking = ""
    """`on` or `off`: whether the chat template lets the model think before it answers
    (`enable_thinking`); empty: as the template does by itself. A number: on, and where a turn still thinks
    after so many tokens, the sampler ends its thinking with a `</think>`, which does not train."""

    context: Annotated[str, OneOf(CONTEXTS)] = STOP
    """what becomes of an episode whose next turn might not fit into max_tokens_per_episode: `stop` ends it
    there; `compress` leaves older results of tools out of the context, all actions kept, and goes on with at
    most so many tokens in one context. Each context is a training row of its own."""

    @property
    def thinking_budget(self) -> int | None:
        """Tokens after which the thinking of a turn is ended; None: never."""
        return int(self.thinking) if self.thinking.isdigit() else None

    @model_validator(mode="after")
    def _check(self) -> Sampling:
        keep_rules(self, SAMPLING_RULES)
        return self


@dataclass(frozen=True, slots=True, kw_only=True, config=CONFIG)
class Training:
    """What a training run asks of the planner and of the trainer."""

    steps: Annotated[Whole, Limit(0, why="0 trains until the run is stopped")] = 100
    """optimizer steps; 0: until the run is stopped."""
    epochs: Annotated[Whole, Limit(1, 10**6)] | None = None
    """passes over the taskset, instead of steps: ceil(epochs * tasks / prompts_per_step) steps, with the
    tasks that it has when the run is submitted; with `mix` more, by its share."""
    prompts_per_step: Annotated[Whole, Limit(1, 999, why="a step is published as one")] = 16
    """groups per optimizer step, each of one task."""
    max_staleness: Annotated[Whole, Limit(0, 1000)] = 4
    """how far sampling may run ahead of training: at most (max_staleness + 1) * prompts_per_step groups are
    open, so what trains is on average about so many versions old; 0 trains on the newest version alone."""
    stale_after: Annotated[Whole, Limit(0, 8000, why="0 is 8 * max_staleness")] = 0
    """versions after which a group is thrown away, counted from its oldest token: a hard limit, far out,
    since what is thrown away are the long tasks. 0: 8 * max_staleness."""
    learning_rate: Annotated[Number, Limit(0, 10, above=True)] | None = None
    """peak AdamW learning rate; without it 1e-6 where all weights train, 1e-5 for adapters (`lora_rank`)."""
    max_grad_norm: Annotated[Number, POSITIVE] = 1.0
    """a gradient with a larger norm is scaled down to this one."""
    loss: Annotated[str, OneOf(TRAINING_LOSSES, elsewhere=NO_TRAINING_LOSS)] = "ppo"
    """name of the loss: `ppo`, `importance_sampling`, `cispo`, `gspo`, …"""
    advantage: Annotated[str, OneOf(ADVANTAGES)] = "dr_grpo"
    """how rewards of a group become credit."""
    turn_credit: Annotated[str, OneOf(TURN_CREDITS)] = BY_EPISODE
    """`episode`: every turn has the advantage of its trajectory. `turn`: each turn is compared, by what it
    led to, with the turns of the same index in its group."""
    turn_discount: Annotated[Number, Limit(0, 1)] = 1.0
    """with turn_credit `turn`: what a reward is worth one turn earlier."""
    turn_reward_weight: Annotated[Number, Limit(0, 1000)] = 1.0
    """with turn_credit `turn`: weight of what each turn earned (`turn_rewards` of a grade), beside the
    reward, which the last turn earns."""
    reward_schedule: Annotated[str, OneOf(REWARD_SCHEDULES)] = CONSTANT
    """`fade`: once the share of episodes that succeed has been at least `fade_at` for `fade_steps` steps, the
    rewards of the process (`process_rewards`, and of turns) fall to 0 over as many steps."""
    fade_at: Annotated[Number, Limit(0, 1, above=True)] = 0.8
    """share of successes from which the process is paid less."""
    fade_steps: Annotated[Whole, Limit(1, 10**6)] = 10
    """steps in a row with that share, and steps over which the process rewards fall."""
    process_rewards: tuple[str, ...] = ()
    """names of the rubric's graders that pay for the process, not for the outcome: they fade."""
    checkpoint_every_steps: Annotated[Whole, Limit(1)] = 10
    """steps between checkpoints that ask to be promoted; the last step always saves one."""
    seed: Seed = 0
    """random seed of the task order and of the trainer."""
    loss_config: Mapping[str, Number] = field(default_factory=dict)
    """options of the loss and of what stands beside it: clip_low, clip_high, kl_coefficient, …"""
    weight_decay: Annotated[Number, Limit(0, 10)] = 0.0
    """AdamW weight decay, decoupled from the gradient."""
    adam_beta1: Annotated[Number, Limit(0, 1, below=True)] = 0.9
    """AdamW beta1: decay of the mean of gradients."""
    adam_beta2: Annotated[Number, Limit(0, 1, below=True)] = 0.95
    """AdamW beta2: decay of the mean of squared gradients."""
    aggregation: Annotated[str, OneOf(AGGREGATIONS, or_empty=True)] = ""
    """how token losses become one number; empty: `token_mean`, and `turn_mean` for the advantage m_grpo."""
    kl_estimator: Annotated[str, OneOf(KL_ESTIMATORS)] = "k3"
    """estimator of the KL divergence from the run's first policy: k1, k2, k3 or k3_plus; used when
    loss_config has a kl_coefficient."""
    kl_placement: Annotated[str, OneOf(KL_PLACEMENTS)] = "loss"
    """`loss`: the KL divergence is added to the loss; `reward`: it is subtracted from the advantages."""
    lr_schedule: Annotated[str, OneOf(SCHEDULES, or_empty=True)] = ""
    """learning rate after the warm-up: `constant`, or decayed as `linear` or `cosine`, which need a number of
    steps; empty: `linear`, and `constant` for a run without a number of steps."""
    warmup_steps: Annotated[Whole, Limit(0)] = 0
    """first steps, in which the learning rate rises linearly."""
    min_lr_fraction: Annotated[Number, Limit(0, 1)] = 0.0
    """share of the peak learning rate to which `linear` and `cosine` decay."""
    lora_rank: Annotated[Whole, Limit(0, 65536, why="0 trains all weights")] = 0
    """train low-rank adapters of this rank instead of all weights; 0 trains all."""
    lora_alpha: Annotated[Number, Limit(0, 1e6, why="0 is twice the rank")] = 0.0
    """adapters are scaled by alpha / rank; 0: alpha is twice the rank."""
    lora_targets: str = ALL_LINEAR
    """layers with adapters: `all-linear`, or their names, comma-separated."""
    min_spread: Annotated[Number, Limit(0)] = 0.0
    """least difference between the highest and the lowest reward of a group that trains; below it they count
    as equal."""
    solved_groups: Annotated[str, OneOf(SOLVED_GROUPS)] = "train"
    """groups that all solved: `train` on what else tells their rewards apart, such as brevity, or `skip`."""
    single_sessions: Annotated[str, OneOf(SINGLE_SESSIONS)] = LEAVE_OUT
    """recorded sessions that no other one has the group and the first prompt of: `leave_out`; `batch`: each
    is compared with the mean reward of the other groups of its step, and trains."""
    drift_groups: Annotated[Whole, Limit(0, 999, why="0 measures none")] = 1
    """groups of each step on which the divergence from the run's first policy is measured (metric
    `drift_kl`); it is not in the loss. All weights: a second, frozen model in memory. 0: none."""
    task_sampler: Annotated[str, OneOf(TASK_SAMPLERS)] = UNIFORM
    """`uniform`: each task once per epoch. `spread`: tasks whose groups had different rewards are drawn more
    often. `age`: tasks that were not played for long."""
    guidance: Annotated[str, OneOf(GUIDANCE)] = "off"
    """`on_failure`: a task that all failed, so that its group had no spread, is attempted once more by a
    group with the scenario's guidance in its prompt; such episodes train and count as evidence nowhere."""
    guidance_max_share: Annotated[Number, Limit(0, 1, above=True)] = 0.25
    """with guidance `on_failure`: of the run's groups, those that are guided at most."""
    new_tasks: Annotated[str, OneOf(NEW_TASKS)] = "off"
    """`failed`: of a task that all failed, the scenario's generator makes a new one, which the run plays too;
    `solved`: of one that all solved. New tasks are training data and count as evidence nowhere."""
    new_tasks_share: Annotated[Number, Limit(0, 1, above=True)] = 0.25
    """with new tasks: of the run's groups, those that play them at most."""
    new_tasks_retire_after: Annotated[Whole, Limit(1, 1000)] = 2
    """with new tasks: groups in a row without spread after which one of them is played no more."""
    new_tasks_difficulty: str = ""
    """with new tasks: the argument of the scenarios that says how hard a task is, a number. A new task whose
    expected success, by what its family lately played at values next to its own, is not between the next two
    is not played. Empty: all are played."""
    new_tasks_min_success: Annotated[Number, Limit(0, 1)] = MIN_SUCCESS
    """with new_tasks_difficulty: a new task of less expected success is too hard."""
    new_tasks_max_success: Annotated[Number, Limit(0, 1)] = MAX_SUCCESS
    """with new_tasks_difficulty: a new task of more expected success is too easy."""
    self_play: str = ""
    """`PROPOSER:SOLVER`, two scenarios of one environment: answers to tasks of the first that have success
    become tasks of the second, played by a group each, and are paid by how many of that group solve them.
    Both train."""
    self_play_alpha: Annotated[Number, Limit(0, 1)] = SELF_PLAY_ALPHA
    """with self_play: a proposal that a share s of its group solves is paid 1 - (1 + alpha) * s, and -alpha
    where all or none solve it; an answer that is no proposal -1."""
    self_play_order: Annotated[Whole, Limit(1, 8)] = 1
    """with self_play: 1 plays proposals alone; 2 also what a failed attempt at one leaves, as a task of its
    own (bugs of a higher order); 3 what one at such a task leaves, and so on."""
    cut_off_episodes: Annotated[str, OneOf(CUT_OFF_EPISODES)] = "train"
    """episodes that a limit of tokens or turns ended: `train` on them, or `leave_out`: their rewards count
    in their group, and their tokens do not train."""
    lr_success_decay: Annotated[Number, Limit(0, 1, below=True)] = 0.0
    """the learning rate is multiplied by 1 - lr_success_decay * success, the mean of the last steps'
    `success_all`."""
    kl_success_growth: Annotated[Number, Limit(0, 1000)] = 0.0
    """`kl_coefficient` is multiplied by 1 + kl_success_growth * success, likewise."""
    no_step_groups: Annotated[Whole, Limit(0, why="0 is max(8 * prompts_per_step, 64)")] = 0
    """groups in a row that may end without a step; then a run with a limit of steps ends, because its tasks
    teach it nothing. 0: max(8 * prompts_per_step, 64)."""
    max_infra_failures: Annotated[Number, Limit(0, 1, why="1 never pauses the run")] = 0.5
    """share of the last 64 episodes that may fail without the policy's doing; above it the run pauses
    itself."""
    score_failures: Flag = True
    """failures that the policy caused have reward 0 and train; false: such an episode is missing and played
    again."""

    @model_validator(mode="before")
    @classmethod
    def _one_length(cls, data: Any) -> Any:
        return refuse_two_lengths(data)

    @model_validator(mode="after")
    def _check(self) -> Training:
        for name, default in self.defaults_by_mode.items():
            if getattr(self, name) in (None, ""):
                object.__setattr__(self, name, default)
        keep_rules(self, TRAINING_RULES)
        return self

    @property
    def defaults_by_mode(self) -> dict[str, float | str]:
        """Of fields that are left out: what this training has there, by what it trains and for how long."""
        return {
            "learning_rate": LORA_RATE if self.lora_rank else FULL_RATE,
            "lr_schedule": CONSTANT if self.is_standing else LINEAR,
        }

    @property
    def peak_rate(self) -> float:
        """The learning rate, which every training has once it is made."""
        if self.learning_rate is None:
            raise RuntimeError("a training that was not checked has no learning rate")
        return self.learning_rate

    @property
    def max_no_step_groups(self) -> int:
        """Groups in a row that may be settled without a step; `no_step_groups` 0 stands for the default."""
        return self.no_step_groups or max(8 * self.prompts_per_step, 64)

    @property
    def max_age(self) -> int:
        """Versions after which a group is thrown away; `stale_after` 0 stands for the default."""
        return self.stale_after or 8 * self.max_staleness

    @property
    def is_standing(self) -> bool:
        """Trains until it is stopped, and takes the newest revision of its taskset."""
        return self.steps == 0 and self.epochs is None

    def reached(self, step: int) -> bool:
        """Whether a run is over with this step. Never, if it has no limit (`steps` is 0)."""
        return 0 < self.steps <= step

    def in_steps(self, num_tasks: int, share: Fraction = Fraction(1)) -> Training:
        """The same training with its length in steps, over a taskset of so many tasks that has this share of
        the groups. Raises pydantic.ValidationError where what was chosen does not fit so many steps."""
        if self.epochs is None:
            return self
        steps = math.ceil(self.epochs * num_tasks / (share * self.prompts_per_step))
        return replace(self, steps=steps, epochs=None)


@dataclass(frozen=True, slots=True, config=CONFIG)
class RunSpec:
    """One run: what plays, on which tasks, how it is sampled and, of a training run, how it trains."""

    taskset: Annotated[str, Text()]
    """name of a registered taskset; on the command line and in a file also a tasks file (.py, .json,
    .jsonl or .csv). A training run of recorded sessions may have none: it plays nothing."""
    purpose: Purpose
    """`train`, or `eval`."""
    policy: PolicyChoice
    """which weights play."""
    group_size: Annotated[Whole, Limit(1, MAX_GROUP_SIZE)] = 8
    """rollouts per task: at least 2 to train, whose rewards are compared; attempts of an evaluation."""
    sampling: Sampling = field(default_factory=Sampling)
    """how the policy is sampled."""
    training: Training | None = None
    """how a training run trains."""
    gate: Gate | None = None
    """the gate of a training run; without it nothing is promoted."""
    label: Annotated[str, Text(0, 500)] = ""
    """free text for people."""
    episode_deadline_s: Annotated[Whole, Limit(1, MAX_EPISODE_DEADLINE_S)] = 120
    """seconds after which an episode that is not settled is dispatched again."""
    source_runs: tuple[str, ...] = ()
    """finished evaluations whose graded groups are the first batches of a training run."""
    no_sampling: Flag = False
    """a training run samples nothing and trains only on groups of evaluations."""
    trainable: Flag = False
    """a running training run of the same model and taskset may draw this evaluation's groups, each once;
    needs groups of 2 to 512."""
    track: tuple[str, ...] = ()
    """held-out tasksets that versions of a training run are measured on: TASKSET, TASKSET:every=STEPS."""
    stop_on: Annotated[str, OneOf(STOP_RULES, or_empty=True)] = ""
    """two_drops: end the training run after two sure drops in a row of a tracked set; its head stays."""
    mix: tuple[str, ...] = ()
    """other tasksets that a training run plays too, also of other environments: TASKSET:share=SHARE, of its
    groups. The shares together are below 1, and the run's own taskset has the rest."""
    max_concurrent: Annotated[Whole, Limit(1, LARGEST)] | None = None
    """episodes of an evaluation in flight at once, at least its group size; without it what the planner
    allows."""
    against_version: Annotated[Whole, Limit(0, 2**62)] | None = None
    """a second version that an evaluation of a pinned one plays side by side: members 2k and 2k + 1 of a
    group are attempt k of both, with one seed, so that the group size is twice the attempts."""
    families: tuple[Annotated[str, Text(1, 200)], ...] = ()
    """families whose tasks alone an evaluation plays; empty: all tasks."""
    draws: Annotated[Whole, Limit(1, 1_000_000)] | None = None
    """groups of an evaluation, each of a task drawn at random with replacement; else each task once."""
    sessions: Annotated[str, Text(0, 500)] = ""
    """graded recorded sessions that train first: `all`, or key=KEY,group=NAME,label=NAME:VALUE,since=7d,
    before=DATE; several labels: all of them."""
    sessions_idle_s: Annotated[Whole, Limit(0, 2_592_000)] = 0
    """sessions that are graded while the run goes on train, too, until none that can train came for so many
    seconds; 0: those that are graded when it is submitted."""

    @model_validator(mode="after")
    def _check(self) -> RunSpec:
        if self.purpose is Purpose.TRAIN and self.training is None:
            object.__setattr__(self, "training", Training())
        keep_rules(self, RUN_RULES)
        return self

    @property
    def is_by_platform(self) -> bool:
        """Whether gate, watch or tracking ordered it."""
        return is_by_platform(is_pair=self.against_version is not None, label=self.label)

    @property
    def num_sides(self) -> int:
        """Versions that play each attempt: 2 in an evaluation of a pair."""
        return 1 if self.against_version is None else 2

    def policy_of(self, member: int) -> PolicyChoice:
        """Which weights play a member of a group."""
        if self.against_version is None or member % 2 == 0:
            return self.policy
        return PolicyChoice(self.policy.model, pinned_version=self.against_version)

    @property
    def pinned_versions(self) -> tuple[int, ...]:
        """The versions that the run needs, whatever becomes of the channels."""
        found = (self.policy.pinned_version, self.against_version)
        return tuple(version for version in found if version is not None)

    @property
    def failures_are_missing(self) -> bool:
        """A failure that the policy caused is no 0; so a training run may ask for, an evaluation never."""
        return self.training is not None and not self.training.score_failures

    def in_steps(self, num_tasks: int) -> RunSpec:
        """The same run with the length of its training in steps. num_tasks: of its own taskset."""
        if self.training is None or self.training.epochs is None:
            return self
        own = with_own(self.taskset, self.mix)[0]
        return replace(self, training=self.training.in_steps(num_tasks, own.share))
