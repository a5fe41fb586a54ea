"""Evidence from before an edit of the environment is not compared with evidence from after it."""

from tests.services.checkpoint_registry.conftest import RegistryHarness, promote


def versions(harness: RegistryHarness) -> list[int]:
    """Of every evaluation that was ordered."""
    return [order.version for order in harness.planner.orders.values()]


async def test_head_is_measured_again_after_an_edit(harness: RegistryHarness) -> None:
    await promote(harness, 1, 0.4, head_rate=0.4)
    harness.planner.source_digest = "edited"
    await harness.save(2)
    await harness.drive()
    assert versions(harness) == [1, 0, 2]
    await harness.finish(2, 0.9)
    await harness.drive()
    assert versions(harness) == [1, 0, 2, 0]
    assert await harness.head() == 0
    await harness.finish(0, 0.85)  # the edited grader pays head as well
    assert await harness.head() == 0
    assert (await harness.reason(2)).startswith("held: success 91.2% -> 90.0%")


async def test_a_candidate_that_was_measured_before_the_edit_is_measured_again(
    harness: RegistryHarness,
) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.finish(1, 0.9)
    harness.planner.source_digest = "edited"
    (head_run,) = [run_id for run_id, order in harness.planner.orders.items() if order.version == 0]
    object.__setattr__(harness.planner.runs[head_run], "source_digest", "edited")
    await harness.finish(0, 0.3)
    assert (await harness.head(), versions(harness)) == (0, [1, 0, 1])
    await harness.finish(1, 0.9)
    assert await harness.head() == 1


async def test_without_an_edit_evidence_of_head_is_taken_as_before(harness: RegistryHarness) -> None:
    harness.planner.source_digest = "same"
    await promote(harness, 1, 0.4, head_rate=0.4)
    await promote(harness, 2, 0.95)
    assert (await harness.head(), versions(harness)) == (2, [1, 0, 2])
