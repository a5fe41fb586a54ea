"""What a run waits for: from facts of several services to causes, each with the service that must act. Pure.

A fact is None when its service did not answer in time; `why` names that too.
"""

from collections.abc import Iterator

from engine_client import EngineState
from episodes import Channel, EpisodeFailure, Purpose
from scenario_runner.domain.explain_mixes import idle_tasksets
from scenario_runner.domain.explain_new_tasks import none_come, of_new_tasks
from scenario_runner.domain.explain_people import promotions, warnings
from scenario_runner.domain.explain_supply import supply
from scenario_runner.domain.learning import alarm, is_worth_an_alarm, lacks_fresh, remedies
from scenario_runner.domain.peer_facts import SessionFact
from scenario_runner.domain.run_facts import RunFacts, WaitReason
from scenario_runner.domain.runs import FINAL_RUN_STATES, OPEN_RUN_STATES, RunState
from upcycle.guidance import KINDS
from upcycle.run_config import PolicyChoice
from upcycle.wording import amount

_OF_ENVIRONMENT = frozenset(
    {EpisodeFailure.SCENARIO_ERROR, EpisodeFailure.REWARD_INVALID, EpisodeFailure.ENVIRONMENT_BROKEN}
)
"""Failures that the code of the environment caused."""

_KEEPS_SOURCE = "this one keeps the source that it was submitted with"

SILENCE_S = 10.0
"""Seconds after which a consumer that asks for nothing is worth naming."""

UNSETTLED_S = 60.0
"""Seconds after which a complete group that the trainer does not have is announced again."""


def explain(facts: RunFacts) -> tuple[list[WaitReason], str]:
    """(causes, most episodes first; one sentence)."""
    run = facts.view.run
    if run.state in FINAL_RUN_STATES:
        ended = f"is {run.state.value}" + (f": {run.failure}" if run.failure else "")
        return [*promotions(facts)], f"{ended}{_guided(facts)}{of_new_tasks(facts)}"
    reasons = [*_paused(facts), *sorted(_reasons(facts), key=lambda reason: -reason.episodes)]
    if not reasons:
        counts = facts.view.counts
        settled = f"{counts.in_flight} in flight, {counts.settled} settled"
        return [], f"nothing is stuck: {settled}{_of_groups(facts)}"
    first = reasons[0]
    if not first.episodes:
        return reasons, f"{first.owner}: {first.what}{_of_groups(facts)}"
    waiting = amount(first.episodes, "episode waits", "episodes wait")
    return reasons, f"{waiting} for {first.owner}: {first.what}{_of_groups(facts)}"


def _of_groups(facts: RunFacts) -> str:
    """What is unusual about the run's groups, whatever it waits for."""
    return f"{_guided(facts)}{of_new_tasks(facts)}{_singles(facts)}"


def _guided(facts: RunFacts) -> str:
    run, counts = facts.view.run, facts.guidance_kinds
    by = ", ".join(f"{kind} {counts[kind]}" for kind in KINDS if kind in counts)
    said = f" ({by})" if by else ""
    return f"; {run.num_guided} of {run.next_position} groups are guided{said}" if run.num_guided else ""


def _singles(facts: RunFacts) -> str:
    num = sum(report.single for report in facts.view.sources)
    many = amount(num, "recorded session is", "recorded sessions are")
    return f"; {many} single, compared with the other groups of a step" if num else ""


def _reasons(facts: RunFacts) -> Iterator[WaitReason]:
    yield from _planner(facts)
    yield from _bus(facts)
    yield from _sampling(facts)
    yield from _no_queue(facts)
    yield from _refused(facts)
    yield from _grading(facts)
    yield from _training(facts)
    yield from supply(facts)
    yield from _failing(facts)
    yield from _learning_nothing(facts)
    yield from idle_tasksets(facts)
    yield from none_come(facts)
    yield from warnings(facts)
    yield from promotions(facts)


def _paused(facts: RunFacts) -> Iterator[WaitReason]:
    run = facts.view.run
    if run.state is RunState.PAUSED:
        what = run.failure or f"run {run.run_id} is paused: nothing new is dispatched"
        first = "mend what fails, then " if run.failure else ""
        remedy = f"{first}resume it: upcycle runs resume {run.run_id}"
        if run.failure and run.source_digest and _most_failed(facts) in _OF_ENVIRONMENT:
            cancel = f"cancel it (upcycle runs cancel {run.run_id})"
            remedy = f"{cancel}, mend the environment and submit a new run: {_KEEPS_SOURCE}"
        yield WaitReason("you", what, 0, 0.0, remedy)


