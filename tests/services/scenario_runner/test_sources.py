"""Finished evaluations as the first batches of a training run: what fits, what is refused, in which order."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from pydantic import ValidationError
from tests.services.scenario_runner.source_runs import (
    BODY,
    SourcesHarness,
    eval_spec,
    graded,
    settled,
    train_spec,
)

from blob_store import BlobRef
from episodes import Purpose, Split
from event_bus import codec
from event_bus.topology import MAX_EVENT_BYTES
from scenario_runner.domain.environments import RunnerError
from scenario_runner.domain.facts import Advanced, Failed
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, NotFound, Refused, RunRecord, RunState
from scenario_runner.domain.source_groups import EndedGroup, SourceReport
from scenario_runner.domain.sources import DrawRules, Offer, why_unfit
from scenario_runner.usecases.ending import end_run
from scenario_runner.wire.published import group_offered
from service_kit.errors import InvalidRequest
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import trajectory_pb2
from upcycle.run_config import MAX_TRAINABLE_GROUP, PolicyChoice, RunSpec

GROUP = EndedGroup("g", None, "evaluated", 2, 0, 4, 4)  # type: ignore[arg-type]
SOURCE = DrawRules(Split.TRAIN, True, 2, 16, head_version=4)
ONLINE = replace(SOURCE, head_version=None)


@pytest.mark.parametrize(
    ("group", "rules", "reason"),
    [
        (GROUP, SOURCE, ""),
        (GROUP, replace(SOURCE, split=Split.HELD_OUT), "held_out"),
        (GROUP, replace(SOURCE, is_same_environment=False), "other_environment"),
        (replace(GROUP, num_members=1), SOURCE, "incomplete_group"),
        (replace(GROUP, outcome="failed", num_members=0), SOURCE, "incomplete_group"),
        (replace(GROUP, num_members=1), replace(SOURCE, group_size=1), "group_of_one"),
        (replace(GROUP, num_members=128), replace(SOURCE, group_size=128), ""),  # 16 * 128 = 2048
        (replace(GROUP, num_members=129), replace(SOURCE, group_size=129), "too_large"),
        (replace(GROUP, num_members=513), replace(SOURCE, group_size=513, prompts_per_step=1), "too_large"),
        (replace(GROUP, num_without_body=1), SOURCE, "no_tokens"),
        (replace(GROUP, oldest=3), SOURCE, "version"),  # members of two versions
        (replace(GROUP, oldest=1, newest=1), SOURCE, ""),  # whether that is too old, the trainer decides
        (replace(GROUP, oldest=5, newest=5), SOURCE, "version"),  # newer than head
        (replace(GROUP, oldest=1, newest=5), ONLINE, ""),  # newer than the versions that the planner knows
    ],
)
def test_each_reason_that_leaves_a_group_out(group: EndedGroup, rules: DrawRules, reason: str) -> None:
    assert why_unfit(group, rules) == reason


async def test_sources_are_offered_whole_in_order_and_before_any_own_group(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 0, 0, 6)
    assert await sources.plan(run_id) == 4  # (1 + 1) * 2 open groups
    offers = await sources.offers(run_id)
    assert [offer.group_id for offer in offers] == [f"{evaluation}-g{n:05d}" for n in range(4)]
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 4, 0, 2)
    assert not await sources.episodes(run_id)
    first = offers[0]
    assert (first.source_run_id, first.model, first.group_size, first.before_start) == (
        evaluation,
        "m",
        2,
        True,
    )
    assert first.split == common_pb2.SPLIT_TRAIN
    tasks = await sources.planner.do(lambda unit: unit.tasks("ts"))
    played = {row.group_id: tasks[row.task_position].digest for row in await sources.episodes(evaluation)}
    assert [offer.task_digest for offer in offers] == [played[offer.group_id] for offer in offers]
    assert [(one.trajectory_id, one.member, one.reward, one.success) for one in first.members] == [
        (f"traj-{first.group_id}-e000-a0", 0, 0.0, False),
        (f"traj-{first.group_id}-e001-a0", 1, 1.0, True),
    ]
    member = first.members[1]
    assert (member.body.key, member.body.sha256, member.body.size_bytes) == (
        "trajectories/x.pb.zst",
        "a" * 64,
        1234,
    )
    assert (member.sampled_by.oldest, member.sampled_by.newest) == (4, 4)
    assert member.stop_reason == trajectory_pb2.STOP_REASON_ANSWERED


async def test_own_groups_follow_once_the_sources_no_longer_fill_a_batch(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    run_id = await sources.submit(train_spec(evaluation))
    await sources.plan(run_id)
    for number in range(4):
        await sources.planner.apply(settled(run_id, f"{evaluation}-g{number:05d}", source=evaluation))
        await sources.plan(run_id)
        view = await sources.view(run_id)
        (report,) = view.sources
        assert view.counts.groups_open + report.offered <= 4
        # After 4 answers the last two are on offer, which is a batch: no own group until one is answered.
        assert view.counts.groups_open == 0
    await sources.planner.apply(
        settled(run_id, f"{evaluation}-g00004", "released", "zero_spread", source=evaluation)
    )
    await sources.plan(run_id)
    view = await sources.view(run_id)
    assert (view.counts.groups_open, view.sources[0].offered) == (3, 1)
    assert view.sources[0] == SourceReport(evaluation, 6, 1, 4, 0, {"zero_spread": 1})


async def test_what_does_not_fit_is_listed_with_its_reason(sources: SourcesHarness) -> None:
    evaluation = await sources.submit(eval_spec())
    await sources.play(evaluation, num_groups=1)
    await sources.play(evaluation, num_groups=1, versions=(2, 2))
    await sources.play(evaluation, num_groups=1, versions=(3, 4))
    await sources.play(evaluation, num_groups=1, body=None)
    await sources.plan(evaluation)
    group = await sources.next_group(evaluation)
    for attempt in range(3):
        fact = Failed(f"{group}-e000-a{attempt}", evaluation, "scenario_error", "")
        await sources.planner.apply(fact)
    await sources.planner.apply(graded(evaluation, f"{group}-e001-a0"))
    await sources.play(evaluation)
    assert (await sources.run(evaluation)).state is RunState.COMPLETED
    run_id = await sources.submit(train_spec(evaluation))
    await sources.plan(run_id)
    expected = {"version": 1, "no_tokens": 1, "incomplete_group": 1}
    assert await sources.report(run_id, evaluation) == SourceReport(evaluation, 6, 3, 0, 0, expected)
    assert len(await sources.offers(run_id)) == 3


async def _refused(sources: SourcesHarness, spec: RunSpec) -> Exception:
    before = await sources.planner.do(lambda unit: len(unit.runs(100, "")))
    with pytest.raises((RunnerError, InvalidRequest)) as caught:
        await sources.submit(spec)
    assert await sources.planner.do(lambda unit: len(unit.runs(100, ""))) == before
    assert not await sources.planner.do(lambda unit: unit.source_groups.load("run-0000").offered)
    return caught.value


async def test_a_source_that_cannot_train_is_refused_by_name(sources: SourcesHarness) -> None:
    known = await sources.evaluation()
    error = await _refused(sources, train_spec("run-nope"))
    assert isinstance(error, NotFound)
    assert f"'run-nope' does not exist; the newest evaluations of 'm' are {known}" in str(error)
    running = await sources.submit(eval_spec())
    error = await _refused(sources, train_spec(known, running))
    assert isinstance(error, Refused)
    assert f"{running} is running, not finished; wait for it" in str(error)
    await sources.play(running)
    other = await sources.submit(eval_spec(model="n"))
    await sources.play(other)
    assert "is of model 'n', and this run trains 'm'" in str(await _refused(sources, train_spec(other)))
    await sources.register("held", Split.HELD_OUT)
    held = await sources.submit(eval_spec("held"))
    await sources.play(held)
    assert "'held', which is held out: it never trains" in str(await _refused(sources, train_spec(held)))
    training = await sources.submit(replace(train_spec(), policy=PolicyChoice("n")))
    error = await _refused(sources, train_spec(training))
    assert f"{training} is a training run" in str(error)
    assert "name an evaluation" in str(error)


async def test_a_source_of_which_nothing_fits_is_refused_with_the_counts(sources: SourcesHarness) -> None:
    await sources.register("elsewhere", environment="f")
    other = await sources.submit(eval_spec("elsewhere"))
    await sources.play(other)
    assert "of 6, 6 other_environment;" in str(await _refused(sources, train_spec(other)))
    old = await sources.submit(eval_spec())
    await sources.play(old, num_groups=3, versions=(5, 5))
    await sources.play(old, num_groups=2, versions=(3, 4))
    await sources.play(old, body=None)
    error = str(await _refused(sources, train_spec(old)))
    assert f"source run {old} has no group to train on: of 6, 5 version, 1 no_tokens" in error
    assert "a group of one version trains, and of none newer than head, which is version 4" in error
    assert "evaluate 'm' as it is now" in error


async def test_a_group_trains_in_one_run_only(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    first = await sources.submit(train_spec(evaluation, steps=3))
    while await sources.plan(first):
        for offer in (await sources.offers(first))[:6]:
            await sources.planner.apply(settled(first, offer.group_id, source=evaluation))
    assert (await sources.report(first, evaluation)).trained == 6
    await sources.planner.apply(Advanced(first, 3, 7))
    assert (await sources.run(first)).state is RunState.COMPLETED
    error = str(await _refused(sources, train_spec(evaluation)))
    assert f"of 6, 6 already_trained; already trained by {first}, and a group trains once" in error


async def test_released_groups_go_to_a_later_run(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    first = await sources.submit(train_spec(evaluation, steps=2))
    await sources.plan(first)
    await sources.planner.apply(
        settled(first, f"{evaluation}-g00000", source=evaluation),
        settled(first, f"{evaluation}-g00001", source=evaluation),
        Advanced(first, 2, 5),
    )
    # The last step is done: the planner releases the two on offer itself, and two were never offered.
    assert (await sources.run(first)).state is RunState.DRAINING
    await sources.planner.apply(*(fact for fact in await sources.settled_by_planner() if fact is not None))
    assert (await sources.run(first)).state is RunState.COMPLETED
    report = await sources.report(first, evaluation)
    assert report == SourceReport(evaluation, 6, 0, 2, 0, {"run_over": 4})
    sources.registry.head = 5
    second = await sources.submit(train_spec(evaluation))
    await sources.plan(second)
    assert [offer.group_id for offer in await sources.offers(second)] == [
        f"{evaluation}-g{number:05d}" for number in range(2, 6)
    ]
    assert (await sources.report(second, evaluation)).left_out == {"already_trained": 2}


async def test_fields_of_the_other_kind_of_run_and_impossible_ones_are_refused(
    sources: SourcesHarness,
) -> None:
    impossible: list[tuple[Callable[[], RunSpec], str]] = [
        (lambda: eval_spec(group_size=1, online=True), "trainable needs group_size of 2 to 512, it is 1"),
        (lambda: eval_spec(group_size=600, online=True), "trainable needs group_size of 2 to 512, it is 600"),
        (lambda: train_spec("a", "b", "a"), "source_runs names 'a' twice"),
        (
            lambda: train_spec("a", "here-0123456789ab"),
            "source_runs: 'here-0123456789ab' was played and graded in a client's own process",
        ),
        (lambda: train_spec(*(f"run-{n}" for n in range(65))), "source_runs names 65 runs, limit 64"),
    ]
    for make, text in impossible:  # such a run cannot be made
        with pytest.raises(ValidationError) as error:
            make()
        assert text in str(error.value).replace("{", "").replace("}", "")
    await sources.register("held", Split.HELD_OUT)
    refused = await _refused(sources, eval_spec("held", online=True))
    assert isinstance(refused, Refused)
    assert "'held' is held out: its episodes never train" in str(refused)


async def test_a_cancelled_evaluation_gives_the_groups_that_ended(sources: SourcesHarness) -> None:
    evaluation = await sources.submit(eval_spec())
    await sources.play(evaluation, num_groups=2)
    await sources.plan(evaluation)
    await sources.change(
        evaluation, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled")
    )
    await sources.sweep(evaluation)
    assert (await sources.run(evaluation)).state is RunState.CANCELLED
    run_id = await sources.submit(train_spec(evaluation))
    report = await sources.report(run_id, evaluation)
    assert (report.waiting, report.left_out) == (2, {"incomplete_group": 3})


async def test_an_evaluation_of_before_this_version_has_no_tokens(sources: SourcesHarness) -> None:
    evaluation = await sources.submit(eval_spec())
    await sources.play(evaluation, body=BlobRef("", "", 0))
    assert "6 no_tokens" in str(await _refused(sources, train_spec(evaluation)))


async def test_every_graded_episode_keeps_where_its_body_is(sources: SourcesHarness) -> None:
    run_id = await sources.submit(train_spec())
    await sources.plan(run_id)
    group = await sources.next_group(run_id)
    await sources.planner.apply(graded(run_id, f"{group}-e000-a0"))
    keys = [row.body_key for row in await sources.episodes(run_id) if row.state is EpisodeState.GRADED]
    assert keys == [BODY.key]
    assert (await sources.view(run_id)).sources == ()
    assert (await sources.run(run_id)).spec.purpose is Purpose.TRAIN


def test_the_largest_group_fits_in_one_fact() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    source = RunRecord("run-0123456789ab", "r", eval_spec(), Split.TRAIN, "d", RunState.RUNNING, now, 1)
    group = f"{source.run_id}-g1234567"
    members = [
        EpisodeRow(
            episode_id=f"{group}-e{member:03d}-a0",
            run_id=source.run_id,
            group_id=group,
            member=member,
            attempt=0,
            task_position=0,
            taskset="ts",
            reward=-0.12345678901234567,
            oldest_version=1_000_000,
            newest_version=1_000_000,
            body_key=f"trajectories/{source.run_id}/{group}-e{member:03d}-a0.pb.zst",
            body_sha256="a" * 64,
            body_size=1 << 24,
            stop_reason=trajectory_pb2.STOP_REASON_MAX_TOKENS,
        )
        for member in range(MAX_TRAINABLE_GROUP)
    ]
    offer = Offer(group, source.run_id, MAX_TRAINABLE_GROUP, "ts", Split.TRAIN, "d" * 64, True, members)
    fact = group_offered(source, offer, now)
    assert len(fact.members) == 512
    assert len(codec.encode(fact)) < 0.95 * MAX_EVENT_BYTES


async def test_groups_without_spread_are_left_out_at_submission(sources: SourcesHarness) -> None:
    evaluation = await sources.evaluation()
    await sources.planner.database.run(
        lambda sql: sql.execute(
            sa.text("UPDATE episode SET reward = 0.5 WHERE group_id = :group_id"),
            {"group_id": f"{evaluation}-g00001"},
        )
    )
    run_id = await sources.submit(train_spec(evaluation))
    report = await sources.report(run_id, evaluation)
    assert (report.groups, report.waiting, report.left_out) == (6, 5, {"zero_spread": 1})
