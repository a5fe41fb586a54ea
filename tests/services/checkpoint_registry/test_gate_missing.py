"""What was not graded never helps a candidate: breaking an episode pays no more than losing it."""

from dataclasses import replace

from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness

from checkpoint_registry.domain.evidence import Evidence, Tally
from checkpoint_registry.domain.gate import is_significantly_worse
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.runs import EpisodeOutcome, RunOutcome, tally


def evidence(name: str, tallies: dict[str, Tally]) -> Evidence:
    return Evidence(name, (), len(tallies), tallies)


def families(**rates: tuple[int, int, int]) -> dict[str, Tally]:
    """Ten tasks per family with the same (successes, attempts, missing)."""
    return {
        f"{family}-{index}": Tally(family, *counts) for family, counts in rates.items() for index in range(10)
    }


def test_two_tasks_of_twenty_move_head_back_for_no_one() -> None:
    before = evidence("before", families(f0=(2, 2, 0), payments=(2, 2, 0)))
    few = {"f0-0": Tally("f0", 0, 2), "f0-1": Tally("f0", 0, 2), "f0-2": Tally("f0", 0, 0, missing=2)}
    assert not is_significantly_worse(evidence("now", few), before, 0.95)
    assert is_significantly_worse(evidence("now", families(f0=(0, 2, 0))), before, 0.95)  # a family is lost
    lost = evidence("old", families(f=(1, 1, 1)))  # to infrastructure, not to the policy
    assert not is_significantly_worse(lost, evidence("before", families(f=(2, 2, 0))), 0.95)


def test_ungraded_results_are_tallied_as_missing() -> None:
    rows = [
        EpisodeOutcome("a", "f", graded, success, 3, 3)
        for graded, success in ((True, True), (True, False), (False, False))
    ]
    assert tally([*rows, EpisodeOutcome("b", "g", False, False, 0, 0)]) == {
        "a": Tally("f", 1, 2, 1),
        "b": Tally("g", 0, 0, 1),
    }


async def test_what_is_missing_does_not_turn_a_verdict_that_it_cannot_turn(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(1, 0.9, 0.3, lost=1)
    assert await harness.head() == 1


async def test_a_candidate_that_loses_most_of_its_episodes_is_held_by_name(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(1, 1.0, 0.3, lost=50)  # 30 of 80 are graded, all of them successes
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    assert "evidence incomplete: 50 attempts lost to infrastructure" in await harness.reason(1)
    assert len(harness.planner.orders) == 1  # nothing is replayed until it fits


async def test_a_run_that_played_one_version_alone_is_a_failed_try(harness: RegistryHarness) -> None:
    """As a planner of 0.3.0 would, if it took the order."""
    await harness.save(1)
    await harness.drive()
    run_id = harness.planner.order_of(1)
    harness.planner.finish_pair(run_id, 0.9, 0.3, harness.clock())
    run = harness.planner.runs[run_id]
    alone = tuple(replace(one, oldest_version=1, newest_version=1) for one in run.results)
    harness.planner.runs[run_id] = replace(run, results=alone)
    await harness.report(run_id)
    (pair,) = await harness.pairs.of_judgement(f"ckpt-{MODEL}-v00000001", 1)
    assert pair.detail == f"run {run_id} sampled 't00' with another version than v0"
    assert await harness.state(1) is CheckpointState.EVALUATING


async def test_a_run_without_a_single_grade_is_a_failed_try(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    run_id = harness.planner.order_of(1)
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(run, outcome=RunOutcome.COMPLETED, finished_at=harness.clock())
    await harness.report(run_id)
    (pair,) = await harness.pairs.of_judgement(f"ckpt-{MODEL}-v00000001", 1)
    assert pair.detail == f"run {run_id} graded none of its 0 episodes"
