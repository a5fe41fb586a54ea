"""Candidates through the gate: promotion, holding, superseding, retries, restarts, races, rollback."""

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, Bench, checkpoint
from tests.services.checkpoint_registry.planner_double import GATE, HELD_OUT, PROFILE, evaluation_run, graded

from blob_store import BlobRef
from checkpoint_registry.domain.errors import UnknownModel, VersionConflict
from checkpoint_registry.domain.models import Checkpoint, CheckpointState
from checkpoint_registry.domain.runs import RunOutcome, TasksetView, exact_name
from checkpoint_registry.usecases.rollback import RollbackPolicy
from upcycle.errors import Unavailable


async def promote(bench: Bench, version: int, rate: float, *, head_rate: float | None = None) -> None:
    await bench.save(version)
    await bench.drive()
    await bench.finish(version, rate)
    if head_rate is not None:
        await bench.finish(await bench.head(), head_rate)


async def test_a_better_candidate_becomes_head(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    assert await bench.state(1) is CheckpointState.EVALUATING
    # Candidate and head are evaluated at once, on equal terms.
    orders = list(bench.planner.orders.values())
    assert [order.version for order in orders] == [1, 0]
    assert {(order.attempts, order.seed, order.profile) for order in orders} == {(2, orders[0].seed, PROFILE)}
    await bench.finish(1, 0.9)
    assert await bench.head() == 0
    await bench.finish(0, 0.3)
    assert await bench.head() == 1
    assert await bench.state(1) is CheckpointState.PROMOTED
    assert "promoted: success" in await bench.reason(1)
    assert await bench.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]
    move = (await bench.models.head_moves(MODEL))[-1]
    assert (move.revision, move.actor, move.to_checkpoint_id) == (2, "gate", "ckpt-incident-v00000001")


async def test_a_candidate_that_is_no_better_is_held(bench: Bench) -> None:
    await promote(bench, 1, 0.4, head_rate=0.4)
    assert await bench.head() == 0
    assert await bench.state(1) is CheckpointState.HELD
    assert (await bench.reason(1)).startswith("held: success")
    assert await bench.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.held/default/ckpt-incident-v00000001",
    ]


async def test_heads_evidence_is_gathered_once(bench: Bench) -> None:
    await promote(bench, 1, 0.4, head_rate=0.4)
    await promote(bench, 2, 0.95)
    assert await bench.head() == 2
    assert sum(order.version == 0 for order in bench.planner.orders.values()) == 1


async def test_what_promoted_a_version_is_its_evidence_as_head(bench: Bench) -> None:
    await promote(bench, 1, 0.6, head_rate=0.2)
    await promote(bench, 2, 1.0)
    assert await bench.head() == 2
    assert [order.version for order in bench.planner.orders.values()] == [1, 0, 2]


async def test_a_clients_baseline_counts_if_sampled_alike(bench: Bench) -> None:
    run = evaluation_run("run-baseline", MODEL, None, PROFILE)
    bench.planner.runs[run.run_id] = run
    bench.planner.finish(run.run_id, 0.3, START)
    await bench.report(run.run_id)
    await promote(bench, 1, 0.9)
    assert await bench.head() == 1
    assert [order.version for order in bench.planner.orders.values()] == [1]


async def test_a_baseline_of_several_versions_is_no_evidence(bench: Bench) -> None:
    run = evaluation_run("run-mixed", MODEL, None, PROFILE)
    bench.planner.runs[run.run_id] = run
    bench.planner.finish(run.run_id, 0.3, START)
    mixed = bench.planner.runs[run.run_id]
    results = mixed.results[:40] + graded(0.3, 1, 1, seed="x")
    object.__setattr__(mixed, "results", results)
    await bench.report(run.run_id)
    await bench.save(1)
    await bench.drive()
    assert [order.version for order in bench.planner.orders.values()] == [1, 0]


async def test_evidence_on_training_tasks_does_not_count(bench: Bench) -> None:
    bench.planner.tasksets["train"] = train = TasksetView("train", "e" * 64, False, 40)
    run = evaluation_run("run-leaky", MODEL, 0, PROFILE, train)
    bench.planner.runs[run.run_id] = run
    bench.planner.finish(run.run_id, 0.3, START)
    assert await bench.evidence.collect(run.run_id) is None


async def test_no_gate_leaves_a_candidate(bench: Bench) -> None:
    bench.planner.training_run("run-free", MODEL, gate=None)
    await bench.save(1, "run-free")
    await bench.drive()
    assert await bench.state(1) is CheckpointState.CANDIDATE
    assert "asks for no gate" in await bench.reason(1)
    assert bench.planner.orders == {}


@pytest.mark.parametrize(("held_out", "why"), [(False, "is not held out"), (None, "is not registered")])
async def test_a_gate_on_the_wrong_taskset_holds(bench: Bench, held_out: bool | None, why: str) -> None:
    bench.planner.tasksets.clear()
    if held_out is not None:
        bench.planner.tasksets[GATE.taskset] = TasksetView(GATE.taskset, "d" * 64, held_out, 40)
    await bench.save(1)
    await bench.drive()
    assert await bench.state(1) is CheckpointState.HELD
    assert why in await bench.reason(1)


