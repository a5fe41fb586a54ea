"""Head is watched after it moved: what is ordered, what moves it back, and what comes first."""

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import HELD_OUT, PlannerDouble
from tests.services.checkpoint_registry.watch_recipes import BATCH, finish_watch, played, promoted, watched

from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.runs import EvaluationRun, RunOutcome
from checkpoint_registry.domain.watches import pairs_of
from checkpoint_registry.settings import CheckpointRegistrySettings
from checkpoint_registry.usecases.watch_turns import WatchPolicy
from checkpoint_registry.usecases.watching import WatchHeads
from upcycle.errors import Unavailable
from upcycle.gate.watch import Pair, Play, Trigger


@pytest.fixture
def harness(harness: RegistryHarness) -> RegistryHarness:
    """Whose heads are watched."""
    return watched(harness)


async def test_a_promoted_head_plays_drawn_pairs_beside_its_predecessor(harness: RegistryHarness) -> None:
    await promoted(harness)
    order = list(harness.planner.orders.values())[-1]
    assert (order.version, order.against_version, order.attempts) == (1, 0, 1)
    assert (order.draws, order.families, order.max_concurrent) == (BATCH, (), 8)
    assert order.label == f"watch {MODEL}@v1 against v0"
    await finish_watch(harness, 3, 3)
    again = list(harness.planner.orders.values())[-1]
    assert again.seed != order.seed  # drawn anew
    assert await harness.head() == 1


async def test_a_head_that_is_worse_goes_back_with_its_evidence_and_stays_back(
    harness: RegistryHarness,
) -> None:
    await promoted(harness)
    await finish_watch(harness, 2, 30)
    assert await harness.head() == 0
    move = (await harness.models.head_moves(MODEL))[-1]
    assert (move.actor, move.revision) == ("gate", 3)
    assert move.reason == (
        "rolled back: over 50 drawn pairs v1 did worse than v0 before it (success: worse in 30, better in 2)"
        "; an equal head is taken back with at most 1%"
    )
    assert (await harness.events())[-1] == "checkpoint.rolled_back/default/incident/3"
    num_orders = len(harness.planner.orders)
    await harness.drive()
    assert (await harness.head(), len(harness.planner.orders)) == (0, num_orders)


async def test_an_equal_head_stays_for_a_thousand_pairs_and_is_looked_at_ever_after(
    harness: RegistryHarness,
) -> None:
    await promoted(harness)
    before = len(harness.planner.orders)
    for _ in range(20):
        await finish_watch(harness, 10, 10)
    assert await harness.head() == 1
    assert len(harness.planner.orders) == before + 19  # a thousand pairs, and none after them
    harness.clock.forward(3600)
    await harness.drive()
    assert len(harness.planner.orders) == before + 20  # then a run each hour


async def test_a_head_that_a_person_set_is_watched_too(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.4, head_rate=0.4)
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=None, actor="ada", reason="x", at=harness.clock()
    )
    await harness.drive()
    await finish_watch(harness, 0, 30)
    assert await harness.head() == 0


async def test_a_head_that_fails_more_often_goes_back_whatever_its_success(harness: RegistryHarness) -> None:
    await promoted(harness)
    await finish_watch(harness, 20, 20, failed=20)
    assert await harness.head() == 0
    assert "(failed: worse in 20, better in 0)" in (await harness.models.head_moves(MODEL))[-1].reason


async def test_a_candidate_comes_before_the_watch(harness: RegistryHarness) -> None:
    await promoted(harness)
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.EVALUATING
    watch_run = [run_id for run_id, order in harness.planner.orders.items() if order.draws][-1]
    num_watches = sum(order.draws is not None for order in harness.planner.orders.values())
    run = harness.planner.runs[watch_run]
    pairs = tuple(
        played(version, member, at, success=True)
        for at in range(BATCH)
        for member, version in ((0, 1), (1, 0))
    )
    harness.planner.runs[watch_run] = replace(run, outcome=RunOutcome.COMPLETED, results=pairs)
    await harness.drive()
    assert sum(order.draws is not None for order in harness.planner.orders.values()) == num_watches
    await harness.decide(2, 0.9, 0.9)
    assert sum(order.draws is not None for order in harness.planner.orders.values()) == num_watches + 1


