"""Each state of a gate job ends: by an answer of the planner, by the tries, or by a deadline."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import GATE, PlannerDouble

from checkpoint_registry.domain.errors import PeerRefused
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.runs import RunOutcome
from checkpoint_registry.loops import GateLoop, GateLoopDeps, GateWakeups, RetentionLoop
from upcycle.errors import Unavailable

DEADLINE_S = 6 * 3600
TOO_LARGE = "RESOURCE_EXHAUSTED: message larger than max"


async def assert_another_try_promotes(harness: RegistryHarness, first: str) -> None:
    """After its backoff candidate 1 has another run than `first`, whose results make it head."""
    harness.clock.forward(60)
    await harness.drive()
    assert harness.planner.order_of(1) != first
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1


async def test_a_run_that_the_planner_forgot_costs_a_try_and_not_the_slot(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    first = harness.planner.order_of(1)
    del harness.planner.runs[first]
    await harness.drive()
    await assert_another_try_promotes(harness, first)


async def test_a_run_that_ended_before_its_order_was_stored_is_read_all_the_same(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(_: object) -> None:
        raise ConnectionAbortedError

    await harness.save(1)
    with monkeypatch.context() as crash:
        crash.setattr(harness.pairs, "add", killed)
        with pytest.raises(ConnectionAbortedError):
            await harness.drive()
    first = harness.planner.order_of(1)
    harness.planner.finish_pair(first, 0.9, 0.3, harness.clock())
    await harness.report(first)  # nothing knows yet that it is the gate's
    harness.restart()
    await harness.drive()
    await harness.drive()
    assert (await harness.head(), list(harness.planner.orders)) == (1, [first])


async def test_an_evaluation_past_its_deadline_is_cancelled_and_the_slot_is_free_after_all_tries(
    harness: RegistryHarness,
) -> None:
    await harness.save(1)
    await harness.drive()
    for _ in range(3):
        harness.clock.forward(DEADLINE_S - 60)
        await harness.drive()
        late = harness.planner.order_of(1)
        assert harness.planner.runs[late].outcome is RunOutcome.UNFINISHED
        harness.clock.forward(120)
        await harness.drive()
        assert harness.planner.runs[late].outcome is RunOutcome.CANCELLED
        harness.clock.forward(60)
        await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert f"run {late} did not end within 21600 s" in await harness.reason(1)
    assert await harness.gates.models_with_open_jobs() == []


async def test_results_that_can_never_be_read_cost_a_try_and_not_the_slot(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when they are larger than one message may be."""
    refuse_runs(monkeypatch, lambda run_id: run_id != "run-train", PeerRefused(TOO_LARGE))
    await harness.save(1)
    for _ in range(7):
        await harness.drive()
        harness.clock.forward(60)
    assert await harness.state(1) is CheckpointState.HELD
    assert "message larger than max" in await harness.reason(1)


async def test_results_that_never_come_in_time_keep_the_slot_until_the_deadline_only(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_runs(monkeypatch, lambda run_id: run_id != "run-train", Unavailable("DEADLINE_EXCEEDED"))
    await harness.save(1)
    await harness.drive()
    late = harness.planner.order_of(1)
    with pytest.raises(Unavailable):
        await harness.drive()
    harness.clock.forward(DEADLINE_S)
    await harness.drive()
    assert harness.planner.runs[late].outcome is RunOutcome.CANCELLED
    harness.clock.forward(60)
    await harness.drive()
    assert harness.planner.order_of(1) != late


async def test_a_training_run_that_can_never_be_read_holds_its_own_candidate_only(
    harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_runs(monkeypatch, lambda run_id: run_id == "run-odd", PeerRefused(TOO_LARGE))
    await harness.save(1, "run-odd")
    await harness.save(2)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert "message larger than max" in await harness.reason(1)
    assert await harness.state(2) is CheckpointState.EVALUATING


async def test_a_model_whose_gate_has_a_bug_delays_no_other_model(
    harness: RegistryHarness, caplog: pytest.LogCaptureFixture
) -> None:
    driven: list[str] = []

    class Gate:
        async def advance(self, model: str) -> bool:
            driven.append(model)
            if model == "broken":
                raise ZeroDivisionError("a bug")
            return False

    class Jobs:
        async def models_with_open_jobs(self) -> list[str]:
            return ["broken", MODEL]

        async def models_evaluated_since_promotion(self) -> list[str]:
            return []

    gate: Any = Gate()
    jobs: Any = Jobs()
    deps = GateLoopDeps(gate, harness.watch, harness.watching, jobs, harness.watches, GateWakeups())
    loop = GateLoop(deps, poll_s=1.0)
    with pytest.raises(Unavailable, match="gate of 'broken': ZeroDivisionError"):
        await loop._round()
    assert driven == ["broken", MODEL]
    assert [record.message for record in caplog.records if record.exc_info] == ["work_failed"]


async def test_a_bug_in_a_sweep_of_old_versions_does_not_end_the_loop() -> None:
    class Prune:
        async def sweep(self) -> dict[str, list[int]]:
            raise ZeroDivisionError("a bug")

    prune: Any = Prune()
    with pytest.raises(Unavailable, match="sweep of old versions: ZeroDivisionError"):
        await RetentionLoop(prune, every_s=1.0)._sweep()


def refuse_runs(monkeypatch: pytest.MonkeyPatch, is_refused: Callable[[str], bool], error: Exception) -> None:
    answer = PlannerDouble.run

    async def run(self: PlannerDouble, run_id: str, *, include_results: bool = False) -> Any:
        if is_refused(run_id):
            raise error
        return await answer(self, run_id, include_results=include_results)

    monkeypatch.setattr(PlannerDouble, "run", run)


async def test_a_run_that_two_drops_ended_has_no_more_candidates(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    run = harness.planner.runs["run-train"]
    fell = replace(run, ended_by_drops=True, failure="ended early: held fell twice in a row")
    harness.planner.runs["run-train"] = fell
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.HELD
    assert (await harness.reason(2)).startswith(
        "held: two drops of a tracked set ended run run-train: ended early"
    )
    assert await harness.state(1) is CheckpointState.EVALUATING  # it came before the drops, and is judged on


async def test_a_critical_family_that_a_later_revision_lacks_holds_the_candidate(
    harness: RegistryHarness,
) -> None:
    """The planner looked at the revision of its day; nothing would have protected the family."""
    gate = replace(GATE, critical=("family-0", "payments"))
    harness.planner.training_run("run-critical", MODEL, gate)
    await judge(harness, 1, 0.95, head_rate=0.3, run_id="run-critical")
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    assert "critical family 'payments' is not in the held-out set" in await harness.reason(1)
