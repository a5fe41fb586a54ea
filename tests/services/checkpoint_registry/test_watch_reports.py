"""What `GetHeadWatch` says of the watch of a head."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.watch_recipes import BATCH, finish_watch, promoted, watched

from checkpoint_registry.domain.errors import UnknownModel
from checkpoint_registry.domain.runs import RunOutcome, TrainingLoad
from checkpoint_registry.usecases.watch_reports import WatchReport
from checkpoint_registry.usecases.watch_turns import WatchPolicy


@pytest.fixture
def harness(harness: RegistryHarness) -> RegistryHarness:
    """Whose heads are watched."""
    return watched(harness)


async def test_a_watch_that_is_off_says_which_setting_turns_it_off(harness: RegistryHarness) -> None:
    harness.watch_policy = WatchPolicy(enabled=False)
    harness.restart()
    await promoted(harness)
    said = await harness.reports.of(MODEL)
    assert (said.pairs_wanted, said.run_id) == (0, "")
    assert "CHECKPOINT_REGISTRY_WATCH_PAIRS is 0" in said.waits_for


async def test_a_head_that_never_moved_has_none_before_it(harness: RegistryHarness) -> None:
    said = await harness.reports.of(MODEL)
    assert (said.head_version, said.pairs_wanted) == (0, 0)
    assert "there is no head before it" in said.waits_for


async def test_a_model_that_is_unknown_is_named(harness: RegistryHarness) -> None:
    with pytest.raises(UnknownModel, match="nothing-like-it"):
        await harness.reports.of("nothing-like-it")


async def test_pairs_are_counted_and_the_run_that_plays_more_is_named(harness: RegistryHarness) -> None:
    await promoted(harness)
    await finish_watch(harness, won=4, lost=1)
    last = list(harness.planner.orders)[-1]
    assert await harness.reports.of(MODEL) == WatchReport(
        head_version=1, predecessor_version=0, pairs=BATCH, pairs_wanted=1000, worse=1, better=4, run_id=last
    )


async def test_what_a_watch_waits_for_is_said(harness: RegistryHarness) -> None:
    harness.planner.training = [TrainingLoad("run-train", 100.0, 80, START)]
    await promoted(harness)
    said = await harness.reports.of(MODEL)
    assert (said.pairs, said.run_id) == (0, "")
    assert said.waits_for.startswith("training run run-train took 100.0 s of engines and the watch 0.0 s")
    await harness.save(2)
    assert (await harness.reports.of(MODEL)).waits_for == "candidates of the model come first"


async def test_a_watch_that_played_its_pairs_says_when_more_follow(harness: RegistryHarness) -> None:
    harness.watch_policy = WatchPolicy(pairs=BATCH)
    harness.restart()
    await promoted(harness)
    await finish_watch(harness, won=0, lost=0)
    said = await harness.reports.of(MODEL)
    assert (said.pairs, said.run_id) == (BATCH, "")
    assert said.waits_for.startswith("it played its pairs; more at 20")


async def test_a_run_that_brought_nothing_is_named_with_its_reason(harness: RegistryHarness) -> None:
    await promoted(harness)
    run_id = list(harness.planner.orders)[-1]
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(run, outcome=RunOutcome.FAILED, failure="no engine came")
    await harness.drive()
    assert (
        "its last run brought nothing (no engine came); more at"
        in (await harness.reports.of(MODEL)).waits_for
    )
