"""Guidance after failure in the planner: which groups are attempted again, how they count, who says no."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from google.protobuf import json_format
from tests.services.scenario_runner.planning import (
    START,
    PlannerHarness,
    check_conservation,
    eval_spec,
    train_spec,
)

from blob_store import BlobRef
from scenario_runner.adapters.planned_episodes import SqlPlannedEpisodes
from scenario_runner.domain.facts import Graded
from scenario_runner.domain.guidance import attempt_to_guide_after, wants_guidance
from scenario_runner.domain.runs import EpisodeRow, GroupRow
from scenario_runner.usecases.tracking import _outcomes
from scenario_runner.wire import received
from scenario_runner.wire.published import trajectory_graded
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.run_config import RunSpec

BODY = BlobRef("bodies/x", "5" * 64, 7)


def guided_spec(share: float = 0.5, prompts: int = 2, staleness: int = 1, steps: int = 100) -> RunSpec:
    spec = train_spec(prompts=prompts, staleness=staleness, steps=steps, no_step_groups=10_000)
    assert spec.training is not None
    training = replace(spec.training, guidance="on_failure", guidance_max_share=share)
    return replace(spec, training=training)


def row(member: int, reward: float, *, success: bool = False, stored: bool = True) -> EpisodeRow:
    made = EpisodeRow(f"e{member}", "r", "g", member, 0, 0, "ts", reward=reward, success=success)
    return replace(made, graded_at=START, body_key="k" if stored else "")


async def play(planner: PlannerHarness, group: int, *rewards: float, outcome: str = "excluded") -> None:
    """Grade the members of a group of two, whose bodies are stored, and have the trainer settle it."""
    names = planner.members(group)
    facts = [planner.graded(name, reward) for name, reward in zip(names, rewards, strict=True)]
    await planner.apply(*(_stored(fact) for fact in facts))
    await planner.apply(planner.settled(planner.group_id(group), names, outcome))


def _stored(fact: Graded) -> Graded:
    return replace(fact, body=replace(BODY, key=f"bodies/{fact.episode_id}"))


async def guided(planner: PlannerHarness) -> dict[str, set[str]]:
    """Groups with guidance, each with the attempts that its episodes are guided after."""
    found: dict[str, set[str]] = {}
    for one in await planner.episodes():
        if one.guided_after:
            found.setdefault(one.group_id, set()).add(one.guided_after)
    return found


def test_the_best_of_the_failed_attempts_guides_the_whole_group() -> None:
    assert attempt_to_guide_after([row(0, 0.0), row(1, 0.0)]) == row(0, 0.0), "the first of equal ones"
    assert attempt_to_guide_after([row(0, 0.1), row(1, 0.4), row(2, 0.4)]) == row(1, 0.4)
    assert attempt_to_guide_after([row(0, 0.1), row(1, 0.4, stored=False)]) == row(0, 0.1)
    assert attempt_to_guide_after([row(0, 0.0), row(1, 0.0, success=True)]) is None
    assert attempt_to_guide_after([row(0, 0.0, stored=False)]) is None
    assert attempt_to_guide_after([replace(row(0, 0.0), graded_at=None)]) is None


async def test_a_share_counts_the_guided_group_itself(planner: PlannerHarness) -> None:
    """By hand, with a share of 1/4: the first after 3 groups, the second after 7."""
    await planner.submit(guided_spec(share=0.25), num_tasks=3)
    run = await planner.run()
    group = GroupRow(planner.group_id(0), run.run_id, 0, 0, 2, "ts")
    flat = planner.settled(group.group_id, [], "excluded")

    def wants(num_guided: int, planned: int) -> bool:
        return wants_guidance(replace(run, num_guided=num_guided, next_position=planned), group, flat)

    assert [wants(0, planned) for planned in (1, 2, 3, 4)] == [False, False, True, True]
    assert [wants(1, planned) for planned in (5, 6, 7, 8)] == [False, False, True, True]
    later = replace(run, next_position=8)
    assert wants_guidance(later, group, flat)
    assert not wants_guidance(later, replace(group, guided_after="e"), flat), "guided once"
    assert not wants_guidance(later, group, replace(flat, reason="stale")), "it may have had a success"
    assert not wants_guidance(later, group, replace(flat, outcome="trained", reason=""))


async def test_a_task_that_all_failed_is_attempted_again_with_guidance(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    assert (await planner.run()).next_position == 4
    await play(planner, 1, 0.25, 0.25)
    attempt, again = planner.members(1)[0], planner.group_id(4)
    assert await guided(planner) == {again: {attempt}}
    episodes = [one for one in await planner.episodes() if one.group_id == again]
    failed = next(one for one in await planner.episodes() if one.episode_id == attempt)
    assert {one.task_position for one in episodes} == {failed.task_position}
    run = await planner.run()
    assert (run.next_position, run.num_guided) == (5, 1)
    assert await planner.plan_all() == 0, "it takes the place of the group that ended"
    await check_conservation(planner)
    requested = await _requested(planner, episodes[0].episode_id)
    assert requested.episode.guided_after == attempt
    assert (await _requested(planner, attempt)).episode.guided_after == ""


async def test_a_guided_group_trains_or_not_and_is_guided_no_further(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    await play(planner, 1, 0.0, 0.0)
    assert set(await guided(planner)) == {planner.group_id(4), planner.group_id(5)}
    await play(planner, 4, 1.0, 0.0, outcome="trained")
    await play(planner, 5, 0.0, 0.0)
    assert len(await guided(planner)) == 2
    await check_conservation(planner)
    run = await planner.run()
    assert (run.num_graded, run.num_successes, run.reward_sum) == (4, 0, 0.0), "what it did by itself"


async def test_the_kinds_of_guidance_are_counted_by_group_and_said_again(planner: PlannerHarness) -> None:
    """By hand: one member of a guided group had a plan and a hint, the other a plan; one of the other group
    feedback."""
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    await play(planner, 1, 0.0, 0.0)
    of_members: dict[int, list[tuple[str, ...]]] = {4: [("plan", "hint"), ("plan",)], 5: [("feedback",)]}
    for group, every in of_members.items():
        for name, kinds in zip(planner.members(group), every, strict=False):
            await planner.apply(replace(_stored(planner.graded(name, 1.0)), guidance_kinds=kinds))
    run_id = (await planner.run()).run_id
    counts = await planner.plan.read(lambda unit: unit.task_pasts.guidance_kinds(run_id))
    assert counts == {"plan": 1, "hint": 1, "feedback": 1}
    episode = next(one for one in await planner.episodes() if one.guidance_kinds == "plan,hint")
    again = trajectory_graded(episode, EpisodeIdentity())
    assert received.graded(again).guidance_kinds == ("plan", "hint")
    unguided = next(one for one in await planner.episodes() if not one.guidance_kinds and one.graded_at)
    assert received.graded(trajectory_graded(unguided, EpisodeIdentity())).guidance_kinds == ()


async def test_what_taught_something_or_had_a_success_is_not_guided(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 1.0, 0.0, outcome="trained")
    await play(planner, 1, 1.0, 1.0)
    assert await guided(planner) == {}


async def test_a_member_that_is_played_again_is_guided_alike(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    lost = planner.members(4)[1]
    await planner.apply(planner.failed(lost))
    (again,) = [one for one in await planner.episodes() if one.episode_id == lost.replace("-a0", "-a1")]
    assert again.guided_after == planner.members(0)[0]


async def test_facts_that_come_twice_open_one_group(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    for _ in range(2):
        await play(planner, 0, 0.0, 0.0)
    assert len(await guided(planner)) == 1


async def test_a_run_that_is_paused_or_needs_no_group_opens_none(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await planner.pause()
    await play(planner, 0, 0.0, 0.0)
    assert await guided(planner) == {}
    await planner.resume()
    await planner.stop()
    await play(planner, 1, 0.0, 0.0)
    assert await guided(planner) == {}


async def test_without_the_option_nothing_is_guided(planner: PlannerHarness) -> None:
    await planner.begin(train_spec(no_step_groups=10_000), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    assert await guided(planner) == {}


async def test_guided_groups_take_no_turn_in_the_order_of_the_tasks(planner: PlannerHarness) -> None:
    """Every task is played once per epoch by itself, whatever is attempted again between."""
    await planner.begin(guided_spec(), num_tasks=3)
    for group in range(9):
        await play(planner, group, 0.0, 0.0)
        await planner.plan_all()
    groups = {one.group_id: one for one in await planner.episodes()}
    own = [groups[name].task_position for name in sorted(groups) if not groups[name].guided_after]
    assert len(own) == 8
    assert len(groups) == 13
    assert all(sorted(own[at : at + 3]) == [0, 1, 2] for at in range(0, len(own) - 2, 3))
    await check_conservation(planner)


async def test_a_sampler_of_tasks_does_not_count_what_was_learned_with_guidance(
    planner: PlannerHarness,
) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    await play(planner, 4, 1.0, 0.0, outcome="trained")
    run = await planner.run()
    pasts = await planner.do(lambda unit: unit.task_pasts.of(run.run_id, run.taskset, 0))
    assert sum(past.trained for past in pasts.values()) == 0
    assert sum(past.flat for past in pasts.values()) == 1


async def test_counted_again_from_its_rows_a_run_has_the_same_numbers(
    planner: PlannerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await planner.begin(guided_spec(steps=2, prompts=1), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    assert len(await guided(planner)) == 1
    (again,) = await guided(planner)
    await play(planner, int(again[-5:]), 1.0, 0.0, outcome="trained")
    await planner.stop()
    await planner.sweep()
    run = await planner.run()
    assert run.num_successes == 0
    assert "run_was_miscounted" not in caplog.text


async def test_the_fleet_learns_after_which_attempt_an_episode_is_guided(planner: PlannerHarness) -> None:
    await planner.begin(guided_spec(), num_tasks=3)
    await play(planner, 0, 0.0, 0.0)
    planned = SqlPlannedEpisodes(planner.database, now=lambda: planner.now)
    to_play = await planned.to_play(planner.members(4)[1])
    assert to_play.guided_after == BlobRef(f"bodies/{planner.members(0)[0]}", "5" * 64, 7)
    assert (await planned.to_play(planner.members(1)[0])).guided_after is None


async def test_an_evaluation_never_guides_nor_counts_what_was_guided(planner: PlannerHarness) -> None:
    """A gate, a watch and tracking play evaluations: each attempt is the policy's own."""
    await planner.begin(eval_spec(), num_tasks=3)
    for group in range(3):
        await planner.apply(*(_stored(planner.graded(name, 0.0)) for name in planner.members(group)))
        settled = planner.settled(planner.group_id(group), planner.members(group), "excluded")
        await planner.apply(settled)
    assert await guided(planner) == {}
    run = await planner.run()
    assert sum((await planner.do(lambda unit: _outcomes(unit, run)))["t0"][1:]) == 2
    await planner.database.run(
        lambda sql: sql.execute(
            sa.text("UPDATE episode SET guided_after = 'e' WHERE episode_id = :name"),
            {"name": planner.members(0)[0]},
        )
    )
    left = await planner.do(lambda unit: _outcomes(unit, run))
    assert sum(attempts for _, _, attempts in left.values()) == 5


async def _requested(planner: PlannerHarness, episode: str) -> EpisodeRequested:
    query = sa.text("SELECT payload FROM outbox WHERE event_id = :id")
    wanted = {"id": f"episode.requested/{episode}"}
    payload = await planner.database.run(lambda sql: sql.execute(query, wanted).scalars().one())
    return json_format.Parse(payload, EpisodeRequested())
