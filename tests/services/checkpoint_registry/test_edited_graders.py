"""Attempts from before an edit of the environment are not judged together with those from after it."""

from dataclasses import replace

from tests.services.checkpoint_registry.conftest import RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import GATE

FOUR = replace(GATE, attempts=4)


async def test_what_was_played_before_an_edit_is_played_again(harness: RegistryHarness) -> None:
    harness.planner.training_run("run-four", "incident", FOUR)
    await harness.save(1, "run-four")
    await harness.drive()
    await harness.finish(1, 0.55, 0.45)  # undecided after two attempts
    harness.planner.source_digest = "edited"
    second = harness.planner.order_of(1)
    object.__setattr__(harness.planner.runs[second], "source_digest", "edited")
    await harness.finish(1, 0.55, 0.45)
    attempts = [order.attempts for order in harness.planner.orders.values()]
    assert attempts == [2, 2, 2]  # the edited source has two attempts of its own, and needs two more
    await harness.finish(1, 0.95, 0.15)
    assert await harness.head() == 1
    assert "at 4 attempts a side" in await harness.reason(1)


async def test_without_an_edit_attempts_add_up(harness: RegistryHarness) -> None:
    harness.planner.training_run("run-four", "incident", FOUR)
    harness.planner.source_digest = "same"
    await judge(harness, 1, 0.55, head_rate=0.45, run_id="run-four")
    assert [order.attempts for order in harness.planner.orders.values()] == [2, 2]
