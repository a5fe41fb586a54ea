"""Runs whose evaluations bring nothing more: they end with the reason, go on to their own groups, or wait."""

from dataclasses import replace

import pytest
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, settled, train_spec

from scenario_runner.domain.facts import Advanced, SessionFailed
from scenario_runner.domain.runs import RunState
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.usecases.supply import supply_of


async def test_a_run_without_sampling_ends_when_its_sources_are_used_up(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2, sampling=False))
    await sources.plan(run_id)
    groups = [offer.group_id for offer in await sources.offers(run_id)]
    for group in groups[:4]:
        await sources.plan(run_id)
        assert (await sources.run(run_id)).state is RunState.RUNNING
        await sources.planner.apply(settled(run_id, group, source=evaluation))
    await sources.plan(run_id)  # two are on offer, which is a batch
    assert (await sources.run(run_id)).state is RunState.RUNNING
    await sources.planner.apply(settled(run_id, groups[4], "released", "zero_spread", source=evaluation))
    await sources.plan(run_id)
    # step.completed of the trained groups was not delivered yet: it may be the last step.
    assert (await sources.run(run_id)).state is RunState.RUNNING
    await sources.planner.apply(Advanced(run_id, 1, 1))
    await sources.plan(run_id)
    assert (await sources.run(run_id)).ending is RunState.COMPLETED
    assert (await sources.run(run_id)).failure == "its evaluations are used up"
    assert await sources.outbox("run.stopping/%", "event_id") == [f"run.stopping/{run_id}"]
    await sources.planner.apply(settled(run_id, groups[5], "released", "run_over", source=evaluation))
    assert (await sources.run(run_id)).state is RunState.COMPLETED


async def test_a_session_failure_of_a_used_up_run_is_kept_beside_its_reason(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2, sampling=False))
    await sources.plan(run_id)
    for number in range(5):
        await sources.planner.apply(settled(run_id, f"{evaluation}-g{number:05d}", source=evaluation))
    await sources.planner.apply(Advanced(run_id, 1, 1))
    await sources.plan(run_id)
    assert (await sources.run(run_id)).ends_early
    fact = SessionFailed(run_id, "diverged", "loss is nan")
    await sources.planner.apply(fact, fact)
    found = "its evaluations are used up; the trainer gave up (diverged): loss is nan"
    assert (await sources.run(run_id)).failure == found


async def test_a_run_whose_sources_gave_no_step_fails_with_the_reasons(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2, sampling=False))
    await sources.plan(run_id)
    groups = [offer.group_id for offer in await sources.offers(run_id)]
    await sources.planner.apply(
        *(settled(run_id, group, "released", "zero_spread", source=evaluation) for group in groups)
    )
    await sources.plan(run_id)
    run = await sources.run(run_id)
    assert run.state is RunState.FAILED
    assert "no step was made: a step takes 2 groups" in run.failure
    assert "left out: 6 zero_spread" in run.failure


async def test_a_run_of_which_no_offer_fits_goes_on_to_its_own_groups(sources: SourcesHarness) -> None:
    await sources.register("many", num_tasks=80)
    evaluation = await sources.submit(eval_spec("many"))
    await sources.play(evaluation)
    spec = replace(train_spec(evaluation, prompts=8), taskset="many")
    run_id = await sources.submit(spec)
    released: set[str] = set()
    while await sources.plan(run_id):
        new = [one.group_id for one in await sources.offers(run_id) if one.group_id not in released]
        released.update(new)
        facts = [settled(run_id, group, "released", "version", source=evaluation) for group in new]
        await sources.planner.apply(*facts)
    view = await sources.view(run_id)
    assert (view.run.state, view.run.failure, view.notice) == (RunState.RUNNING, "", "")
    assert view.sources == (SourceReport(evaluation, 80, left_out={"version": 80}),)
    assert view.counts.groups_open == 16  # (1 + 1) * 8, all its own
    assert view.counts.requested == 32


async def test_a_run_without_sampling_of_which_no_offer_fits_fails_with_the_reasons(
    sources: SourcesHarness,
) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2, sampling=False))
    await sources.plan(run_id)
    for number in range(6):
        answer = settled(run_id, f"{evaluation}-g{number:05d}", "released", "version", source=evaluation)
        await sources.planner.apply(answer)
    await sources.plan(run_id)
    run = await sources.run(run_id)
    assert run.state is RunState.FAILED
    assert (
        "left out: 6 version; what may help: evaluate the model as it is now, or raise max_staleness; "
        in run.failure
    )


async def test_a_run_that_evaluations_still_feed_does_not_end(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation, staleness=2, sampling=False))
    online = await sources.submit(eval_spec(online=True))
    await sources.plan(run_id)
    for offer in await sources.offers(run_id):
        await sources.planner.apply(settled(run_id, offer.group_id, source=evaluation))
    await sources.plan(run_id)
    assert (await sources.run(run_id)).state is RunState.RUNNING
    supply = await sources.planner.do(lambda unit: supply_of(unit, unit.source_groups.source_run(run_id)))  # type: ignore[arg-type]
    assert supply.evaluations == (online,)
    await sources.play(online)
    await sources.plan(run_id)
    assert (await sources.report(run_id, online)).offered == 6
    assert (await sources.run(run_id)).state is RunState.RUNNING


@pytest.mark.parametrize("steps", [0, 100])
async def test_a_run_that_waits_for_evaluations_goes_on_waiting(sources: SourcesHarness, steps: int) -> None:
    """Without source runs, and with steps 0 also with them."""
    evaluation = await sources.evaluation()
    named = (evaluation,) if steps == 0 else ()
    run_id = await sources.submit_unchecked(train_spec(*named, steps=steps, sampling=False))
    await sources.plan(run_id)
    for offer in await sources.offers(run_id):
        await sources.planner.apply(settled(run_id, offer.group_id, source=evaluation))
        await sources.plan(run_id)
    await sources.planner.apply(Advanced(run_id, 1, 5))
    await sources.sweep(run_id)
    await sources.plan(run_id)
    assert (await sources.run(run_id)).state is RunState.RUNNING