def _learning_nothing(facts: RunFacts) -> Iterator[WaitReason]:
    run, without = facts.view.run, facts.waits.without_step
    training = run.spec.training
    if training is None or run.state not in OPEN_RUN_STATES:
        return
    if not is_worth_an_alarm(without.num_groups, training):
        return
    limit = training.max_no_step_groups
    end = "ends early" if run.step else "fails"
    if lacks_fresh(without.groups, training):
        end = "pauses"
    outlook = (
        f"the run {end} at {limit} such groups in a row"
        if training.steps
        else f"the run goes on until you end it: upcycle runs stop {run.run_id}"
    )
    remedy = f"{remedies(without)} ({outlook})"
    yield WaitReason("you", f"alarm: {alarm(without, run.step)}", 0, 0.0, remedy)


def _planner(facts: RunFacts) -> Iterator[WaitReason]:
    for failing in facts.planner_fails:
        remedy = "see the log of scenario_runner; it is tried again every second"
        yield WaitReason("scenario_runner", failing, facts.view.counts.in_flight, 0.0, remedy)


def _bus(facts: RunFacts) -> Iterator[WaitReason]:
    for alarm_of_bus in facts.bus_alarms:
        yield WaitReason("bus", alarm_of_bus, 0, 0.0, "see upcycle doctor")
    in_flight, waits = facts.view.counts.in_flight, facts.waits
    oldest_s = max(waits.queued_s, waits.opened_s, waits.graded_s)
    if facts.sampler is None and facts.grader is None and facts.planner is None:
        what = "the bus cannot be reached"
        yield WaitReason("nats", what, in_flight, oldest_s, "start nats-server, or see UPCYCLE_BUS_URL")
    elif facts.planner is not None and facts.planner.num_pending > 1000:
        what = f"the planner is {facts.planner.num_pending} events behind"
        yield WaitReason("scenario_runner", what, in_flight, oldest_s, "see its log and its database")
    if facts.outbox_waiting > 100:
        what = f"{facts.outbox_waiting} announcements are not published yet"
        yield WaitReason(
            "scenario_runner", what, waits.queued, waits.queued_s, "see whether the bus takes them"
        )


def _sampling(facts: RunFacts) -> Iterator[WaitReason]:
    waits = facts.waits
    if not (unsampled := _unsampled(facts)):
        return
    oldest_s = max(waits.queued_s, waits.opened_s)
    engine_problem = _engine_problem(facts)
    if engine_problem is not None:
        what, remedy = engine_problem
        yield WaitReason("policy_engine", what, unsampled, oldest_s, remedy)
    elif facts.sampler is None:
        if facts.grader is not None or facts.planner is not None:  # else the bus is away, and named
            what = "the bus did not say in time what is queued"
            yield WaitReason("nats", what, unsampled, oldest_s, "ask again, or see the server's log")
    elif facts.sampler.is_left_alone and (num_queued := facts.sampler.num_pending + facts.outbox_waiting):
        queued = amount(num_queued, "command is", "commands are")
        what = f"{queued} queued and no sampler pulls them"
        yield WaitReason("rollout_sampler", what, unsampled, oldest_s, "start rollout_sampler")
    elif facts.sampler.is_unasked and waits.queued_s > SILENCE_S:
        queued = amount(waits.queued, "episode is", "episodes are")
        what = f"{queued} queued, and every sampler slot is busy or gone"
        yield WaitReason("rollout_sampler", what, unsampled, oldest_s, "add samplers, or see their logs")
    elif facts.fleet_alive >= facts.fleet_capacity:
        what = f"fleet full: {facts.fleet_alive} environments are alive, limit {facts.fleet_capacity}"
        remedy = "raise SCENARIO_RUNNER_MAX_ENVIRONMENTS or add a fleet replica"
        yield WaitReason("scenario_runner", what, waits.queued, oldest_s, remedy)


def _unsampled(facts: RunFacts) -> int:
    """Episodes that are queued, or opened and not recorded yet."""
    num_recorded = (facts.ledger or {}).get("recorded", 0)
    return facts.waits.queued + max(0, facts.waits.opened - num_recorded)


