"""What a run waits for: from facts gathered across services to causes with their owners. Pure.

A fact that is None could not be learnt (its service did not answer in time), which is an answer too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scenario_runner.domain.learning import (
    WithoutStep,
    alarm,
    is_worth_an_alarm,
    remedies,
    remedy_of_left_out,
)
from scenario_runner.domain.runs import (
    FINAL_RUN_STATES,
    LIVELY_RUN_STATES,
    RunState,
    RunView,
)
from scenario_runner.domain.sources import in_words
from upcycle.run_config import Channel, Purpose

SILENCE_S = 10.0
"""Seconds after which a consumer that asks for nothing is worth naming."""


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One cause. owner: the service that has to act. waiting_s: how long the oldest episode waits for it."""

    owner: str
    what: str
    episodes: int
    waiting_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class PlanWaits:
    """Where the unsettled episodes of a run are, as the plan knows it; ages in seconds."""

    queued: int = 0
    queued_s: float = 0.0
    opened: int = 0
    opened_s: float = 0.0
    graded: int = 0
    graded_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    last_failure: str = ""
    """"<scenario>: <detail>" of the newest failure."""
    without_step: WithoutStep = field(default_factory=WithoutStep)
    """Of a training run: what became of its groups since its last step."""


@dataclass(frozen=True, slots=True)
class EngineFact:
    """A live engine lease of the run's model."""

    engine_id: str
    channel: str
    version: int
    held_versions: Sequence[int]
    is_serving: bool
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DurableFact:
    """A consumer on the bus. num_pulling: pull requests that wait at the server."""

    num_pending: int
    num_unacknowledged: int
    num_pulling: int

    @property
    def is_abandoned(self) -> bool:
        """No process pulls, and none works on anything of it."""
        return self.num_pulling == 0 and self.num_unacknowledged == 0


@dataclass(frozen=True, slots=True)
class SessionFact:
    """What the trainer says about the run."""

    state: str
    failure: str
    waiting_s: float
    groups_ready: int
    alarms: Sequence[str] = ()
    """What its measurements warn of, one sentence each."""


@dataclass(frozen=True, slots=True)
class Feeding:
    """Of a training run: evaluations under way whose groups it may draw, its group slots, and how long the
    oldest offer waits for the trainer, in seconds."""

    evaluations: Sequence[str] = ()
    slots: int = 0
    offered_s: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """Everything gathered for one run."""

    view: RunView
    waits: PlanWaits
    fleet_alive: int
    fleet_capacity: int
    outbox_waiting: int
    engines: Sequence[EngineFact] | None
    sampler: DurableFact | None
    grader: DurableFact | None
    planner: DurableFact | None
    ledger: Mapping[str, int] | None
    session: SessionFact | None
    feeding: Feeding = Feeding()


def explain(world: World) -> tuple[list[WaitReason], str]:
    """(causes, most episodes first; one sentence)."""
    run = world.view.run
    if run.state in FINAL_RUN_STATES:
        why = f": {run.failure}" if run.failure else ""
        return [], f"run {run.run_id} is {run.state.value}{why}"
    reasons = [*_paused(world), *sorted(_reasons(world), key=lambda reason: -reason.episodes)]
    if not reasons:
        counts = world.view.counts
        return [], f"nothing is stuck: {counts.in_flight} in flight, {counts.settled} settled"
    first = reasons[0]
    if not first.episodes:
        return reasons, f"{first.owner}: {first.what}"
    return reasons, f"{first.episodes} episodes wait for {first.owner}: {first.what}"


def _reasons(world: World) -> Iterator[WaitReason]:
    yield from _bus(world)
    yield from _sampling(world)
    yield from _grading(world)
    yield from _training(world)
    yield from _feeding(world)
    yield from _failing(world)
    yield from _learning_nothing(world)
    yield from _alarming(world)


def _paused(world: World) -> Iterator[WaitReason]:
    run = world.view.run
    if run.state is RunState.PAUSED:
        what = f"run {run.run_id} is paused: nothing new is dispatched"
        yield WaitReason("you", what, 0, 0.0, f"resume it: upcycle runs resume {run.run_id}")


def _learning_nothing(world: World) -> Iterator[WaitReason]:
    run, without = world.view.run, world.waits.without_step
    training = run.spec.training
    if training is None or run.state not in LIVELY_RUN_STATES:
        return
    if not is_worth_an_alarm(without.num_groups, training):
        return
    limit = training.max_no_step_groups
    outlook = (
        f"the run {'ends early' if run.step else 'fails'} at {limit} such groups in a row"
        if training.steps
        else f"the run goes on until you end it: upcycle runs stop {run.run_id}"
    )
    remedy = f"{remedies(without)} ({outlook})"
    yield WaitReason("you", f"alarm: {alarm(without, run.step)}", 0, 0.0, remedy)


