"""Groups of evaluations that run beside a training run: drawn once, released, and drawn by the next run."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.planning import RULES, START
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, settled, train_spec

from episodes import Split
from identities.entities import episode_id
from scenario_runner.adapters.sql_plan import PlanUnit, SqlPlan
from scenario_runner.domain.facts import Advanced, GroupSettled, Stopping
from scenario_runner.domain.runs import RunState
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.usecases.ending import end_run, stop_early
from scenario_runner.usecases.planning import pause, resume
from scenario_runner.usecases.supply import offer_more
from sql_store import Database
from upcycle.run_config import PolicyChoice

ONLY_EVALUATIONS = train_spec(sampling=False)


async def test_a_running_run_draws_the_groups_that_end_after_its_start(sources: SourcesHarness) -> None:
    evaluation = await sources.submit(eval_spec(online=True))
    early = await sources.play(evaluation, num_groups=1)
    run_id = await sources.submit(ONLY_EVALUATIONS)
    assert await sources.plan(run_id) == 0
    late = await sources.play(evaluation, num_groups=1)
    assert await sources.plan(run_id) == 1
    (offer,) = await sources.offers(run_id)
    assert (offer.group_id, offer.source_run_id, offer.before_start) == (late[0], evaluation, False)
    assert early[0] not in await sources.outbox("group.offered/%", "event_id")
    assert await sources.outbox("group.offered/%", "event_id") == [f"group.offered/{run_id}/{late[0]}"]
    assert not await sources.episodes(run_id)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trainable": False}, "the evaluation did not ask for it"),
        ({"policy": PolicyChoice("n")}, "another model"),
        ({"taskset": "other"}, "another taskset"),
    ],
)
async def test_other_evaluations_are_never_offered(
    sources: SourcesHarness, change: dict[str, object], why: str
) -> None:
    await sources.register("other")
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(replace(eval_spec(online=True), **change))  # type: ignore[arg-type]
    await sources.play(evaluation)
    assert await sources.plan(run_id) == 0, why
    assert (await sources.view(run_id)).sources == ()


async def test_held_out_groups_are_left_out_even_when_the_evaluation_says_trainable(
    sources: SourcesHarness,
) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(eval_spec(online=True))
    wanted = sa.text("UPDATE task_claim SET split = :split")
    values = {"split": Split.HELD_OUT.value}
    await sources.database.run(lambda sql: sql.execute(wanted, values))
    await sources.play(evaluation)
    await sources.plan(run_id)
    assert await sources.offers(run_id) == []
    assert (await sources.report(run_id, evaluation)).left_out == {"held_out": 6}


async def test_an_old_taskset_whose_name_ends_like_a_revision_is_another_taskset(
    sources: SourcesHarness,
) -> None:
    await sources.register(
        "ts@2", digests="old"
    )  # refused by RegisterTaskset now, and may be left from before
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(eval_spec("ts@2", online=True))
    await sources.play(evaluation)
    assert await sources.plan(run_id) == 0
    assert (await sources.view(run_id)).sources == ()


async def test_the_groups_of_another_revision_are_drawn(sources: SourcesHarness) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    await sources.register(num_tasks=2, digests="new")
    evaluation = await sources.submit(eval_spec(online=True))
    assert (await sources.run(evaluation)).taskset == "ts@2"
    await sources.play(evaluation)
    assert await sources.plan(run_id) == 2


async def test_a_gate_evaluation_is_never_offered(sources: SourcesHarness) -> None:
    await sources.register("held", Split.HELD_OUT)
    run_id = await sources.submit(ONLY_EVALUATIONS)
    policy = PolicyChoice("m", None, 5)
    gate = await sources.submit(replace(eval_spec("held"), policy=policy))
    await sources.play(gate)
    assert await sources.plan(run_id) == 0
    assert (await sources.view(run_id)).sources == ()


async def test_a_step_settles_an_offer_whose_own_answer_was_lost(sources: SourcesHarness) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(eval_spec(online=True))
    played = await sources.play(evaluation)
    await sources.plan(run_id)  # four groups of two
    members = tuple(episode_id(group, member, 0) for group in played[:2] for member in range(2))
    await sources.planner.apply(Advanced(run_id, 1, 6, episode_ids=members))
    assert await sources.plan(run_id) == 2
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 4, 2, 0)


async def test_groups_that_became_old_while_they_waited_are_the_trainers_to_release(
    sources: SourcesHarness,
) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(eval_spec(online=True))
    played = await sources.play(evaluation)
    await sources.plan(run_id)  # four groups, sampled by version 4
    await sources.planner.apply(
        *(settled(run_id, group, source=evaluation) for group in played[:2]), Advanced(run_id, 1, 6)
    )
    assert await sources.plan(run_id) == 2
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 4, 2, 0)
    await sources.planner.apply(
        *(settled(run_id, group, "released", "stale", source=evaluation) for group in played[4:])
    )
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 2, 2, 0, {"stale": 2})


async def test_the_evaluation_is_measured_as_if_no_run_had_drawn_from_it(sources: SourcesHarness) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    evaluation = await sources.submit(eval_spec(online=True))
    played = await sources.play(evaluation)
    before = await sources.view(evaluation), await sources.episodes(evaluation)
    await sources.plan(run_id)
    facts = [
        settled(run_id, played[0], source=evaluation),
        settled(run_id, played[1], "released", "zero_spread", source=evaluation),
        # Not an answer to an offer: it names no evaluation, and the group is not the run's.
        settled(run_id, played[2], "excluded", "stale", source=""),
        # Nor is this: the group was offered as one of another evaluation.
        settled(run_id, played[2], source="run-other"),
    ]
    await sources.planner.apply(*facts)
    await sources.planner.apply(*facts[::-1])
    assert (await sources.view(evaluation), await sources.episodes(evaluation)) == before
    report = await sources.report(run_id, evaluation)
    assert report == SourceReport(evaluation, 6, 2, 1, 2, {"zero_spread": 1})
    assert (await sources.view(run_id)).counts.groups_by_outcome == {"trained": 1, "released(zero_spread)": 1}
    assert (await sources.view(run_id)).counts.requested == 0


async def test_groups_that_brought_no_step_are_counted_with_their_rewards(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    await sources.plan(run_id)
    groups = [offer.group_id for offer in await sources.offers(run_id)]
    await sources.planner.apply(
        settled(run_id, groups[0], "released", "untrainable", source=evaluation),
        Advanced(run_id, 1, 5),
        settled(run_id, groups[1], "released", "zero_spread", source=evaluation),
        settled(run_id, groups[2], "released", "stale", source=evaluation),
        settled(run_id, groups[3], source=evaluation),
    )
    greedy, flat = {"released(untrainable)": 1}, {"released(zero_spread)": 1}

    def since(step: int) -> Callable[[PlanUnit], dict[str, int]]:
        return lambda unit: unit.source_groups.released_since(run_id, step, START)

    assert await sources.planner.do(since(0)) == {**greedy, **flat}
    assert await sources.planner.do(since(1)) == flat
    run = await sources.planner.do(lambda unit: unit.run(run_id))
    assert run is not None
    assert await sources.planner.do(lambda unit: unit.outcomes_without_step(run)) == flat
    rewards = await sources.planner.do(lambda unit: unit.source_groups.released_rewards(run_id, 1, START))
    assert rewards == {"released(zero_spread)": {0.0: 1, 1.0: 1}}  # as graded


async def test_the_first_answer_stands_but_a_gradient_is_never_forgotten(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    first = await sources.submit(train_spec(evaluation))
    await sources.plan(first)
    groups = [offer.group_id for offer in await sources.offers(first)]
    await sources.planner.apply(
        settled(first, groups[0], source=evaluation),
        settled(first, groups[0], "released", "stale", source=evaluation),
        settled(first, groups[1], "released", "stale", source=evaluation),
        settled(first, groups[1], source=evaluation, step=2),
    )
    report = await sources.report(first, evaluation)
    assert (report.trained, report.left_out) == (2, {})


async def test_a_paused_run_is_offered_nothing_until_it_goes_on(sources: SourcesHarness) -> None:
    run_id = await sources.submit(ONLY_EVALUATIONS)
    await sources.change(run_id, pause)
    evaluation = await sources.submit(eval_spec(online=True))
    await sources.play(evaluation, num_groups=2)
    assert await sources.plan(run_id) == 0
    assert (await sources.report(run_id, evaluation)).waiting == 2
    await sources.change(run_id, resume)
    assert await sources.plan(run_id) == 2


async def test_a_restarted_planner_offers_nothing_twice(sources: SourcesHarness, sql_url: str) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    await sources.plan(run_id)
    other = Database(sql_url)
    await other.start()
    sources.planner.plan = SqlPlan(other, now=lambda: sources.planner.now)
    assert await sources.plan(run_id) == 0
    answer = settled(run_id, f"{evaluation}-g00000", source=evaluation)
    await sources.planner.apply(answer)
    await sources.plan(run_id)
    await sources.planner.apply(answer)
    await sources.plan(run_id)
    ids = await sources.outbox("group.offered/%", "event_id")
    assert len(ids) == len(set(ids)) == 5
    await other.stop()


async def test_two_planners_offer_each_group_once(sources: SourcesHarness, sql_url: str) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2))
    other = Database(sql_url)
    await other.start()
    plans = [sources.planner.plan, SqlPlan(other, now=lambda: sources.planner.now)]
    counts = await asyncio.gather(
        *(plan.transact(lambda unit: offer_more(unit, run_id, RULES)) for plan in plans * 3)
    )
    await other.stop()
    assert sum(counts) == 6
    ids = await sources.outbox("group.offered/%", "event_id")
    assert len(ids) == len(set(ids)) == 6


async def test_the_database_refuses_a_group_that_two_runs_hold(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    other = await sources.submit(replace(train_spec(), policy=PolicyChoice("n")))
    await sources.plan(run_id)
    (held,) = (await sources.planner.do(lambda unit: unit.source_groups.offered(run_id)))[:1]
    with pytest.raises(Exception, match=r"(?i)unique"):
        await sources.planner.do(lambda unit: unit.source_groups.add([replace(held, run_id=other)]))


async def test_a_run_that_is_stopped_waits_for_the_answers_to_its_offers(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, sampling=False))
    await sources.plan(run_id)
    await sources.change(run_id, lambda unit, run: stop_early(unit, run, "enough"))
    await sources.planner.apply(Stopping(run_id))
    groups = [offer.group_id for offer in await sources.offers(run_id)]
    for group in groups:
        assert (await sources.run(run_id)).state is RunState.DRAINING
        assert await sources.plan(run_id) == 0
        await sources.planner.apply(settled(run_id, group, "released", "run_over", source=evaluation))
    assert (await sources.run(run_id)).state is RunState.COMPLETED
    assert (await sources.report(run_id, evaluation)).left_out == {"run_over": 6}


async def test_the_final_stop_releases_offers_that_the_trainer_did_not_answer(
    sources: SourcesHarness,
) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    await sources.plan(run_id)
    await sources.change(run_id, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled"))
    await sources.planner.apply(Stopping(run_id))
    sources.planner.now += timedelta(seconds=21)  # ending_grace_s of the rules is 20
    await sources.sweep(run_id)
    assert await sources.outbox("run.stopping/%", "event_id") == [
        f"run.stopping/{run_id}",
        f"run.stopping/{run_id}/final",
    ]
    # The trainer's answer about the first group is in the stream before the last word.
    groups = [offer.group_id for offer in await sources.offers(run_id)]
    await sources.planner.apply(
        settled(run_id, groups[0], source=evaluation), Stopping(run_id, is_final=True)
    )
    assert (await sources.run(run_id)).state is RunState.DRAINING
    ids = await sources.outbox("group.settled/%", "event_id")
    assert ids == [f"group.settled/{run_id}/{group}" for group in groups[1:]]
    facts = [fact for fact in await sources.settled_by_planner() if isinstance(fact, GroupSettled)]
    assert [(fact.outcome, fact.reason, fact.source_run_id) for fact in facts] == [
        ("released", "run_over", evaluation)
    ] * 3
    assert facts[0].episode_ids == (f"{groups[1]}-e000-a0", f"{groups[1]}-e001-a0")
    await sources.planner.apply(*facts)
    assert (await sources.run(run_id)).state is RunState.CANCELLED
    assert (await sources.report(run_id, evaluation)).trained == 1


async def test_a_run_without_end_keeps_to_its_open_groups_and_ends_when_it_is_stopped(
    sources: SourcesHarness,
) -> None:
    run_id = await sources.submit_unchecked(train_spec(steps=0))
    await sources.plan(run_id)
    await sources.planner.apply(Advanced(run_id, 7, 7))
    run = await sources.run(run_id)
    assert (run.state, run.step) == (RunState.RUNNING, 7)
    await sources.change(run_id, lambda unit, run: stop_early(unit, run, "enough"))
    assert (await sources.run(run_id)).ends_early
