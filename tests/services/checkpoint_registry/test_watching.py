"""Head is watched after it moved: what is ordered, what moves it back, and what comes first."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import HELD_OUT, TASKS, PlannerDouble

from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.runs import EpisodeOutcome, EvaluationRun, RunOutcome
from checkpoint_registry.domain.watches import pairs_of
from checkpoint_registry.usecases.watching import WatchPolicy
from upcycle.errors import Unavailable
from upcycle.gate.watch import Pair, Play, Trigger

BATCH = 50


async def finish_watch(harness: RegistryHarness, won: int, lost: int, *, failed: int = 0) -> None:
    """The newest watch run ends: in so many pairs only head succeeded, in so many only its predecessor, which
    alone in `failed` of these was no failure; alike in the others."""
    harness.clock.forward(1)
    run_id, order = list(harness.planner.orders.items())[-1]
    assert order.draws == BATCH
    results = []
    for at in range(BATCH):
        head, before = (at < won, won <= at < won + lost) if at < won + lost else (True, True)
        kind = "timeout" if won <= at < won + failed else ""
        results += [
            played(order.version, 0, at, success=head, failure_kind=kind),
            played(order.against_version, 1, at, success=before),
        ]
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(
        run, outcome=RunOutcome.COMPLETED, finished_at=harness.clock(), results=tuple(results)
    )
    assert await harness.watching.collect(run_id)
    await harness.drive()


def played(
    version: int, member: int, at: int, *, success: bool, failure_kind: str = "", graded: bool = True
) -> EpisodeOutcome:
    task = f"t{at % 40:02d}"
    group = f"run-watch-g{at:05d}"
    return EpisodeOutcome(task, TASKS[task], graded, success, version, version, member, group, failure_kind)


@pytest.fixture
def harness(harness: RegistryHarness) -> RegistryHarness:
    """Whose heads are watched."""
    harness.watch_policy = WatchPolicy()
    harness.restart()
    return harness


async def promoted(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 1


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