def _alarming(world: World) -> Iterator[WaitReason]:
    for one in world.session.alarms if world.session is not None else ():
        yield WaitReason("grpo_trainer", f"alarm: {one}", 0, 0.0, "look at the run's curves, or stop it")


def _bus(world: World) -> Iterator[WaitReason]:
    in_flight, waits = world.view.counts.in_flight, world.waits
    oldest_s = max(waits.queued_s, waits.opened_s, waits.graded_s)
    if world.sampler is None and world.grader is None and world.planner is None:
        what = "the bus cannot be reached"
        yield WaitReason("nats", what, in_flight, oldest_s, "start nats-server, or see UPCYCLE_BUS_URL")
    elif world.planner is not None and world.planner.num_pending > 1000:
        what = f"the planner is {world.planner.num_pending} events behind"
        yield WaitReason("scenario_runner", what, in_flight, oldest_s, "see its log and its database")
    if world.outbox_waiting > 100:
        what = f"{world.outbox_waiting} announcements are not published yet"
        yield WaitReason(
            "scenario_runner", what, waits.queued, waits.queued_s, "see whether the bus takes them"
        )


def _sampling(world: World) -> Iterator[WaitReason]:
    waits = world.waits
    num_recorded = (world.ledger or {}).get("recorded", 0)
    unsampled = waits.queued + max(0, waits.opened - num_recorded)
    if not unsampled:
        return
    oldest_s = max(waits.queued_s, waits.opened_s)
    engine_problem = _engine_problem(world)
    if engine_problem is not None:
        what, remedy = engine_problem
        yield WaitReason("policy_engine", what, unsampled, oldest_s, remedy)
    elif world.sampler is not None and world.sampler.is_abandoned and world.sampler.num_pending:
        what = f"{world.sampler.num_pending} commands are queued and no sampler pulls them"
        yield WaitReason("rollout_sampler", what, unsampled, oldest_s, "start rollout_sampler")
    elif world.sampler is not None and not world.sampler.num_pulling and waits.queued_s > SILENCE_S:
        what = f"{waits.queued} episodes are queued, and every sampler slot is busy or gone"
        yield WaitReason("rollout_sampler", what, unsampled, oldest_s, "add samplers, or see their logs")
    elif world.fleet_alive >= world.fleet_capacity:
        what = f"fleet full: {world.fleet_alive} environments are alive, limit {world.fleet_capacity}"
        remedy = "raise SCENARIO_RUNNER_MAX_ENVIRONMENTS or add a fleet replica"
        yield WaitReason("scenario_runner", what, waits.queued, oldest_s, remedy)


def _engine_problem(world: World) -> tuple[str, str] | None:
    policy = world.view.run.spec.policy
    if world.engines is None:
        return "checkpoint_registry does not answer, so no engine can be found", "start checkpoint_registry"
    if policy.pinned_version is not None:
        where = f"version {policy.pinned_version}"
        fitting = [
            engine
            for engine in world.engines
            if policy.pinned_version in (engine.version, *engine.held_versions)
            or engine.channel == Channel.CANDIDATE.value
        ]
    else:
        where = f"channel {policy.channel.value if policy.channel else 'latest'}"
        fitting = [engine for engine in world.engines if engine.channel == where.removeprefix("channel ")]
    if not fitting:
        others = ", ".join(f"{engine.engine_id} ({engine.channel})" for engine in world.engines) or "none"
        return (
            f"no engine serves {policy.model} on {where}",
            f"start a policy_engine for it; alive are {others}",
        )
    if not any(engine.is_serving for engine in fitting):
        engine = fitting[0]
        return (
            f"engine {engine.engine_id} is {engine.state}: {engine.reason or 'no reason given'}",
            "see its log",
        )
    return None


def _grading(world: World) -> Iterator[WaitReason]:
    num_recorded = (world.ledger or {}).get("recorded", 0)
    if world.ledger is None and world.waits.opened:
        what = "trajectory_store does not answer, so it is unknown which episodes are recorded"
        yield WaitReason(
            "trajectory_store", what, world.waits.opened, world.waits.opened_s, "start trajectory_store"
        )
    grader = world.grader
    if grader is None or grader.num_pulling:
        return
    waiting = max(num_recorded, grader.num_pending if world.waits.opened else 0)
    if waiting and grader.is_abandoned:
        what = f"{waiting} trajectories are recorded and ungraded, and no grader pulls them"
        yield WaitReason("reward_grader", what, waiting, world.waits.opened_s, "start reward_grader")
    elif waiting and world.waits.opened_s > SILENCE_S:
        # What a killed grader held stays unacknowledged: from outside it looks like one that is busy.
        what = (
            f"{waiting} recorded trajectories are ungraded; {grader.num_unacknowledged} are with a grader "
            "that is busy or gone, and none asks for more"
        )
        remedy = "start reward_grader, or see its log"
        yield WaitReason("reward_grader", what, waiting, world.waits.opened_s, remedy)


