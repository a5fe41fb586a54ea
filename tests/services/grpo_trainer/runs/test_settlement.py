"""The set of settled groups, range by range, and what a group that is not trained is told."""

from __future__ import annotations

import dataclasses

import pytest
from tests.services.grpo_trainer.runs.test_offers import (
    EVALUATION,
    LINEAGE,
    RUN,
    SPEC,
    group,
    member,
    released,
    taken,
    with_member,
)

from episodes import GroupOutcome, GroupReason
from grpo_trainer.domain.errors import Untrainable, UnusableTrajectory
from grpo_trainer.domain.offers import OfferedGroup, OfferRules, unusable
from grpo_trainer.domain.settled import SettledGroups
from grpo_trainer.domain.trajectories import CompleteGroup, Settlement, excluded


def settled(*group_ids: str) -> SettledGroups:
    found = SettledGroups(RUN)
    found.update(group_ids)
    return found


def ranges(*indexes: int) -> list[list[int]]:
    plain: list[list[int]] = settled(*(f"{RUN}-g{index:05d}" for index in indexes)).to_json()["ranges"]
    return plain


@pytest.mark.parametrize(
    ("indexes", "wanted"),
    [
        ((4,), [[4, 4]]),
        ((4, 5), [[4, 5]]),
        ((5, 4), [[4, 5]]),
        ((4, 6), [[4, 4], [6, 6]]),
        ((6, 4), [[4, 4], [6, 6]]),
        ((4, 6, 5), [[4, 6]]),
        ((4, 6, 8, 7), [[4, 4], [6, 8]]),
        ((0, 3, 6, 2), [[0, 0], [2, 3], [6, 6]]),
        ((0, 3, 6, 4), [[0, 0], [3, 4], [6, 6]]),
        ((0, 1, 2, 4, 5, 6, 3), [[0, 6]]),
        ((4, 5, 6, 5, 4), [[4, 6]]),
    ],
)
def test_neighbours_join_a_range_and_others_begin_one(
    indexes: tuple[int, ...], wanted: list[list[int]]
) -> None:
    assert ranges(*indexes) == wanted


def test_a_group_is_known_by_its_range_and_its_run() -> None:
    found = settled("run-1-g00002", "run-1-g00003", "run-1-g00006", "run-2-g00004", "odd")
    known = [index for index in range(9) if f"run-1-g{index:05d}" in found]
    assert (known, len(found)) == ([2, 3, 6], 5)
    assert ["run-2-g00004" in found, "run-2-g00003" in found, "run-3-g00002" in found] == [True, False, False]
    assert "odd" in found
    assert len(SettledGroups(RUN)) == 0


@pytest.mark.parametrize(
    "name", ["run-1-g0001", "run-1-g000001", "run-1-g0123456789", "run-1-g00001x", "00001"]
)
def test_a_name_that_the_planner_did_not_number_is_kept_as_it_is(name: str) -> None:
    found = settled(name, name)
    assert found.to_json() == {"ranges": [], "others": [name]}
    assert (name in found, len(found)) == (True, 1)


def test_names_with_six_to_nine_digits_are_numbered_too() -> None:
    assert settled("run-1-g123456789").to_json()["ranges"] == [[123456789, 123456789]]


def test_a_stored_set_is_read_with_what_it_knows_of_other_runs() -> None:
    plain = {"ranges": [[0, 2]], "others": ["odd"], "sources": {"run-2-g": [[4, 5]]}}
    found = SettledGroups.from_json(RUN, plain)
    assert found.to_json() == plain
    assert len(found) == 6
    own = SettledGroups.from_json(RUN, {"ranges": [[0, 2]], "others": []})
    assert own.to_json() == {"ranges": [[0, 2]], "others": []}
    own.add("run-1-g00003")
    assert own.to_json()["ranges"] == [[0, 3]]


def test_what_is_stored_is_a_copy_that_later_groups_do_not_change() -> None:
    found = settled("run-1-g00000")
    before = found.to_json()
    found.add("run-1-g00001")
    assert before["ranges"] == [[0, 0]]


# What a group is told that is not trained.

MEMBER = f"traj-{EVALUATION}-g00000-e003-a0"


def test_an_own_group_is_excluded_and_one_of_an_evaluation_released() -> None:
    one = member(0, 0, 1.0)
    own = CompleteGroup("g", (one,), 5)
    assert excluded(own, GroupReason.STALE, "old") == Settlement(
        "g", GroupOutcome.EXCLUDED, GroupReason.STALE, (one.episode_id,), 0, "old", ""
    )
    drawn = dataclasses.replace(own, source_run_id=EVALUATION)
    assert excluded(drawn, GroupReason.STALE) == Settlement(
        "g", GroupOutcome.RELEASED, GroupReason.STALE, (one.episode_id,), 0, "", EVALUATION
    )


