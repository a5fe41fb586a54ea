"""Two versions side by side in one evaluation: who plays what, with which seeds, on which tasks."""

from collections import Counter
from dataclasses import replace

import pytest
from tests.services.scenario_runner.planning import PlannerHarness
from tests.services.scenario_runner.test_seeds import requests

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.usecases.next_tasks import num_groups
from service_kit.errors import InvalidRequest
from upcycle.api.taskset.v1.events_pb2 import EpisodeRequested
from upcycle.run_config import PolicyChoice, Purpose, RunConfigInvalid, RunSpec, Sampling
from upcycle.run_config.refusing import checked
from upcycle.run_config.wire import spec_from_wire, spec_to_wire

PAIR = RunSpec(
    "ts", Purpose.EVAL, PolicyChoice("m", pinned_version=7), 4, sampling=Sampling(seed=3), against_version=5
)


def played(request: EpisodeRequested) -> tuple[int, int]:
    """(version, seed)"""
    return request.policy.pinned_version, request.sampling.seed


async def test_both_versions_of_a_pair_play_every_attempt_with_one_seed(planner: PlannerHarness) -> None:
    await planner.begin(PAIR, num_tasks=2)
    by_task: dict[str, list[EpisodeRequested]] = {}
    for request in await requests(planner, planner.run_id):
        by_task.setdefault(request.episode.task_slug, []).append(request)
    for members in by_task.values():
        (a, first), (b, second), (c, third), (d, fourth) = map(played, members)
        assert (a, b, c, d) == (7, 5, 7, 5)  # interleaved as they are queued
        assert first == second != third == fourth
    assert sorted(by_task) == ["t0"]  # six episodes may be in flight: one group of four


async def test_a_member_that_failed_is_played_again_by_the_same_version(planner: PlannerHarness) -> None:
    await planner.begin(PAIR, num_tasks=1)
    await planner.apply(planner.failed(f"{planner.group_id(0)}-e001-a0"))
    again = (await requests(planner, planner.run_id))[-1]
    assert (again.episode.member, again.attempt, again.policy.pinned_version) == (1, 1, 5)


async def test_only_the_tasks_of_the_named_families_are_played(planner: PlannerHarness) -> None:
    await planner.submit_families({"a": 3, "b": 2, "c": 1}, replace(PAIR, group_size=2, families=("b", "c")))
    seen: Counter[str] = Counter()
    while await planner.plan_all():
        for row in [row for row in await planner.episodes() if row.is_unsettled]:
            seen[str(row.task_position)] += 1
            await planner.apply(planner.graded(row.episode_id))
    assert seen == {"3": 2, "4": 2, "5": 2}  # tasks 0 to 2 are of family a
    assert (await planner.run()).state.value == "completed"


async def test_a_family_that_the_taskset_does_not_have_is_refused(planner: PlannerHarness) -> None:
    await planner.submit_families({"a": 3, "b": 2}, replace(PAIR, families=("b",)))

    def count(unit: PlanUnit) -> int:
        taskset = unit.taskset("ts")
        assert taskset is not None
        return num_groups(unit, replace(PAIR, families=("b", "d")), taskset)

    with pytest.raises(InvalidRequest, match="no family 'd'; it has a, b"):
        await planner.do(count)


async def test_draws_come_back_to_a_task_with_other_seeds(planner: PlannerHarness) -> None:
    await planner.submit_families({"a": 2}, replace(PAIR, group_size=2, draws=9))
    while await planner.plan_all():
        for row in [row for row in await planner.episodes() if row.is_unsettled]:
            await planner.apply(planner.graded(row.episode_id))
    asked = await requests(planner, planner.run_id)
    assert len(asked) == 18
    pairs = list(zip(asked[::2], asked[1::2], strict=True))
    assert all(mine.sampling.seed == other.sampling.seed for mine, other in pairs)
    assert len({mine.sampling.seed for mine, _ in pairs}) == 9
    assert {mine.episode.task_slug for mine, _ in pairs} == {"t0", "t1"}


def test_a_pair_survives_the_wire() -> None:
    spec = replace(PAIR, families=("a", "b"), draws=3)
    assert spec_from_wire(spec_to_wire(spec)) == spec
    assert spec.pinned_versions == (7, 5)
    assert replace(PAIR, against_version=None).pinned_versions == (7,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"against_version": 7},
            "against_version is 7, as the pinned version: a version is not its own rival",
        ),
        (
            {"group_size": 3},
            "group_size must be even where two versions play, got 3: half of its members are",
        ),
        ({"trainable": True}, "trainable does not go with against_version"),
        (
            {"policy": {"model": "m"}},
            "against_version 5 needs a version to stand against: set pinned_version",
        ),
        ({"families": ("a", "b", "a")}, "families names 'a' twice"),
        ({"draws": 0}, "draws must be >= 1 and <= 1000000, got 0"),
    ],
)
def test_what_cannot_be_played_side_by_side_is_refused_by_name(
    changes: dict[str, object], reason: str
) -> None:
    given = {
        "taskset": "ts",
        "purpose": "eval",
        "policy": {"model": "m", "pinned_version": 7},
        "group_size": 4,
        "against_version": 5,
    }
    with pytest.raises(RunConfigInvalid) as refused:
        checked(RunSpec, {**given, **changes})
    assert reason in str(refused.value)


@pytest.mark.parametrize("field", ["against_version", "families", "draws"])
def test_a_training_run_plays_no_pairs(field: str) -> None:
    given = {"taskset": "ts", "purpose": "train", "policy": {"model": "m"}, "group_size": 4}
    value = ("a",) if field == "families" else 3
    with pytest.raises(RunConfigInvalid, match=f"{field} is for purpose EVAL only"):
        checked(RunSpec, {**given, field: value})
