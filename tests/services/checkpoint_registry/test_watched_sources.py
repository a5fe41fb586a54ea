"""The environment changes under a head: what it won before that does not outweigh what it loses since."""

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness
from tests.services.checkpoint_registry.watch_recipes import BATCH, finish_watch, promoted, watched

from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.watches import CHANGED_ALPHA, WatchRun, pairs_under, watch_of
from upcycle.gate.watch import ALPHA, Pair, Play

FIRST, EDITED = "a" * 64, "b" * 64
WON, LOST = Play(success=True), Play(success=False)


@pytest.fixture
def harness(harness: RegistryHarness) -> RegistryHarness:
    """Whose heads are watched, by a planner that knows the sources of environments."""
    harness.planner.source_digest = FIRST
    return watched(harness)


async def change_environment(harness: RegistryHarness) -> None:
    """What plays already is judged by the source from before, and ends."""
    harness.planner.source_digest = EDITED
    await finish_watch(harness, 30, 0)


async def test_a_head_that_won_for_long_goes_back_in_one_run_of_its_changed_environment(
    harness: RegistryHarness,
) -> None:
    await promoted(harness)
    for _ in range(10):
        await finish_watch(harness, 30, 0)
    await change_environment(harness)
    assert await harness.head() == 1
    await finish_watch(harness, 0, 30)
    assert await harness.head() == 0
    assert (await harness.models.head_moves(MODEL))[-1].reason == (
        f"rolled back: over 50 drawn pairs that its changed environment (source {EDITED[:12]}) judged v1 did "
        "worse than v0 before it (success: worse in 30, better in 0); an equal head is taken back with at "
        "most 1%"
    )


async def test_a_head_that_keeps_its_lead_in_the_changed_environment_stays(harness: RegistryHarness) -> None:
    await promoted(harness)
    await change_environment(harness)
    for _ in range(4):
        await finish_watch(harness, 12, 10)
    assert await harness.head() == 1


async def test_a_watch_that_rests_begins_again_when_the_environment_changes(harness: RegistryHarness) -> None:
    await promoted(harness)
    for _ in range(20):
        await finish_watch(harness, 10, 10)
    before = len(harness.planner.orders)
    harness.clock.forward(120)
    await harness.drive()
    assert len(harness.planner.orders) == before
    harness.planner.source_digest = EDITED
    harness.clock.forward(120)
    await harness.drive()
    assert len(harness.planner.orders) == before + 1
    await finish_watch(harness, 10, 10)
    assert len(harness.planner.orders) == before + 2  # it goes on without a rest


def watch_run(harness: RegistryHarness, source: str, *pairs: Pair) -> WatchRun:
    ids = "request", MODEL, 2, 0, "run"
    return WatchRun(*ids, RequestState.FINISHED, "", harness.clock(), pairs, source_digest=source)


def test_each_change_spends_less_so_that_any_number_of_them_spends_the_error_of_changes(
    harness: RegistryHarness,
) -> None:
    draw = Pair("a", WON, WON)
    runs = [watch_run(harness, f"source-{number}", draw) for number in range(200)]
    spent = [state.changed.alpha for at in range(2, 201) if (state := watch_of(["a"], runs[:at])).changed]
    assert spent[0] == pytest.approx(CHANGED_ALPHA / 2)
    assert sum(spent) == pytest.approx(CHANGED_ALPHA, rel=0.01)
    assert sum(spent) + ALPHA < 0.01


def test_an_environment_that_is_as_it_was_at_first_is_judged_by_all_pairs(harness: RegistryHarness) -> None:
    won = Pair("a", WON, LOST)
    runs = [watch_run(harness, source, won) for source in (FIRST, EDITED, FIRST)]
    assert watch_of(["a"], runs[:2]).newest.pairs == 1
    assert watch_of(["a"], runs).changed is None
    assert watch_of(["a"], runs).newest.pairs == 3


def test_pairs_of_an_unknown_source_count_for_every_one(harness: RegistryHarness) -> None:
    draw = Pair("a", WON, WON)
    runs = [watch_run(harness, source, *[draw] * BATCH) for source in ("", FIRST, EDITED)]
    assert (pairs_under(runs, EDITED), pairs_under(runs, "")) == (2 * BATCH, 3 * BATCH)