def _training(world: World) -> Iterator[WaitReason]:
    run, waits = world.view.run, world.waits
    if run.spec.purpose is not Purpose.TRAIN or not waits.graded:
        return
    session = world.session
    if session is None:
        what = "the trainer does not answer, and graded groups wait for it"
        yield WaitReason("grpo_trainer", what, waits.graded, waits.graded_s, "start grpo_trainer")
    elif session.failure:
        yield WaitReason("grpo_trainer", session.failure, waits.graded, waits.graded_s, "see its log")
    elif session.groups_ready > 0 and session.waiting_s > 60 and not waits.queued and not waits.opened:
        what = f"the trainer has {session.groups_ready} groups ready and is {session.state}"
        yield WaitReason("grpo_trainer", what, waits.graded, waits.graded_s, "see its log")


def _feeding(world: World) -> Iterator[WaitReason]:
    """Of a training run that draws groups of evaluations."""
    run, feeding, training = world.view.run, world.feeding, world.view.run.spec.training
    if training is None:
        return
    offered = sum(report.offered for report in world.view.sources)
    waiting = sum(report.waiting for report in world.view.sources)
    if offered and (world.session is None or world.session.failure):
        problem = world.session.failure if world.session is not None else "the trainer does not answer"
        what = f"{offered} groups of evaluations are on offer to the trainer: {problem}"
        remedy = "see its log" if world.session is not None else "start grpo_trainer"
        yield WaitReason("grpo_trainer", what, 0, feeding.offered_s, remedy)
    elif waiting and run.state is RunState.RUNNING:
        taken = world.view.counts.groups_open + offered
        what = f"{waiting} groups of evaluations wait for a slot: {taken} of {feeding.slots} are taken"
        remedy = "none: each group that the trainer settles frees a slot"
        yield WaitReason("grpo_trainer", what, 0, feeding.offered_s, remedy)
    yield from _none_trained(world)
    if run.spec.no_sampling and not waiting and offered < training.prompts_per_step:
        yield from _unfed(world, offered, training.prompts_per_step)


def _none_trained(world: World) -> Iterator[WaitReason]:
    """Nothing that the run was to draw fits it."""
    left_out: Counter[str] = Counter()
    for report in world.view.sources:
        if report.offered or report.waiting or report.trained:
            return
        left_out.update(report.left_out)
    if left_out and world.view.run.state in LIVELY_RUN_STATES:
        what = f"none of {left_out.total()} groups of evaluations trained: {in_words(left_out)}"
        yield WaitReason("you", what, 0, 0.0, remedy_of_left_out(left_out) or "draw from other evaluations")


def _unfed(world: World, offered: int, prompts: int) -> Iterator[WaitReason]:
    run, evaluations = world.view.run, world.feeding.evaluations
    if run.state is not RunState.RUNNING:
        return
    need = f"a step takes {prompts} groups, the trainer has {offered}, and the run plans none itself"
    if evaluations:
        what = f"waiting for evaluations ({', '.join(evaluations)} bring groups): {need}"
        yield WaitReason("evaluation", what, 0, 0.0, f"see upcycle why {evaluations[0]}")
    else:
        what = f"waiting for evaluations, and none is under way: {need}"
        taskset, model = run.spec.taskset, run.spec.policy.model
        remedy = f"upcycle eval {taskset} {model} --group 8 --trainable"
        yield WaitReason("you", what, 0, 0.0, remedy)


def _failing(world: World) -> Iterator[WaitReason]:
    failures = world.waits.failures
    num_failed = sum(failures.values())
    num_graded = world.view.counts.requested - num_failed - world.waits.queued - world.waits.opened
    if not failures or num_failed <= num_graded:
        return
    kind = max(failures, key=lambda one: failures[one])
    what = f"{failures[kind]} episodes failed with {kind}; the newest: {world.waits.last_failure[:300]}"
    is_scenario = kind in ("scenario_error", "reward_invalid", "environment_broken", "tool_failed", "timeout")
    owner = "environment" if is_scenario else "platform"
    remedy = (
        "mend the scenario and register it again" if is_scenario else "see the log of the service it names"
    )
    yield WaitReason(owner, what, failures[kind], 0.0, remedy)
