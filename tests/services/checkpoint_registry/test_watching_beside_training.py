"""The watch of head while training runs sample: its tenth of the engines, and what makes way for what."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness
from tests.services.checkpoint_registry.watch_recipes import BATCH, played, promoted, watched

from checkpoint_registry.domain.jobs import RequestState
from checkpoint_registry.domain.runs import RunOutcome, TrainingLoad
from checkpoint_registry.domain.watches import WatchRun, pairs_beside
from checkpoint_registry.wire import runs as wire
from upcycle.api.common.v1 import common_pb2


@pytest.fixture
def harness(harness: RegistryHarness) -> RegistryHarness:
    """Whose heads are watched."""
    return watched(harness)


def training(engine_s: float, num_episodes: int) -> TrainingLoad:
    return TrainingLoad("run-train", engine_s, num_episodes, START)


@pytest.mark.parametrize(
    ("loads", "spent_s", "pairs"),
    [
        ([], 900.0, 50),  # nothing trains: what was spent before is no matter
        ([training(0.0, 0)], 0.0, 0),  # nothing is known yet
        ([training(100.0, 80)], 0.0, 0),  # a tenth is 10 s, 4 pairs of 2.5 s
        ([training(125.0, 100)], 0.0, 5),
        ([training(250.0, 200)], 12.5, 5),
        ([training(250.0, 200)], 13.0, 0),
        ([training(5000.0, 4000)], 0.0, 50),
        ([training(125.0, 100), training(125.0, 100)], 0.0, 10),
    ],
)
def test_beside_training_the_watch_takes_a_tenth_of_the_engines_at_most(
    loads: list[TrainingLoad], spent_s: float, pairs: int
) -> None:
    assert pairs_beside(loads, spent_s, 50) == pairs


async def test_a_watch_waits_for_its_tenth_and_plays_one_pair_at_a_time_beside_training(
    harness: RegistryHarness,
) -> None:
    harness.planner.training = [training(100.0, 80)]
    await promoted(harness)
    assert all(order.draws is None for order in harness.planner.orders.values())
    harness.planner.training = [training(150.0, 120)]
    await harness.drive()
    run_id, order = list(harness.planner.orders.items())[-1]
    assert (order.draws, order.max_concurrent) == (6, 2)
    pairs = tuple(
        played(version, member, at, success=True) for at in range(6) for member, version in ((0, 1), (1, 0))
    )
    harness.clock.forward(1)
    run = harness.planner.runs[run_id]
    harness.planner.runs[run_id] = replace(
        run, outcome=RunOutcome.COMPLETED, finished_at=harness.clock(), results=pairs, engine_s=15.0
    )
    harness.planner.training = [training(250.0, 200)]  # 25 s, of which 15 are spent: 4 pairs
    await harness.drive()
    assert list(harness.planner.orders)[-1] == run_id
    harness.planner.training = []
    await harness.drive()
    order = list(harness.planner.orders.values())[-1]
    assert (order.draws, order.max_concurrent) == (BATCH, 8)


def watch_orders(harness: RegistryHarness) -> list[str]:
    return [run_id for run_id, order in harness.planner.orders.items() if order.draws]


async def test_pairs_ordered_while_nothing_trained_make_way_for_a_training_run(
    harness: RegistryHarness,
) -> None:
    """Else the new run shares its engines with 50 pairs, four at a time."""
    await promoted(harness)
    (wide,) = watch_orders(harness)
    assert (harness.planner.orders[wide].draws, harness.planner.orders[wide].max_concurrent) == (BATCH, 8)
    harness.restart()  # what it was ordered beside is stored
    harness.planner.training = [training(0.0, 0)]
    await harness.drive()
    run = harness.planner.runs[wide]
    assert (run.outcome, run.failure) == (RunOutcome.CANCELLED, "it made way for training run run-train")
    assert watch_orders(harness) == [wide], "nothing until training took seconds of engines"
    harness.planner.training = [training(125.0, 100)]
    await harness.drive()
    order = harness.planner.orders[watch_orders(harness)[-1]]
    assert (order.draws, order.max_concurrent) == (5, 2), "no pause as after a failure, one pair at a time"
    assert (await harness.watches.runs(MODEL, 2))[0].pairs == ()
    harness.planner.training = [training(150.0, 120)]
    await harness.drive()
    assert harness.planner.runs[watch_orders(harness)[-1]].outcome is RunOutcome.UNFINISHED
    assert await harness.head() == 1


async def test_pairs_beside_one_training_run_make_way_for_another_and_are_charged(
    harness: RegistryHarness,
) -> None:
    harness.planner.training = [training(125.0, 100)]
    await promoted(harness)
    (narrow,) = watch_orders(harness)
    harness.planner.runs[narrow] = replace(harness.planner.runs[narrow], engine_s=12.0)
    second = TrainingLoad("run-second", 0.0, 0, START)
    harness.planner.training = [training(125.0, 100), second]
    await harness.drive()
    assert harness.planner.runs[narrow].outcome is RunOutcome.CANCELLED
    assert await harness.watches.engine_s(MODEL, START) == 12.0
    assert watch_orders(harness) == [narrow], "its tenth is spent"


@pytest.mark.parametrize("num_episodes", [0, 400])
async def test_beside_training_without_seconds_of_engines_the_watch_waits_and_says_so(
    harness: RegistryHarness, caplog: pytest.LogCaptureFixture, num_episodes: int
) -> None:
    harness.planner.training = [training(0.0, num_episodes)]
    with caplog.at_level("INFO"):
        await promoted(harness)
        caplog.clear()
        harness.restart()
        for _ in range(3):
            await harness.drive()
    assert watch_orders(harness) == []
    (said,) = [one for one in caplog.records if one.msg == "watch_waits"]
    assert f"run-train reports no seconds of engines (episodes ended: {num_episodes})" in vars(said)["detail"]
    harness.planner.training = []
    await harness.drive()
    assert len(watch_orders(harness)) == 1


async def test_the_watch_says_when_its_tenth_is_spent(
    harness: RegistryHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.planner.training = [training(100.0, 80)]
    with caplog.at_level("INFO"):
        await promoted(harness)
    said = [vars(one)["detail"] for one in caplog.records if one.msg == "watch_waits"]
    assert said[-1] == (
        "training run run-train took 100.0 s of engines and the watch 0.0 s of the 10.0 s that it may: "
        "5 pairs of about 2.5 s do not fit yet"
    )


async def test_pairs_that_fail_beside_training_are_charged_to_the_tenth(harness: RegistryHarness) -> None:
    harness.planner.training = [training(125.0, 100)]
    await promoted(harness)
    (first,) = watch_orders(harness)
    harness.planner.runs[first] = replace(harness.planner.runs[first], engine_s=12.5)
    harness.planner.fail(first, RunOutcome.FAILED, "no engine")
    harness.clock.forward(61)
    await harness.drive()
    harness.clock.forward(61)
    await harness.drive()
    assert watch_orders(harness) == [first]


async def test_pairs_whose_end_is_reported_before_it_is_recorded_made_way_all_the_same(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what they took while nothing trained fills the tenth of the training run, and the watch waits as
    after a failure."""
    await promoted(harness)
    (wide,) = watch_orders(harness)
    harness.planner.runs[wide] = replace(harness.planner.runs[wide], engine_s=100.0)
    cancel = harness.planner.cancel

    async def reported(run_id: str, reason: str) -> None:
        await cancel(run_id, reason)
        assert await harness.watching.collect(run_id)

    monkeypatch.setattr(harness.planner, "cancel", reported)
    harness.planner.training = [training(125.0, 100)]
    await harness.drive()
    first, second = await harness.watches.runs(MODEL, 2)
    assert (first.state, first.pairs) == (RequestState.FINISHED, ())
    assert harness.planner.orders[second.run_id].draws == 5
    assert await harness.watches.engine_s(MODEL, START) == 0.0