def _no_queue(facts: RunFacts) -> Iterator[WaitReason]:
    unsampled, oldest_s = _unsampled(facts), max(facts.waits.queued_s, facts.waits.opened_s)
    if unsampled and facts.sampler is not None and facts.sampler.is_missing:
        spec = facts.view.run.spec
        what = f"the queue of model {spec.policy.model} for pool {spec.purpose.value} does not exist"
        remedy = "start upcycle-provision --watch, or see its log; the commands are kept meanwhile"
        yield WaitReason("provision", what, unsampled, oldest_s, remedy)


def _engine_problem(facts: RunFacts) -> tuple[str, str] | None:
    if facts.engines is None:
        return "checkpoint_registry does not answer, so no engine can be found", "start checkpoint_registry"
    spec = facts.view.run.spec
    problems = (_problem_of(facts, spec.policy_of(side)) for side in range(spec.num_sides))
    return next((problem for problem in problems if problem is not None), None)


def _problem_of(facts: RunFacts, policy: PolicyChoice) -> tuple[str, str] | None:
    assert facts.engines is not None  # noqa: S101 - asked before
    if policy.pinned_version is not None:
        where = f"version {policy.pinned_version}"
        fitting = [
            engine
            for engine in facts.engines
            if policy.pinned_version in (engine.version, *engine.held_versions)
            or engine.channel == Channel.CANDIDATE.value
        ]
    else:
        channel = policy.channel or Channel.LATEST
        where = f"channel {channel.value}"
        fitting = [engine for engine in facts.engines if engine.channel == channel.value]
    if not fitting:
        others = ", ".join(f"{engine.engine_id} ({engine.channel})" for engine in facts.engines) or "none"
        itself = " (`upcycle up` starts one by itself)" if policy.pinned_version is None else ""
        return (
            f"no engine serves {policy.model} on {where}",
            f"start a policy_engine for it{itself}; alive are {others}",
        )
    if not any(engine.is_serving for engine in fitting):
        engine = fitting[0]
        return (
            f"engine {engine.engine_id} is {engine.state}: {engine.reason or 'no reason given'}",
            "see its log",
        )
    return None


def _refused(facts: RunFacts) -> Iterator[WaitReason]:
    """Engines that serve on, and do not take the version that their channel wants."""
    policy = facts.view.run.spec.policy
    channel = policy.channel or Channel.LATEST
    if policy.pinned_version is not None:
        return
    for engine in facts.engines or ():
        if engine.channel == channel.value and engine.state == EngineState.FAILED:
            what = (
                f"engine {engine.engine_id} still serves v{engine.version} on channel {channel.value}: it "
                f"refused the version that it should serve: {engine.reason or 'no reason given'}"
            )
            remedy = (
                "mend what the reason names, see the log of the engine's policy_engine; it tries again at "
                "least every 30 s, except a version that is bad itself: the next one replaces it"
            )
            yield WaitReason("policy_engine", what, 0, 0.0, remedy)


def _grading(facts: RunFacts) -> Iterator[WaitReason]:
    num_recorded = (facts.ledger or {}).get("recorded", 0)
    if facts.ledger is None and facts.waits.opened:
        what = "trajectory_store does not answer, so it is unknown which episodes are recorded"
        yield WaitReason(
            "trajectory_store", what, facts.waits.opened, facts.waits.opened_s, "start trajectory_store"
        )
    grader = facts.grader
    if grader is None or grader.num_pulling:
        return
    waiting = max(num_recorded, grader.num_pending if facts.waits.opened else 0)
    if waiting and grader.is_abandoned:
        what = f"{waiting} recorded trajectories are ungraded, and no grader pulls them"
        yield WaitReason("reward_grader", what, waiting, facts.waits.opened_s, "start reward_grader")
    elif waiting and facts.waits.opened_s > SILENCE_S:
        # What a killed grader held stays unacknowledged: from outside it looks like one that is busy.
        what = (
            f"{waiting} recorded trajectories are ungraded; {grader.num_unacknowledged} are with a grader "
            "that is busy or gone, and none asks for more"
        )
        remedy = "start reward_grader, or see its log"
        yield WaitReason("reward_grader", what, waiting, facts.waits.opened_s, remedy)


