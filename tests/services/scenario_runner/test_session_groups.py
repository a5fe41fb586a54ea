"""Recorded sessions as batches of a training run: which form groups, what is left out, each trains once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from tests.services.scenario_runner.source_runs import BODY, SourcesHarness, train_spec

from blob_store import BlobRef
from episodes import Split
from identities.entities import recorded_episode_id, recorded_group_id, recorded_run_id, trajectory_id
from scenario_runner.domain.facts import Advanced, GroupSettled, Stopping
from scenario_runner.domain.recorded_sessions import GradedSession, SessionRules, grouped
from scenario_runner.domain.runs import Refused, RunState
from scenario_runner.domain.source_groups import SourceReport
from scenario_runner.usecases.ending import end_run
from upcycle.session_query import SessionQuery

KEY = "key00001"
RUN = recorded_run_id(KEY)
START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = SessionRules(taken=(), held_out=(), prompts_per_step=1, head_version=4)


def session(
    name: str, reward: float = 0.0, group: str = "nightly", prompt: str = "d", **other: object
) -> GradedSession:
    digest = prompt * 64
    made = GradedSession(
        episode_id=recorded_episode_id(name),
        run_id=RUN,
        group_id=recorded_group_id(KEY, group, digest) if group else recorded_episode_id(name),
        task_digest=digest,
        split=Split.TRAIN,
        reward=reward,
        success=reward == 1.0,
        oldest_version=3,
        newest_version=4,
        num_tokens=10,
        body=BODY,
        stop_reason=1,
        graded_at=START,
    )
    return replace(made, **other)  # type: ignore[arg-type]


def reasons(*sessions: GradedSession, rules: SessionRules = RULES) -> list[tuple[list[str], str]]:
    found = grouped(sessions, rules)
    return sorted(
        ([one.episode_id.removeprefix("session-") for one in group.members], group.reason) for group in found
    )


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"split": Split.HELD_OUT}, "held_out"),
        ({"split": Split.AUDIT}, "held_out"),
        ({"split": Split.UNASSIGNED}, "unassigned"),
        ({"why_no_body": "body_missing"}, "quarantined"),
        ({"num_tokens": 0}, "no_tokens"),  # an upstream provider answered its calls
        ({"is_cut": True}, "beyond_bounds"),  # its reward is of calls that are not recorded
        ({"newest_version": 5}, "version"),  # newer than head, from which the run begins
    ],
)
def test_a_session_that_may_not_train_leaves_its_group_to_the_others(
    other: dict[str, Any], reason: str
) -> None:
    found = reasons(session("a", 0.0), session("b", 1.0), session("c", 0.5, **other))
    assert found == [(["a", "b"], ""), (["c"], reason)]


def test_sessions_of_equal_group_and_first_prompt_are_compared() -> None:
    found = reasons(
        session("a", 0.0),
        session("b", 1.0),
        session("c", 1.0, prompt="e"),
        session("d", 0.0, group="other"),
        session("e", 0.0, group=""),
        session("f", 1.0, group=""),
    )
    assert found == [(["a", "b"], ""), *(([name], "group_of_one") for name in "cdef")]


def test_groups_that_teach_nothing_or_are_too_large_are_left_out() -> None:
    assert reasons(session("a", 1.0), session("b", 1.0)) == [(["a", "b"], "zero_spread")]
    many = [session(f"s{number:03d}", number % 2) for number in range(129)]
    (found,) = grouped(many, replace(RULES, prompts_per_step=16))
    assert found.reason == "too_large"


def test_a_prompt_that_is_held_out_is_so_in_every_session() -> None:
    held_out = replace(RULES, held_out={"d" * 64}, taken={recorded_episode_id("c")})
    assert reasons(session("a", 0.0), session("b", 1.0), rules=held_out) == [
        (["a"], "held_out"),
        (["b"], "held_out"),
    ]
    taken = replace(RULES, taken={recorded_episode_id("a")})
    assert reasons(session("a", 0.0), session("b", 1.0), rules=taken) == [
        (["a"], "already_trained"),
        (["b"], "group_of_one"),
    ]


async def submitted(
    sources: SourcesHarness, *sessions: GradedSession, prompts: int = 1, steps: int = 1, **training: Any
) -> str:
    sources.sessions.found = list(sessions)
    spec = train_spec(sessions="group=nightly", prompts=prompts, steps=steps, sampling=False)
    assert spec.training is not None
    return await sources.submit(replace(spec, training=replace(spec.training, **training)))


ALONE = replace(RULES, prompts_per_step=2, has_batch_baseline=True)


def test_single_sessions_train_with_a_batch_baseline_where_their_rewards_differ() -> None:
    apart = (session("a", 0.0, group=""), session("b", 1.0, group=""))
    assert reasons(*apart, rules=ALONE) == [(["a"], ""), (["b"], "")]
    assert reasons(*apart) == [(["a"], "group_of_one"), (["b"], "group_of_one")]
    same = (session("a", 1.0, group=""), session("b", 1.0, group=""))
    assert reasons(*same, rules=ALONE) == [(["a"], "zero_spread"), (["b"], "zero_spread")]
    group = (session("c", 0.0), session("d", 1.0))
    assert reasons(*same, *group, rules=ALONE) == [(["a"], ""), (["b"], ""), (["c", "d"], "")]
    held_out = session("e", 0.0, group="", split=Split.HELD_OUT)
    assert reasons(*same, held_out, rules=ALONE)[2] == (["e"], "held_out")


async def test_a_run_says_how_many_single_sessions_it_compares_with_its_batch(
    sources: SourcesHarness,
) -> None:
    found = [session("a", 0.0), session("b", 1.0), session("c", 1.0, group=""), session("d", 0.0, group="")]
    run_id = await submitted(sources, *found, prompts=3, single_sessions="batch")
    report = await sources.report(run_id, RUN)
    assert (report.groups, report.waiting, report.single, report.left_out) == (3, 3, 2, {})
    await sources.plan(run_id)
    offers = await sources.offers(run_id)
    assert sorted((one.group_size, len(one.members)) for one in offers) == [(1, 1), (1, 1), (2, 2)]
    report = await sources.report(run_id, RUN)
    assert (report.offered, report.single) == (3, 2), "as long as the run is known"


async def test_sessions_are_offered_as_a_group_with_all_that_a_trainer_needs(sources: SourcesHarness) -> None:
    a, b = session("a", 0.0), session("b", 1.0, body=BlobRef("trajectories/b", "b" * 64, 7))
    run_id = await submitted(sources, a, b, session("c", split=Split.UNASSIGNED), session("d", group=""))
    assert sources.sessions.asked == [("m", SessionQuery(group="nightly"))]
    left_out = {"unassigned": 1, "group_of_one": 1}
    assert await sources.report(run_id, RUN) == SourceReport(RUN, 3, 0, 0, 1, left_out)
    await sources.plan(run_id)
    (offer,) = await sources.offers(run_id)
    assert (offer.source_run_id, offer.group_size, offer.before_start) == (RUN, 2, True)
    assert (offer.task_digest, offer.split, offer.taskset) == ("d" * 64, 1, "")
    assert [one.trajectory_id for one in offer.members] == [trajectory_id(one.episode_id) for one in (a, b)]
    assert [(one.member, one.reward, one.success) for one in offer.members] == [
        (0, 0.0, False),
        (1, 1.0, True),
    ]
    assert (offer.members[1].body.key, offer.members[1].sampled_by.oldest) == ("trajectories/b", 3)
    assert not await sources.episodes(run_id)


def answer(run_id: str, group_id: str, outcome: str, reason: str = "") -> GroupSettled:
    members = (recorded_episode_id("a"), recorded_episode_id("b"))
    return GroupSettled(group_id, run_id, outcome, reason, int(outcome == "trained"), members, RUN)


async def test_a_session_that_trained_trains_in_no_other_run_also_beside_new_ones(
    sources: SourcesHarness,
) -> None:
    a, b = session("a", 0.0), session("b", 1.0)
    run_id = await submitted(sources, a, b)
    await sources.plan(run_id)
    (offer,) = await sources.offers(run_id)
    step = Advanced(run_id, 1, 5, episode_ids=tuple(one.episode_id for one in offer.members))
    await sources.planner.apply(answer(run_id, offer.group_id, "trained"), step)
    assert (await sources.run(run_id)).state is RunState.COMPLETED
    assert await sources.report(run_id, RUN) == SourceReport(RUN, 1, 0, 1, 0)
    with pytest.raises(
        Refused, match=r"of 2 graded sessions of 'm', in 2 groups, none can train: 2 already_trained"
    ):
        await submitted(sources, a, b)
    again = await submitted(sources, a, b, session("c", 0.0), session("e", 1.0))
    assert (await sources.report(again, RUN)).left_out == {"already_trained": 2}
    await sources.plan(again)
    (second,) = await sources.offers(again)
    assert [one.episode_id for one in second.members] == ["session-c", "session-e"]
    assert second.group_id != offer.group_id


async def test_a_group_that_is_released_may_train_in_the_next_run(sources: SourcesHarness) -> None:
    sessions = [session("a", 0.0), session("b", 1.0)]
    run_id = await submitted(sources, *sessions)
    await sources.plan(run_id)
    (offer,) = await sources.offers(run_id)
    await sources.planner.apply(answer(run_id, offer.group_id, "released", "stale"))
    await sources.plan(run_id)
    run = await sources.run(run_id)
    assert run.state is RunState.FAILED
    assert "1 stale" in run.failure
    assert (await sources.report(await submitted(sources, *sessions), RUN)).waiting == 1


async def test_offers_of_a_run_that_ends_are_released_by_the_planner(sources: SourcesHarness) -> None:
    run_id = await submitted(sources, session("a", 0.0), session("b", 1.0))
    await sources.plan(run_id)
    await sources.change(run_id, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled"))
    await sources.planner.apply(Stopping(run_id))
    sources.planner.now += timedelta(minutes=30)
    await sources.sweep(run_id)
    await sources.planner.apply(Stopping(run_id, is_final=True))
    (fact,) = await sources.settled_by_planner()
    assert isinstance(fact, GroupSettled)
    assert (fact.outcome, fact.reason, fact.source_run_id) == ("released", "run_over", RUN)
    assert fact.episode_ids == ("session-a", "session-b")


async def test_first_prompts_of_sessions_are_on_one_side(sources: SourcesHarness) -> None:
    await submitted(sources, session("a", 0.0), session("b", 1.0))
    rows = sa.text("SELECT digest, split FROM task_claim WHERE claimed_by LIKE 'recorded sessions%'")
    found = await sources.database.run(lambda sql: [tuple(row) for row in sql.execute(rows)])
    assert found == [("d" * 64, "train")]


async def test_a_task_that_is_held_out_since_is_not_offered(sources: SourcesHarness) -> None:
    await sources.register("exam", Split.HELD_OUT, digests="d" * 62)
    digest = ("d" * 62 + "-1").rjust(64, "0")
    with pytest.raises(Refused, match="2 held_out"):
        await submitted(
            sources,
            session("a", 0.0, group="", task_digest=digest, group_id="g"),
            session("b", 1.0, group="", task_digest=digest, group_id="g"),
        )


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ((), r"no graded recorded session of model 'm' that no run has trained matches"),
        (
            (session("a", group=""), session("b", 1.0, group="")),
            r"2 group_of_one; give the sessions of one task",
        ),
        ((session("a", split=Split.UNASSIGNED),), r"1 unassigned; give rewards with split train"),
    ],
)
async def test_a_run_that_no_session_can_train_is_refused_with_what_would_help(
    sources: SourcesHarness, sessions: tuple[GradedSession, ...], message: str
) -> None:
    with pytest.raises(Refused, match=message):
        await submitted(sources, *sessions)
    assert (
        await sources.database.run(lambda sql: sql.execute(sa.text("SELECT count(*) FROM run")).scalar()) == 0
    )


async def test_a_run_of_sessions_alone_is_about_no_tasks_and_ends_when_they_are_used_up(
    sources: SourcesHarness,
) -> None:
    sources.sessions.found = [session("a", 0.0), session("b", 1.0)]
    spec = train_spec(sessions="all", prompts=2, steps=5, sampling=False)
    run_id = await sources.submit(replace(spec, taskset=""))
    run = (await sources.view(run_id)).run
    assert (run.taskset, run.num_tasks, run.split, run.source_digest) == ("", 0, Split.TRAIN, "")
    listed = await sources.planner.do(lambda unit: [one.name for one in unit.tasksets()])
    assert "" not in listed
    await sources.plan(run_id)
    assert len(await sources.offers(run_id)) == 1
    view = await sources.view(run_id)
    assert view.counts.requested == 0, "it plays nothing"
    assert view.run.ending is RunState.FAILED, "one group is no batch of two"
    assert "no step was made" in view.run.failure