@pytest.mark.parametrize("ending", [RunOutcome.FAILED, RunOutcome.CANCELLED])
async def test_a_watch_run_that_fails_is_tried_again_later_and_says_nothing(
    harness: RegistryHarness, ending: RunOutcome
) -> None:
    await promoted(harness)
    first = list(harness.planner.orders)[-1]
    harness.planner.fail(first, ending, "no engine")
    await harness.drive()
    assert list(harness.planner.orders)[-1] == first
    harness.clock.forward(61)
    await harness.drive()
    assert list(harness.planner.orders)[-1] != first
    assert await harness.head() == 1


async def test_a_watch_on_tasks_that_are_gone_orders_nothing(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.4, head_rate=0.4)
    harness.planner.tasksets = {HELD_OUT.name: replace(HELD_OUT, digest="e" * 64)}
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=None, actor="ada", reason="x", at=harness.clock()
    )
    before = len(harness.planner.orders)
    await harness.drive()
    assert len(harness.planner.orders) == before


async def test_the_watch_can_be_switched_off(harness: RegistryHarness) -> None:
    harness.watch_policy = WatchPolicy(enabled=False)
    harness.restart()
    await promoted(harness)
    assert all(order.draws is None for order in harness.planner.orders.values())


def test_a_pair_of_which_a_side_was_lost_is_left_out() -> None:
    rows = [
        played(2, 0, 0, success=True),
        played(1, 1, 0, success=False, failure_kind="policy_unreadable"),
        played(2, 0, 1, success=True),
        played(1, 1, 1, success=False, graded=False),
        played(2, 0, 2, success=False),
    ]
    unreadable = frozenset({Trigger.FAILED, Trigger.UNREADABLE})
    assert pairs_of(rows) == (Pair("family-0", Play(True), Play(False, unreadable)),)


