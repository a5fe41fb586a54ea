"""The running service: evaluations become offers on the bus, and `why` says what a run waits for."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import (
    TRAIN,
    announce_graded,
    arith,
    explain,
    finished,
    get,
    register,
    run_spec,
    sampling,
    submit,
)
from tests.services.scenario_runner.test_explaining import run_facts

from event_bus import EventBus
from scenario_runner.domain.explain import explain as explain_facts
from scenario_runner.domain.peer_facts import SessionFact
from scenario_runner.domain.run_facts import RunFacts, Supply
from scenario_runner.domain.runs import Counts, RunView
from scenario_runner.domain.source_groups import SourceReport
from service_kit.groups import BusSettings
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import events_pb2, taskset_pb2
from upcycle.api.training.v1 import events_pb2 as training_events
from upcycle.api.trajectory.v1 import trajectory_pb2


async def _grade(runner: Runner, request: Any) -> None:
    """Publish what sampler and grader publish about one episode, without an environment."""
    member = request.episode.member
    body = common_pb2.BlobRef(key=f"bodies/{request.episode.episode_id}", sha256="b" * 64, size_bytes=9)
    done, base = trajectory_pb2.STOP_REASON_DONE, common_pb2.VersionSpan()
    await announce_graded(
        runner, request, float(member), bool(member), body=body, stop_reason=done, sampled_by=base
    )


async def _settle(runner: Runner, run_id: str, offer: Any, outcome: str) -> None:
    fact = training_events.GroupSettled(
        group_id=offer.group_id,
        run_id=run_id,
        model="incident",
        outcome=outcome,
        reason="" if outcome == "trained" else "zero_spread",
        step=1 if outcome == "trained" else 0,
        episode_ids=[member.episode_id for member in offer.members],
        source_run_id=offer.source_run_id,
    )
    await runner.bus.publish(
        fact, model="incident", event_id=f"group.settled/{run_id}/{offer.group_id}", author="trainer"
    )


async def _offers(runner: Runner, count: int) -> list[Any]:
    """The first `count` offers in the stream."""
    bus = EventBus(BusSettings(url=runner.nats.url), client_name="reader")
    await bus.start()
    offers: list[Any] = []
    try:
        async with asyncio.timeout(60):
            while len(offers) < count:
                found = await bus.stored([events_pb2.GroupOffered], after_sequence=0)
                offers = [one.message for one in found]
                await asyncio.sleep(0.05)
    finally:
        await bus.stop()
    return offers


def _check_offers(offers: list[Any], evaluation: str, online: str) -> None:
    """Three groups of a source run, then three of an evaluation beside the run."""
    assert [(one.source_run_id, one.before_start) for one in offers] == [(evaluation, True)] * 3 + [
        (online, False)
    ] * 3
    assert {(len(one.members), one.group_size, one.split) for one in offers} == {
        (2, 2, common_pb2.SPLIT_TRAIN)
    }
    member = offers[0].members[1]
    found = (member.body.size_bytes, member.reward, member.stop_reason)
    assert found == (9, 1.0, trajectory_pb2.STOP_REASON_DONE)


async def test_evaluations_reach_a_trainer_over_the_bus(runner: Runner) -> None:
    await register(runner, arith())
    training = taskset_pb2.TrainingConfig(steps=2, prompts_per_step=2, max_staleness=1)
    async with sampling(runner, partial(_grade, runner)):
        evaluation = await submit(runner, run_spec(), "e1")
        measured = (await finished(runner, evaluation.run_id)).run
        spec = run_spec(TRAIN, 2, training=training, source_runs=[evaluation.run_id], no_sampling=True)
        run = await submit(runner, spec, "t1")
        assert list(run.spec.source_runs) == [evaluation.run_id]
        assert run.sources[0].waiting == 3
        again = await submit(runner, spec, "t1")
        assert again.run_id == run.run_id
        online = await submit(runner, run_spec(trainable=True), "e2")
        await finished(runner, online.run_id)
        first = await _offers(runner, 4)
        for offer in first:
            await _settle(runner, run.run_id, offer, "trained")
        trained = [member.episode_id for offer in first for member in offer.members]
        step = training_events.StepCompleted(
            run_id=run.run_id, model="incident", step=1, version=1, trajectory_ids=trained
        )
        await runner.bus.publish(step, model="incident", event_id=f"step.completed/{run.run_id}/1")
        offers = await _offers(runner, 6)
    _check_offers(offers, evaluation.run_id, online.run_id)
    for offer in offers[4:]:
        await _settle(runner, run.run_id, offer, "released")
    # Four of six groups trained, nothing more can come: the run ends like one that is stopped.
    done = (await finished(runner, run.run_id)).run
    assert (done.state, done.failure) == (taskset_pb2.RUN_STATE_COMPLETED, "its evaluations are used up")
    reports = {one.run_id: (one.groups, one.trained, dict(one.left_out)) for one in done.sources}
    assert reports == {evaluation.run_id: (3, 3, {}), online.run_id: (3, 1, {"zero_spread": 2})}
    assert (await get(runner, evaluation.run_id)).run == measured


async def test_why_says_that_a_run_waits_for_evaluations(runner: Runner) -> None:
    await register(runner, arith())
    spec = run_spec(TRAIN, 2, training=taskset_pb2.TrainingConfig(prompts_per_step=2), no_sampling=True)
    run = await submit(runner, spec)
    answer = await explain(runner, run.run_id)
    (reason,) = [one for one in answer.waiting_for if one.owner == "you"]
    assert reason.what == (
        "waiting for evaluations, and none is under way: a step takes 2 groups, the trainer has 0, "
        "and the run plans none itself"
    )
    assert reason.remedy == "upcycle eval sums incident --group 8 --trainable"


def _drawing(report: SourceReport, *, no_sampling: bool = False, **facts: Any) -> RunFacts:
    """A training run with one evaluation; sixteen groups make a batch."""
    quiet = run_facts(**facts)
    run = replace(quiet.view.run, spec=replace(quiet.view.run.spec, no_sampling=no_sampling))
    return replace(quiet, view=RunView(run, Counts({}, groups_open=5), (report,)))


@pytest.mark.parametrize(
    ("shown", "owner", "what"),
    [
        (
            _drawing(SourceReport("e", 20, 11, 0, 9), supply=Supply((), 16)),
            "grpo_trainer",
            "9 groups of evaluations wait: 16 of 16 groups are open",
        ),
        (
            _drawing(SourceReport("e", 20, 11), session=None, supply=Supply((), 16, 30.0)),
            "grpo_trainer",
            "11 groups of evaluations are on offer to the trainer: the trainer does not answer",
        ),
        (
            _drawing(SourceReport("e", 20, 11), session=SessionFact("failed", "loss is nan", 0.0, 0)),
            "grpo_trainer",
            "11 groups of evaluations are on offer to the trainer: loss is nan",
        ),
        (
            _drawing(
                SourceReport("e", 20, 11),
                no_sampling=True,
                supply=Supply(("run-e",), 16),
                session=SessionFact("waiting", "", 1.0, 11),
            ),
            "evaluation",
            "waiting for evaluations (run-e bring groups): a step takes 16 groups, the trainer has 11",
        ),
        (
            _drawing(SourceReport("e", 20, left_out={"version": 12, "already_trained": 8})),
            "you",
            "none of 20 groups of evaluations trained: 12 version, 8 already_trained",
        ),
    ],
)
def test_why_names_what_the_groups_of_evaluations_wait_for(shown: RunFacts, owner: str, what: str) -> None:
    reasons, _ = explain_facts(replace(shown, waits=replace(shown.waits, queued=0, opened=0, graded=0)))
    assert [(one.owner, what in one.what) for one in reasons] == [(owner, True)]


def test_a_run_that_is_fed_waits_for_nothing() -> None:
    fed = _drawing(SourceReport("e", 20, 16), no_sampling=True)
    assert explain_facts(replace(fed, waits=replace(fed.waits, queued=0, opened=0, graded=0)))[0] == []