async def test_only_the_newest_waiting_candidate_is_evaluated(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    for version in (2, 3, 4):
        await bench.save(version)
    await bench.drive()
    assert await bench.state(1) is CheckpointState.EVALUATING
    assert [await bench.state(version) for version in (2, 3)] == [CheckpointState.HELD] * 2
    assert await bench.reason(2) == "superseded by v4 before it was evaluated"
    assert {order.version for order in bench.planner.orders.values()} == {0, 1}
    await bench.finish(1, 0.5)
    await bench.finish(0, 0.5)
    assert await bench.state(4) is CheckpointState.EVALUATING
    await bench.finish(4, 1.0)
    assert await bench.head() == 4


async def test_a_redelivered_checkpoint_changes_nothing(bench: Bench) -> None:
    await promote(bench, 1, 0.9, head_rate=0.3)
    events = await bench.events()
    assert not await bench.gate.record(checkpoint(1), "")
    await bench.drive()
    assert await bench.events() == events
    assert await bench.state(1) is CheckpointState.PROMOTED


async def test_a_version_is_never_reused(bench: Bench) -> None:
    await bench.save(1)
    with pytest.raises(VersionConflict, match="never reused"):
        await bench.save(1, digest="f" * 64)


async def test_a_checkpoint_of_an_unknown_model_is_refused(bench: Bench) -> None:
    stray = Checkpoint(
        "ckpt-other-v00000001",
        "other",
        1,
        "",
        "d",
        BlobRef("k", "s", 1),
        CheckpointState.CANDIDATE,
        START,
    )
    with pytest.raises(UnknownModel, match="other"):
        await bench.gate.record(stray, "")


@pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.CANCELLED])
async def test_a_failed_evaluation_is_tried_again_later(bench: Bench, outcome: RunOutcome) -> None:
    await bench.save(1)
    await bench.drive()
    first = bench.planner.order_of(1)
    bench.planner.fail(first, outcome, "engine lost")
    await bench.report(first)
    assert bench.planner.order_of(1) == first
    bench.clock.forward(1.1)
    await bench.drive()
    assert bench.planner.order_of(1) != first
    await bench.finish(1, 0.9)
    await bench.finish(0, 0.3)
    assert await bench.head() == 1


