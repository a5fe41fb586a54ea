"""What `why` says, from facts: the stalled runs one meets, each with its cause, owner and remedy."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from episodes import Channel, Purpose, Split
from scenario_runner.domain.explain import explain
from scenario_runner.domain.learning import WithoutStep
from scenario_runner.domain.peer_facts import DurableFact, EngineFact, SessionFact
from scenario_runner.domain.run_facts import PlanWaits, RunFacts, Supply
from scenario_runner.domain.runs import Counts, EpisodeState, RunRecord, RunState, RunView
from scenario_runner.domain.source_groups import SourceReport
from upcycle.run_config import PolicyChoice, RunSpec, Training

WORKING = DurableFact(num_pending=0, num_unacknowledged=3, num_pulling=5)
GONE = DurableFact(num_pending=40, num_unacknowledged=0, num_pulling=0)
BUSY_OR_GONE = DurableFact(num_pending=40, num_unacknowledged=8, num_pulling=0)
ENGINE = EngineFact("e1", "latest", 3, (), True, "ready")


def run_facts(purpose: Purpose = Purpose.TRAIN, policy: PolicyChoice | None = None, **facts: Any) -> RunFacts:
    """A healthy run in the middle of its work, apart from the given facts."""
    learning = Training() if purpose is Purpose.TRAIN else None
    spec = RunSpec("ts", purpose, policy or PolicyChoice("incident"), 8, training=learning)
    run = RunRecord("run-1", "r", spec, Split.TRAIN, "d", RunState.RUNNING, datetime.now(UTC), 10)
    counts = Counts({EpisodeState.PLANNED: 60, EpisodeState.GRADED: 20, EpisodeState.TRAINED: 100}, 10, 12)
    healthy: dict[str, Any] = {
        "view": RunView(run, counts),
        "waits": PlanWaits(queued=20, queued_s=1, opened=40, opened_s=2, graded=20, graded_s=3),
        "fleet_alive": 40,
        "fleet_capacity": 1024,
        "outbox_waiting": 0,
        "engines": [ENGINE],
        "sampler": WORKING,
        "grader": WORKING,
        "planner": WORKING,
        "ledger": {"recorded": 2, "graded": 20},
        "session": SessionFact("waiting", "", 1.0, 2),
    }
    return RunFacts(**{**healthy, **facts})


def test_a_healthy_run_waits_for_nothing() -> None:
    reasons, summary = explain(run_facts())
    assert reasons == []
    assert summary == "nothing is stuck: 80 in flight, 100 settled"


@pytest.mark.parametrize(
    ("facts", "owner", "text", "episodes"),
    [
        ({"engines": []}, "policy_engine", "no engine serves incident on channel latest", 58),
        ({"engines": [replace(ENGINE, channel="head")]}, "policy_engine", "no engine serves", 58),
        ({"engines": None}, "policy_engine", "checkpoint_registry does not answer", 58),
        (
            {"engines": [replace(ENGINE, is_serving=False, state="starting", reason="loading weights")]},
            "policy_engine",
            "engine e1 is starting: loading weights",
            58,
        ),
        (
            {"sampler": DurableFact(0, 0, 0, is_missing=True)},
            "provision",
            "the queue of model incident for pool train does not exist",
            58,
        ),
        ({"sampler": GONE}, "rollout_sampler", "40 commands are queued and no sampler pulls them", 58),
        (
            {"sampler": BUSY_OR_GONE, "waits": PlanWaits(queued=20, queued_s=30, opened=40)},
            "rollout_sampler",
            "every sampler slot is busy or gone",
            58,
        ),
        (
            {"grader": GONE, "ledger": {"recorded": 35}},
            "reward_grader",
            "40 recorded trajectories are ungraded, and no grader pulls them",
            40,
        ),
        (
            {"grader": BUSY_OR_GONE, "ledger": {"recorded": 35}, "waits": PlanWaits(opened=40, opened_s=30)},
            "reward_grader",
            "8 are with a grader that is busy or gone",
            40,
        ),
        ({"ledger": None}, "trajectory_store", "trajectory_store does not answer", 40),
        ({"session": None}, "grpo_trainer", "the trainer does not answer", 20),
        (
            {"session": SessionFact("failed", "unknown loss 'pppo'; use ppo", 0, 0)},
            "grpo_trainer",
            "unknown loss 'pppo'",
            20,
        ),
        (
            {
                "waits": PlanWaits(graded=20, graded_s=150, complete_groups=5, complete_s=150),
                "session": SessionFact("waiting", "", 150, 2),
            },
            "grpo_trainer",
            "5 groups are complete and not settled, and the trainer has 2 of them",
            20,
        ),
        (
            {
                "waits": PlanWaits(graded=20, graded_s=150, complete_groups=5, complete_s=150),
                "session": SessionFact("publishing", "", 150, 1, groups_publishing=4),
            },
            "grpo_trainer",
            "the trainer stores the step that it took on 4 groups",
            20,
        ),
        (
            {
                "waits": PlanWaits(num_in_step=4),
                "view": RunView(run_facts().view.run, Counts({EpisodeState.TRAINED: 8})),
                "session": SessionFact("publishing", "", 100, 0, step=0),
                "ledger": {},
            },
            "grpo_trainer",
            "step.completed of step 1 is awaited, and the trainer is at step 0, publishing",
            0,
        ),
        (
            {"session": SessionFact("waiting", "", 0, 0, behind="run-0")},
            "grpo_trainer",
            "the trainer still has run run-0 of model incident open, and takes this one after it",
            20,
        ),
        ({"sampler": None, "grader": None, "planner": None}, "nats", "the bus cannot be reached", 80),
        ({"sampler": None}, "nats", "the bus did not say in time what is queued", 58),
        (
            {"sampler": DurableFact(0, 0, 0), "outbox_waiting": 6},
            "rollout_sampler",
            "6 commands are queued and no sampler pulls them",  # the relay has not published them yet
            58,
        ),
        ({"outbox_waiting": 500}, "scenario_runner", "500 announcements are not published", 20),
        ({"planner": replace(WORKING, num_pending=5000)}, "scenario_runner", "5000 events behind", 80),
        ({"fleet_alive": 1024}, "scenario_runner", "fleet full: 1024", 20),
        (
            {
                "waits": PlanWaits(
                    opened=2, failures={"scenario_error": 170, "timeout": 1}, last_failure="no db"
                ),
                "ledger": {},
            },
            "environment",
            "170 episodes failed with scenario_error; the newest: no db",
            170,
        ),
    ],
)
def test_each_stall_is_named(facts: dict[str, Any], owner: str, text: str, episodes: int) -> None:
    reasons, summary = explain(run_facts(**facts))
    found = [reason for reason in reasons if reason.owner == owner and text in reason.what]
    assert found, reasons
    assert found[0].episodes == episodes
    assert found[0].remedy
    assert reasons[0].what in summary
    assert [reason.episodes for reason in reasons] == sorted((one.episodes for one in reasons), reverse=True)


def test_a_run_that_waits_behind_another_names_it_before_anything_is_graded() -> None:
    waiting = run_facts(
        waits=PlanWaits(), ledger={}, session=SessionFact("waiting", "", 0, 0, behind="run-0")
    )
    (reason,), summary = explain(waiting)
    assert "run run-0" in summary
    assert "upcycle why run-0" in reason.remedy


def drawing(offered: int, groups_ready: int, waits: PlanWaits | None = None, holder: str = "t1") -> RunFacts:
    """A run that trains on evaluations alone, with so many offers, of which its trainer has groups_ready."""
    facts = run_facts(waits=waits or PlanWaits(), ledger={}, supply=Supply(offered_s=150))
    spec = replace(facts.view.run.spec, no_sampling=True, training=Training(prompts_per_step=8))
    run = replace(facts.view.run, spec=spec)
    view = RunView(run, Counts({}), (SourceReport("run-0", groups=offered, offered=offered),))
    return replace(facts, view=view, session=SessionFact("waiting", "", 150, groups_ready, holder=holder))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        (
            drawing(8, 0),
            "8 groups are on offer and not settled, and the trainer has 0 of them: it is waiting",
        ),
        (
            drawing(8, 9, PlanWaits(graded=16, complete_groups=2, complete_s=150)),
            "2 groups are complete and 8 on offer, none is settled, and the trainer has 9 of them: "
            "it is waiting",
        ),
        (drawing(8, 0, holder=""), "no trainer holds the model: the one that did is gone, or none has room"),
    ],
)
def test_offers_that_the_trainer_does_not_have_are_named(facts: RunFacts, text: str) -> None:
    reasons, _ = explain(facts)
    assert [(one.owner, one.what, one.waiting_s) for one in reasons] == [("grpo_trainer", text, 150)]
    young = replace(facts, supply=Supply(offered_s=5), waits=PlanWaits())
    assert not any("not settled" in one.what for one in explain(young)[0])


def test_offers_that_the_trainer_has_wait_for_more_evaluations() -> None:
    (reason,), _ = explain(drawing(5, 5))
    assert "a step takes 8 groups, the trainer has 5, and the run plans none itself" in reason.what
    lost, unfed = explain(drawing(5, 1))[0]
    assert "5 groups are on offer and not settled, and the trainer has 1 of them" in lost.what
    assert "a step takes 8 groups, the trainer has 1 (5 are on offer to it)" in unfed.what


def test_of_a_model_without_an_engine_and_without_a_queue_the_engine_is_named_first() -> None:
    missing = DurableFact(0, 0, 0, is_missing=True)
    reasons, summary = explain(run_facts(engines=[], sampler=missing))
    assert [reason.owner for reason in reasons] == ["policy_engine", "provision"]
    assert "no engine serves incident" in summary


@pytest.mark.parametrize(
    ("engine", "is_served"),
    [
        (replace(ENGINE, version=12), True),
        (replace(ENGINE, held_versions=(11, 12)), True),
        (replace(ENGINE, channel="candidate", version=3), True),
        (replace(ENGINE, held_versions=(11,)), False),
    ],
)
def test_a_pinned_version_needs_an_engine_that_holds_it(engine: EngineFact, is_served: bool) -> None:
    pinned = PolicyChoice("incident", None, 12)
    reasons, _ = explain(run_facts(Purpose.EVAL, pinned, engines=[engine]))
    named = [reason for reason in reasons if "version 12" in reason.what]
    assert bool(named) is not is_served


def test_an_evaluation_does_not_wait_for_the_trainer() -> None:
    assert explain(run_facts(Purpose.EVAL, session=None))[0] == []


def test_a_run_that_is_over_says_how() -> None:
    healthy = run_facts()
    run = replace(healthy.view.run, state=RunState.FAILED, failure="the last 8 groups had no graded episode")
    reasons, summary = explain(replace(healthy, view=RunView(run, healthy.view.counts)))
    assert reasons == []
    assert summary == "is failed: the last 8 groups had no graded episode"


def test_the_head_channel_is_asked_for_by_name() -> None:
    head = PolicyChoice("incident", Channel.HEAD)
    reasons, _ = explain(run_facts(Purpose.EVAL, head))
    assert reasons[0].what == "no engine serves incident on channel head"
    assert "e1 (latest)" in reasons[0].remedy


def test_a_paused_run_waits_for_its_user_first() -> None:
    healthy = run_facts(engines=[])
    paused = replace(healthy.view, run=replace(healthy.view.run, state=RunState.PAUSED))
    reasons, summary = explain(replace(healthy, view=paused))
    assert [reason.owner for reason in reasons] == ["you", "policy_engine"]
    assert reasons[0].remedy == "resume it: upcycle runs resume run-1"
    assert summary == "you: run run-1 is paused: nothing new is dispatched"


@pytest.mark.parametrize(
    ("kind", "source", "failing", "paused"),
    [
        (
            "environment_broken",
            "5" * 64,
            "submit a new run: this one keeps the source",
            "cancel it (upcycle runs",
        ),
        ("environment_broken", "", "mend the environment", "mend what fails, then resume it"),
        ("timeout", "5" * 64, "see what it waited for", "mend what fails, then resume it"),
        ("environment_lost", "5" * 64, "see the log of the service", "mend what fails, then resume it"),
    ],
)
def test_what_to_do_about_failures_depends_on_what_failed(
    kind: str, source: str, failing: str, paused: str
) -> None:
    """An environment is mended for the next run; one without a source, or the platform, for this one."""
    healthy = run_facts(waits=PlanWaits(failures={kind: 170, "grader_error": 1}, last_failure="s: no db"))
    run = replace(healthy.view.run, source_digest=source, failure="paused itself: 33 of the last 64")
    going_on, _ = explain(replace(healthy, view=replace(healthy.view, run=run)))
    stopped = replace(healthy.view, run=replace(run, state=RunState.PAUSED))
    (first, *_), _ = explain(replace(healthy, view=stopped))
    assert [failing in one.remedy for one in going_on if kind in one.what] == [True]
    assert paused in first.remedy
    assert ("resume" in first.remedy) is not first.remedy.startswith("cancel it")


def test_an_alarm_of_the_monitors_says_how_to_look_at_it() -> None:
    reasons, summary = explain(run_facts(reward_alarms=("leak_shown: 3 % were shown it (see traj-a)",)))
    assert [(reason.owner, reason.remedy) for reason in reasons] == [
        ("trajectory_store", "look at them: upcycle trajectories review run-1")
    ]
    assert summary == "trajectory_store: alarm: leak_shown: 3 % were shown it (see traj-a)"


def test_an_alarm_of_the_trainer_comes_last() -> None:
    session = SessionFact("waiting", "", 1.0, 2, alarms=("mismatch KL 0.2 is above 0.1 for 9 updates",))
    reasons, summary = explain(run_facts(session=session))
    assert [(reason.owner, reason.episodes) for reason in reasons] == [("grpo_trainer", 0)]
    assert summary == "grpo_trainer: alarm: mismatch KL 0.2 is above 0.1 for 9 updates"
    stuck, _ = explain(run_facts(session=session, engines=[]))
    assert [reason.owner for reason in stuck] == ["policy_engine", "grpo_trainer"]


def test_a_run_that_learns_nothing_is_named_before_it_fails() -> None:
    all_zero = WithoutStep({"excluded(zero_spread)": 50}, {"excluded(zero_spread)": {0.0: 400}})
    healthy = run_facts(waits=PlanWaits(without_step=all_zero), ledger={})
    (reason,), summary = explain(healthy)
    assert (reason.owner, reason.episodes) == ("you", 0)
    assert summary == "you: alarm: no step yet: 50 of 50 groups had no spread: every reward was 0.000"
    assert reason.remedy.endswith("(the run fails at 128 such groups in a row)")
    stopping = replace(healthy.view.run, state=RunState.DRAINING)
    assert explain(replace(healthy, view=replace(healthy.view, run=stopping)))[0] == []


@pytest.mark.parametrize(
    ("num_groups", "training", "is_named"),
    [
        (31, Training(), False),
        (32, Training(), True),
        (19, Training(no_step_groups=20), False),
        (20, Training(no_step_groups=20), True),
        (32, Training(steps=0), True),
    ],
)
def test_an_alarm_comes_after_two_steps_worth_of_groups(
    num_groups: int, training: Training, is_named: bool
) -> None:
    without = WithoutStep({"excluded(stale)": num_groups}, {"excluded(stale)": {0.5: 8}})
    healthy = run_facts(waits=PlanWaits(without_step=without), ledger={})
    run = replace(healthy.view.run, spec=replace(healthy.view.run.spec, training=training), step=4)
    reasons, _ = explain(replace(healthy, view=replace(healthy.view, run=run)))
    what = f"alarm: no step since step 4: {num_groups} of {num_groups} groups were excluded(stale)"
    assert [reason.what for reason in reasons] == ([what] if is_named else [])
    if is_named:
        goes_on = "the run goes on until you end it: upcycle runs stop run-1" in reasons[0].remedy
        assert goes_on is not bool(training.steps)


def test_a_run_that_the_planner_itself_fails_at_says_so() -> None:
    # Otherwise nothing of it times out or ends, and `why` would name others.
    reasons, summary = explain(run_facts(planner_fails=["sweep of run-1 fails: KeyError()"]))
    assert summary == "80 episodes wait for scenario_runner: sweep of run-1 fails: KeyError()"
    assert [reason.owner for reason in reasons] == ["scenario_runner"]