async def test_a_run_whose_results_are_never_read_ends_with_its_deadline(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planner is there, and what it has of this run is too much for a message each time."""
    await promoted(harness)
    first = list(harness.planner.orders)[-1]
    answer = PlannerDouble.run

    async def run(self: PlannerDouble, run_id: str, *, include_results: bool = False) -> EvaluationRun | None:
        if run_id == first:
            raise Unavailable("RESOURCE_EXHAUSTED")
        return await answer(self, run_id, include_results=include_results)

    monkeypatch.setattr(PlannerDouble, "run", run)
    harness.clock.forward(6 * 3600 + 1)
    await harness.drive()
    harness.clock.forward(61)
    await harness.drive()
    assert list(harness.planner.orders)[-1] != first


async def test_a_watch_that_is_refused_each_time_is_asked_for_less_and_less_often(
    harness: RegistryHarness,
) -> None:
    """As when the predecessor's files are gone: a row a minute was kept, and all were read at each look."""
    await promoted(harness)
    harness.planner.fail(list(harness.planner.orders)[-1], RunOutcome.FAILED, "no engine")
    harness.planner.refusal = "version 0 was removed"
    for _ in range(40):
        harness.clock.forward(61)
        await harness.drive()
    assert len(await harness.watches.runs(MODEL, 2)) < 9


SHADOW = "shadow_disagrees: 12% of 100 episodes"


async def lost(harness: RegistryHarness) -> str:
    """Head loses its pairs until it is back; the reason of that."""
    for _ in range(3):
        if await harness.head() == 0:
            break
        await finish_watch(harness, 0, BATCH)
    assert await harness.head() == 0
    return (await harness.models.head_moves(MODEL))[-1].reason


async def test_a_bad_head_goes_back_and_its_reason_names_the_open_alarms(harness: RegistryHarness) -> None:
    await promoted(harness)
    harness.alarms.raised[list(harness.planner.orders)[-1]] = SHADOW
    harness.alarms.raised["run-train"] = "leak_shown: 2 episodes"
    reason = await lost(harness)
    assert "leak_shown of run run-train: 2 episodes" in reason
    assert ": 12% of 100 episodes" in reason
    assert "more alarms may come" not in reason


async def test_a_bad_head_does_not_wait_for_monitors_that_are_behind(harness: RegistryHarness) -> None:
    await promoted(harness)
    harness.alarms.unseen = "its monitors have not seen 7 episodes yet"
    assert (await lost(harness)).endswith("; more alarms may come: its monitors have not seen 7 episodes yet")


async def test_a_bad_head_goes_back_at_once_though_alarms_cannot_be_read(harness: RegistryHarness) -> None:
    """A run without its alarms still says who succeeded; a store that is down must not keep a bad head."""
    await promoted(harness)
    await finish_watch(harness, 5, 5)
    harness.alarms.raised[list(harness.planner.orders)[-2]] = SHADOW
    harness.clock.forward(61)
    await harness.drive()
    harness.alarms.is_down = True
    reason = await lost(harness)
    assert SHADOW.partition(": ")[2] in reason
    assert reason.endswith("; its alarms could not be read")


async def test_an_alarm_that_comes_after_its_run_was_read_is_counted(
    harness: RegistryHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await promoted(harness)
    first = list(harness.planner.orders)[-1]
    await finish_watch(harness, 5, 5)
    assert (await harness.watches.runs(MODEL, 2))[0].detail == ""
    harness.alarms.raised[first] = SHADOW
    for _ in range(3):
        harness.clock.forward(61)
        await harness.drive()
    assert (await harness.watches.runs(MODEL, 2))[
        0
    ].detail == f"shadow_disagrees of run {first}: 12% of 100 episodes"
    assert open_alarms() == 1
    assert [one.msg for one in caplog.records].count("watch_alarmed") == 1
    harness.alarms.raised.clear()  # the monitor clears it, or a person dismisses it
    harness.clock.forward(61)
    await harness.drive()
    assert (await harness.watches.runs(MODEL, 2))[0].detail == ""
    assert open_alarms() == 0


def open_alarms() -> float | None:
    return REGISTRY.get_sample_value("upcycle_registry_watch_alarms", {"model": MODEL})


async def test_an_alarm_alone_moves_nothing(harness: RegistryHarness) -> None:
    """A better head may differ more often from a shadow grader; an alarm names the newest episodes only."""
    await promoted(harness)
    for _ in range(6):
        harness.alarms.raised[list(harness.planner.orders)[-1]] = SHADOW
        await finish_watch(harness, 5, 5)
        harness.clock.forward(61)
        await harness.drive()
    assert await harness.head() == 1


def test_at_tasks_without_a_solution_who_passes_counts_alone() -> None:
    traps = [
        played(2, 0, 0, success=True),
        played(1, 1, 0, success=False),
        played(2, 0, 1, success=False),
        played(1, 1, 1, success=False),
    ]
    hacked = frozenset({Trigger.HACKED})
    first, second = pairs_of([], traps)
    assert (first.family, first.head, first.predecessor) == ("", Play(False, hacked), Play(False))
    assert second == Pair("", Play(False), Play(False))


def test_head_is_watched_over_a_thousand_pairs_unless_a_setting_says_otherwise() -> None:
    assert CheckpointRegistrySettings.model_fields["watch_pairs"].default == 1000


async def test_pairs_of_a_head_are_called_off_when_another_one_follows(harness: RegistryHarness) -> None:
    """They say nothing of it, and would share the engines with its own."""
    await promoted(harness)
    first = list(harness.planner.orders)[-1]
    base = await harness.models.version(MODEL, 0)
    await harness.models.move_head(
        base, expected_revision=2, actor="a person", reason="for now", at=harness.clock()
    )
    harness.restart()
    harness.planner.is_away = True
    with pytest.raises(Unavailable):
        await harness.drive()
    harness.planner.is_away = False
    await harness.drive()
    run = harness.planner.runs[first]
    assert (run.outcome, run.failure) == (RunOutcome.CANCELLED, "head moved, to v0")
    assert await harness.watches.open_before(MODEL, 3) == []
    assert list(harness.planner.orders)[-1] == first, "a head that moved back is not watched"


async def test_a_watch_goes_on_where_the_clock_was_set_back(harness: RegistryHarness) -> None:
    harness.watch_policy = WatchPolicy(pairs=BATCH, trickle_s=3600.0)
    harness.restart()
    await promoted(harness)
    await finish_watch(harness, 1, 1)
    num_orders = len(harness.planner.orders)
    harness.clock.forward(-7 * 24 * 3600)
    await harness.drive()
    assert len(harness.planner.orders) == num_orders + 1, "not a week from now"


async def test_replicas_order_once_and_roll_back_once(harness: RegistryHarness) -> None:
    await promoted(harness)
    run_id, order = list(harness.planner.orders.items())[-1]
    others = [
        WatchHeads(harness.watches, harness.models, harness.planner, harness.watch_policy, now=harness.clock)
        for _ in range(3)
    ]
    results = [
        played(version, member, at, success=at >= 30 * (1 - member))
        for at in range(BATCH)
        for member, version in ((0, order.version), (1, order.against_version))
    ]
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(run, outcome=RunOutcome.COMPLETED, results=tuple(results))
    moves = await asyncio.gather(*(one.consider(MODEL) for one in others * 3))
    assert len([move for move in moves if move is not None]) == 1
    assert len(await harness.models.head_moves(MODEL)) == 3
    assert list(harness.planner.orders)[-1] == run_id