def test_bodies_of_an_evaluation_may_be_sound_and_untrainable_and_others_are_set_aside() -> None:
    own = CompleteGroup("g", (member(0, 0, 1.0),), 5)
    drawn = dataclasses.replace(own, source_run_id=EVALUATION)
    greedy, broken = Untrainable("greedy"), UnusableTrajectory("broken")
    found = [unusable(one, error).reason for one in (own, drawn) for error in (greedy, broken)]
    assert found == [
        GroupReason.QUARANTINED,
        GroupReason.QUARANTINED,
        GroupReason.UNTRAINABLE,
        GroupReason.QUARANTINED,
    ]
    assert unusable(drawn, broken).detail == "broken"
    assert unusable(drawn, broken).group_id == "g"


@pytest.mark.parametrize(
    ("offer", "detail"),
    [
        (with_member(group(), 3, may_train=False), f"{MEMBER} is of task digest-0, which must not train"),
        (
            with_member(group(), 3, may_train=False, task_digest="0123456789abcdef"),
            f"{MEMBER} is of task 0123456789ab, which must not train",
        ),
        (
            with_member(group(), 3, task_digest="digest-66"),
            f"{MEMBER} is of task digest-66, which must not train",
        ),
        (group(rewards=[]), "run-2-g00000 was offered without members"),
        (with_member(group(), 3, member=2), "run-2-g00000 was offered with a member twice"),
        (with_member(group(), 3, member=8), f"{MEMBER} is member 8 of 8, with reward 1.0"),
        (with_member(group(), 3, reward=float("inf")), f"{MEMBER} is member 3 of 8, with reward inf"),
        (group(rewards=[1.0]), "1 member, at least 2 are needed"),
        (group(rewards=[0.25] * 8), "all 8 rewards are 0.25"),
        (
            with_member(group(), 3, oldest_version=5),
            f"{MEMBER} was sampled by version 5; the run began from version 7, and takes it and its "
            "ancestors [6, 3] (max_staleness 2)",
        ),
        (
            with_member(group(before_start=False), 3, newest_version=8),
            f"{MEMBER} was sampled by version 8; the run began from version 7, and takes it and 9 and later",
        ),
        (
            with_member(group(), 3, oldest_version=3),
            f"{MEMBER} was sampled by version 3, whose tokenizer files differ from those of version 7, which "
            "the run began from",
        ),
    ],
)
def test_a_released_group_names_the_member_and_what_is_wrong_with_it(
    offer: OfferedGroup, detail: str
) -> None:
    assert released(offer).detail == detail


def test_a_group_that_is_too_large_names_the_limit() -> None:
    found = released(group(rewards=[0.0] * 8 + [1.0]), prompts_per_step=256)
    assert found.detail == (
        "prompts_per_step * members is 2304, limit 2048: a run of fewer prompts per step could take it"
    )


def test_two_members_are_enough_and_a_group_may_be_offered_with_fewer_than_it_has() -> None:
    assert len(taken(group(rewards=[0.0, 1.0])).members) == 2
    part = group()
    part = dataclasses.replace(part, members=part.members[6:])
    assert [one.member for one in taken(part).members] == [6, 7]


def test_versions_of_a_running_evaluation_stay_as_they_are_and_older_ones_count_back() -> None:
    assert {one.counts_as for one in taken(group(before_start=False, version=12)).members} == {12}
    assert {one.counts_as for one in taken(group(version=6)).members} == {8}
    assert taken(group()).group_id == "run-2-g00000"


def test_only_an_ancestor_with_other_files_has_another_tokenizer() -> None:
    assert [version for version in range(10) if LINEAGE.has_other_tokenizer(version)] == [3]


def test_the_first_thing_that_is_wrong_is_the_reason() -> None:
    rules = OfferRules(SPEC, (), LINEAGE)
    offer = with_member(group(rewards=[1.0]), 0, oldest_version=5, may_train=False)
    found = rules.judged(offer)
    assert isinstance(found, Settlement)
    assert found.reason is GroupReason.HELD_OUT
    allowed = rules.judged(with_member(offer, 0, may_train=True))
    assert isinstance(allowed, Settlement)
    assert allowed.reason is GroupReason.SHORT_GROUP