async def test_a_run_of_pairs_that_was_submitted_and_not_recorded_makes_way_too(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in between; then a training run begins, and the same request would have other figures."""

    async def crash(run: WatchRun) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(harness.watches, "add", crash)
        with pytest.raises(KeyboardInterrupt):
            await promoted(harness)
    (wide,) = watch_orders(harness)
    harness.planner.training = [training(125.0, 100)]
    harness.restart()
    await harness.drive()
    (run,) = await harness.watches.runs(MODEL, 2)
    assert (run.run_id, run.state, run.beside) == (wide, RequestState.SUBMITTED, ())
    await harness.drive()
    assert harness.planner.runs[wide].outcome is RunOutcome.CANCELLED
    assert harness.planner.orders[watch_orders(harness)[-1]].draws == 5


async def test_an_order_is_recognized_by_its_seed_among_others_of_the_same_versions(
    harness: RegistryHarness,
) -> None:
    await promoted(harness)
    first = list(harness.planner.orders.values())[-1]
    spec = wire.order_to_wire(replace(first, draws=7, max_concurrent=2)).spec
    assert wire.is_ordered_by(spec, first)
    assert not wire.is_ordered_by(spec, replace(first, seed=first.seed + 1))
    assert not wire.is_ordered_by(spec, replace(first, version=9))
    assert not wire.is_ordered_by(spec, replace(first, against_version=9))
    spec.purpose = common_pb2.PURPOSE_TRAIN
    assert not wire.is_ordered_by(spec, first)