async def test_a_candidate_is_judged_on_the_revision_that_its_job_began_with(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    first = bench.planner.order_of(1)
    bench.planner.tasksets = {"held-out": TasksetView("held-out", "e" * 64, True, 50, revision=3)}
    bench.planner.older = [HELD_OUT, TasksetView("held-out", "f" * 64, True, 45, revision=2)]
    bench.planner.asked.clear()
    bench.planner.fail(first, RunOutcome.FAILED, "engine lost")
    await bench.report(first)
    bench.clock.forward(1.1)
    await bench.drive()
    again = bench.planner.orders[bench.planner.order_of(1)]
    assert (again.taskset, bench.planner.orders[first].taskset) == ("held-out@1", "held-out@1")
    await bench.finish(1, 0.9)
    await bench.finish(0, 0.3)
    assert await bench.head() == 1
    assert bench.planner.asked == [
        "held-out@1",
        "held-out@1",
    ]  # once for each piece of evidence, never a list


def test_a_revision_is_named_once() -> None:
    assert exact_name("held-out", 2) == "held-out@2"
    assert exact_name("held-out@2", 2) == "held-out@2"
    assert exact_name("held-out", 0) == "held-out"


async def test_an_evaluation_that_always_fails_holds_with_the_reason(bench: Bench) -> None:
    await bench.save(1)
    for _ in range(3):
        await bench.drive()
        run_id = bench.planner.order_of(1)
        bench.planner.fail(run_id, RunOutcome.FAILED, "no engine serves v1")
        await bench.report(run_id)
        bench.clock.forward(60)
    await bench.drive()
    assert await bench.state(1) is CheckpointState.HELD
    assert "in 3 tries" in await bench.reason(1)
    assert "no engine serves v1" in await bench.reason(1)
    assert await bench.events() == ["checkpoint.held/default/ckpt-incident-v00000001"]


async def test_too_few_graded_episodes_are_topped_up(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    await bench.finish(0, 0.3)
    first = bench.planner.order_of(1)
    await bench.finish(1, 0.9, lost=30)
    bench.clock.forward(60)
    await bench.drive()
    assert bench.planner.order_of(1) != first
    await bench.finish(1, 0.9)
    assert await bench.head() == 1


async def test_a_few_lost_episodes_do_not_matter(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    await bench.finish(0, 0.3, lost=5)
    await bench.finish(1, 0.9, lost=5)
    assert await bench.head() == 1


async def test_a_refused_order_counts_as_a_try(bench: Bench) -> None:
    bench.planner.refusal = "taskset too large"
    await bench.save(1)
    for _ in range(4):
        await bench.drive()
        bench.clock.forward(60)
    assert await bench.state(1) is CheckpointState.HELD
    assert "taskset too large" in await bench.reason(1)


async def test_an_absent_planner_costs_nothing(bench: Bench) -> None:
    bench.planner.is_away = True
    await bench.save(1)
    for _ in range(5):
        with pytest.raises(Unavailable):
            await bench.drive()
    bench.planner.is_away = False
    await bench.drive()
    await bench.finish(1, 0.9)
    await bench.finish(0, 0.3)
    assert await bench.head() == 1


async def test_a_restart_at_any_point_goes_on(bench: Bench) -> None:
    await bench.save(1)
    bench.restart()
    await bench.gate.advance(MODEL)
    bench.restart()
    await bench.gate.advance(MODEL)
    bench.restart()
    await bench.drive()
    bench.restart()
    # The run ended while nobody listened: polling finds it.
    bench.planner.finish(bench.planner.order_of(1), 0.9, bench.clock())
    await bench.drive()
    bench.restart()
    bench.planner.finish(bench.planner.order_of(0), 0.3, bench.clock())
    await bench.drive()
    await bench.drive()
    assert await bench.head() == 1
    assert len(bench.planner.orders) == 2
    assert await bench.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]


async def test_head_moved_meanwhile_means_judged_again(bench: Bench) -> None:
    await promote(bench, 1, 0.5, head_rate=0.5)
    await bench.save(2)
    await bench.drive()
    target = await bench.models.version(MODEL, 1)
    await bench.models.move_head(target, expected_revision=1, actor="ada", reason="by hand", at=bench.clock())
    await bench.finish(2, 1.0)
    assert await bench.head() == 2
    report = (await bench.models.version(MODEL, 2)).gate_json
    assert '"headCheckpointId": "ckpt-incident-v00000001"' in report


async def test_a_person_may_promote_what_is_being_evaluated(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    target = await bench.models.version(MODEL, 1)
    await bench.models.move_head(
        target, expected_revision=None, actor="ada", reason="trust me", at=bench.clock()
    )
    await bench.drive()
    assert await bench.state(1) is CheckpointState.PROMOTED
    assert await bench.reason(1) == "trust me"
    assert await bench.gates.models_with_open_jobs() == []


async def test_an_older_version_never_replaces_a_newer_head(bench: Bench) -> None:
    await bench.save(1)
    await bench.drive()
    await bench.save(5)
    target = await bench.models.version(MODEL, 5)
    await bench.models.move_head(target, expected_revision=None, actor="ada", reason="x", at=bench.clock())
    await bench.drive()
    await bench.finish(5, 0.1)
    await bench.finish(1, 1.0)
    assert await bench.head() == 5
    assert "older than head v5" in await bench.reason(1)


async def later_evaluation(bench: Bench, version: int, rate: float, run_id: str) -> None:
    bench.clock.forward(60)
    bench.planner.runs[run_id] = evaluation_run(run_id, MODEL, version, PROFILE)
    bench.planner.finish(run_id, rate, bench.clock())
    await bench.report(run_id)


async def test_head_rolls_back_when_the_evidence_turns(bench: Bench) -> None:
    await promote(bench, 1, 0.9, head_rate=0.5)
    await later_evaluation(bench, 1, 0.1, "run-later")
    assert await bench.head() == 0
    move = (await bench.models.head_moves(MODEL))[-1]
    assert (move.actor, move.revision) == ("gate", 3)
    assert "rolled back" in move.reason
    assert (await bench.events())[-1] == "checkpoint.rolled_back/default/incident/3"
    # And it stays: the same evidence never moves head forward again.
    await later_evaluation(bench, 0, 0.45, "run-after")
    assert await bench.head() == 0


async def test_evidence_that_was_stored_before_a_crash_still_counts(bench: Bench) -> None:
    await promote(bench, 1, 0.9, head_rate=0.5)
    bench.clock.forward(60)
    bench.planner.runs["run-later"] = evaluation_run("run-later", MODEL, 1, PROFILE)
    bench.planner.finish("run-later", 0.1, bench.clock())
    await bench.evidence.collect("run-later")
    bench.restart()
    await bench.drive()
    assert await bench.head() == 0


async def test_head_stays_when_it_is_merely_unlucky(bench: Bench) -> None:
    await promote(bench, 1, 0.9, head_rate=0.5)
    await later_evaluation(bench, 1, 0.5, "run-later")
    assert await bench.head() == 1


async def test_a_manual_move_of_head_is_not_rolled_back(bench: Bench) -> None:
    await promote(bench, 1, 0.5, head_rate=0.5)
    target = await bench.models.version(MODEL, 1)
    await bench.models.move_head(target, expected_revision=None, actor="ada", reason="x", at=bench.clock())
    await later_evaluation(bench, 1, 0.0, "run-later")
    assert await bench.head() == 1


async def test_rollback_can_be_switched_off(bench: Bench) -> None:
    bench.rollback = RollbackPolicy(enabled=False)
    bench.restart()
    await promote(bench, 1, 0.9, head_rate=0.5)
    await later_evaluation(bench, 1, 0.0, "run-later")
    assert await bench.head() == 1
