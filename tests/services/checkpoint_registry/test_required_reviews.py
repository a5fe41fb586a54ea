"""`require_review`: what passed its gate becomes head once people confirmed trajectories of its run."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import select
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import GATE, HELD_OUT

from checkpoint_registry.adapters import tables
from checkpoint_registry.domain.models import CheckpointState

NEEDED = 3


@pytest.fixture(autouse=True)
def reviewed_run(harness: RegistryHarness) -> None:
    harness.planner.training_run("run-train", MODEL, replace(GATE, require_review=NEEDED))


async def passed(harness: RegistryHarness, version: int = 1) -> None:
    await judge(harness, version, 0.95, head_rate=0.3)


async def spent_levels(harness: RegistryHarness) -> list[bool]:
    return await harness.pairs.tests("run-train")


async def test_a_candidate_that_passed_is_held_and_says_for_whom_it_waits(harness: RegistryHarness) -> None:
    await passed(harness)
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    said = (
        "held: a person confirmed 0 of the 3 highest-rewarded trajectories that run-train asks for "
        "(upcycle trajectories review run-train)"
    )
    assert (await harness.reason(1)).startswith(f"{said}; without that it would be promoted: a gain")
    query = select(tables.checkpoint.c.gate_json).where(tables.checkpoint.c.version == 1)
    report = json.loads(await harness.database.run(lambda one: str(one.execute(query).scalar_one())))
    assert report["verdict"] == "hold"
    assert report["reason"].startswith(said)
    assert await spent_levels(harness) == [False]  # its level is spent
    assert f"checkpoint.held/default/ckpt-{MODEL}-v00000001" in await harness.events()


async def test_it_becomes_head_once_enough_are_confirmed_also_after_a_restart(
    harness: RegistryHarness,
) -> None:
    await passed(harness)
    harness.alarms.confirmed = NEEDED - 1
    await harness.drive()
    assert await harness.head() == 0
    assert (await harness.reason(1)).startswith("held: a person confirmed 2 of the 3")
    harness.restart()
    harness.alarms.confirmed = NEEDED
    await harness.drive()
    assert await harness.head() == 1
    assert await harness.state(1) is CheckpointState.PROMOTED
    assert (await harness.reason(1)).startswith("promoted: a gain")
    assert await spent_levels(harness) == [True]
    assert await harness.gates.models_with_open_jobs() == []


async def test_what_was_confirmed_before_holds_nothing(harness: RegistryHarness) -> None:
    harness.alarms.confirmed = NEEDED
    await passed(harness)
    assert await harness.head() == 1


async def test_what_fails_its_gate_needs_no_review(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.3, head_rate=0.3)
    assert "a person confirmed" not in await harness.reason(1)
    assert await harness.gates.models_with_open_jobs() == []


async def test_it_keeps_neither_later_candidates_nor_the_watch_waiting(harness: RegistryHarness) -> None:
    await passed(harness, 1)
    assert not await harness.watches.has_candidates(MODEL)
    await passed(harness, 2)
    reason = "superseded by v2, which passed as well and waits for review"
    assert await harness.reason(1) == reason
    harness.alarms.confirmed = NEEDED
    await harness.drive()
    assert await harness.head() == 2


async def test_an_alarm_that_came_meanwhile_holds_it(harness: RegistryHarness) -> None:
    await passed(harness)
    harness.alarms.confirmed = NEEDED
    harness.alarms.raised["run-train"] = "leak_shown: 3%"
    await harness.drive()
    assert await harness.head() == 0
    assert (await harness.reason(1)).startswith("held: open alarm leak_shown")


async def test_who_waits_for_people_waits_for_the_monitors_after_that(harness: RegistryHarness) -> None:
    harness.alarms.unseen = "its monitors have not seen 3 episodes yet"
    await passed(harness)
    assert (await harness.reason(1)).startswith("held: a person confirmed 0 of the 3")
    harness.alarms.confirmed = NEEDED
    await harness.drive()
    assert await harness.head() == 0
    assert "waits until the monitors of reward hacks" in await harness.reason(1)
    harness.alarms.unseen = ""
    await harness.drive()
    assert await harness.head() == 1


async def test_confirmations_that_took_days_are_not_lost_to_a_moment_without_the_monitors(
    harness: RegistryHarness,
) -> None:
    """The hour of a candidate is long over when people have looked."""
    await passed(harness)
    harness.clock.forward(3 * 86400)
    harness.alarms.confirmed, harness.alarms.unseen = NEEDED, "its monitors have not seen 3 episodes yet"
    await harness.drive()
    assert "waits until the monitors of reward hacks" in await harness.reason(1)
    harness.alarms.unseen = ""
    await harness.drive()
    assert await harness.head() == 1


async def test_a_store_that_does_not_answer_is_named_and_keeps_no_other_candidate_waiting(
    harness: RegistryHarness,
) -> None:
    """What waited for review stopped the gate of its model while the reviews could not be read."""
    await passed(harness)
    harness.alarms.is_down = True
    harness.planner.training_run("run-other", MODEL)
    await harness.save(2, "run-other")
    await harness.drive()
    said = "held: it passed, and waits for trajectory_store, which does not answer: "
    assert (await harness.reason(1)).startswith(said)
    assert await harness.state(2) is CheckpointState.EVALUATING
    harness.alarms.is_down = False
    await harness.drive()
    assert (await harness.reason(1)).startswith("held: a person confirmed 0 of the 3")


async def test_a_head_that_moved_meanwhile_ends_the_wait(harness: RegistryHarness) -> None:
    await passed(harness, 2)
    harness.planner.training_run("run-other", MODEL)
    await judge(harness, 3, 0.95, head_rate=0.3, run_id="run-other")
    harness.alarms.confirmed = NEEDED
    await harness.drive()
    assert await harness.head() == 3
    assert (await harness.reason(2)).startswith("held: head moved while it waited for review; upcycle models")


async def test_interactive_training_that_takes_over_the_gate_needs_no_review(
    harness: RegistryHarness,
) -> None:
    await judge(harness, 1, 0.3, head_rate=0.3)
    await judge(harness, 2, 0.95, head_rate=0.3, run_id=f"interactive-{MODEL}")
    assert await harness.head() == 2


async def test_a_held_out_set_that_is_gone_keeps_no_later_candidate_waiting(harness: RegistryHarness) -> None:
    """What waits for review is read once more before it becomes head."""
    await passed(harness)
    harness.restart()  # the tasks are not remembered
    harness.alarms.confirmed = NEEDED
    harness.planner.tasksets["held-out"] = replace(HELD_OUT, digest="e" * 64, revision=2)
    await harness.drive()
    assert await harness.head() == 0
    assert (await harness.reason(1)).startswith("held-out taskset 'held-out@1' is no longer")
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.EVALUATING