def _training(facts: RunFacts) -> Iterator[WaitReason]:
    run, waits, session = facts.view.run, facts.waits, facts.session
    if run.spec.purpose is not Purpose.TRAIN:
        return
    if session is not None and session.behind:
        before = f"run {session.behind} of model {run.spec.policy.model}"
        what = f"the trainer still has {before} open, and takes this one after it"
        remedy = f"none: it asks every 30 s whether that run is over; see upcycle why {session.behind}"
        yield WaitReason("grpo_trainer", what, waits.graded, waits.graded_s, remedy)
        return
    if waits.num_in_step and not facts.view.counts.in_flight:
        said = "does not answer" if session is None else f"is at step {session.step}, {session.state}"
        what = (
            f"nothing is in flight: step.completed of step {run.step + 1} is awaited, and the trainer {said}"
        )
        yield WaitReason("grpo_trainer", what, 0, 0.0, "none: the planner asks the trainer for its step")
    if session is not None and not session.failure and (waits.graded or facts.num_offered):
        yield from _with_trainer(facts, session)
    elif session is None and waits.graded:
        what = "the trainer does not answer, and graded groups wait for it"
        yield WaitReason("grpo_trainer", what, waits.graded, waits.graded_s, "start grpo_trainer")
    elif session is not None and waits.graded:
        yield WaitReason("grpo_trainer", session.failure, waits.graded, waits.graded_s, "see its log")


def _with_trainer(facts: RunFacts, session: SessionFact) -> Iterator[WaitReason]:
    """Of groups that wait for a trainer that answers."""
    waits, offered = facts.waits, facts.num_offered
    waiting_s = max(waits.graded_s, facts.supply.offered_s)
    unsettled_s = max(waits.complete_s, facts.supply.offered_s)
    if not (session.holder or session.groups_ready) and session.state == "waiting":
        what = "no trainer holds the model: the one that did is gone, or none has room"
        yield WaitReason("grpo_trainer", what, waits.graded, waiting_s, "see readyz of each grpo_trainer")
    elif session.num_held < waits.complete_groups + offered and unsettled_s > 2 * UNSETTLED_S:
        what = (
            f"{_unsettled_groups(waits.complete_groups, offered)}, and the trainer has "
            f"{session.num_held} of them: it is {session.state}"
        )
        remedy = "none: the planner announces them again; if they stay, see the trainer's log"
        yield WaitReason("grpo_trainer", what, waits.graded, unsettled_s, remedy)
    elif session.groups_publishing and unsettled_s > 2 * UNSETTLED_S:
        groups = amount(session.groups_publishing, "group")
        what = f"the trainer stores the step that it took on {groups}; they are settled once it is stored"
        yield WaitReason("grpo_trainer", what, waits.graded, unsettled_s, "none: large weights take a while")
    elif (
        waits.graded
        and session.groups_ready > 0
        and session.waiting_s > 60
        and not waits.queued
        and not waits.opened
    ):
        by = f" ({session.holder})" if session.holder else ""
        what = f"the trainer{by} has {amount(session.groups_ready, 'group')} ready and is {session.state}"
        yield WaitReason("grpo_trainer", what, waits.graded, waits.graded_s, "see its log")


def _unsettled_groups(complete: int, offered: int) -> str:
    if complete and offered:
        return (
            f"{amount(complete, 'group is', 'groups are')} complete and {offered} on offer, none is settled"
        )
    some = amount(complete or offered, "group is", "groups are")
    return f"{some} {'complete' if complete else 'on offer'} and not settled"


def _most_failed(facts: RunFacts) -> str:
    failures = facts.waits.failures
    return max(failures, key=lambda one: failures[one], default="")


def _failing(facts: RunFacts) -> Iterator[WaitReason]:
    run, failures, kind = facts.view.run, facts.waits.failures, _most_failed(facts)
    num_failed = sum(failures.values())
    num_graded = facts.view.counts.requested - num_failed - facts.waits.queued - facts.waits.opened
    if not failures or num_failed <= num_graded:
        return
    failed = amount(failures[kind], "episode")
    what = f"{failed} failed with {kind}; the newest: {facts.waits.last_failure[:300]}"
    owner, remedy = "platform", "see the log of the service it names"
    if kind in _OF_ENVIRONMENT:
        owner, remedy = "environment", "mend the environment"
        remedy += f" and submit a new run: {_KEEPS_SOURCE}" if run.source_digest else ""
    elif kind == EpisodeFailure.TIMEOUT:
        remedy = "see what it waited for: an engine, a slot, the store, or a scenario that hangs"
    yield WaitReason(owner, what, failures[kind], 0.0, remedy)
