"""Candidates through the gate: promotion, holding, superseding, retries, restarts, races, rollback."""

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness, checkpoint, judge
from tests.services.checkpoint_registry.planner_double import GATE, HELD_OUT, PROFILE, evaluation_run

from blob_store import BlobRef
from checkpoint_registry.domain.errors import UnknownModel, VersionConflict
from checkpoint_registry.domain.models import Checkpoint, CheckpointState
from checkpoint_registry.domain.runs import RunOutcome, TasksetView, exact_name
from checkpoint_registry.usecases.rollback import RollbackPolicy
from upcycle.errors import Unavailable


async def test_a_better_candidate_becomes_head(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.EVALUATING
    (order,) = harness.planner.orders.values()  # both play side by side, in one run
    assert (order.version, order.against_version, order.attempts, order.families) == (1, 0, 2, ())
    assert order.profile == PROFILE
    assert await harness.reason(1) == "undecided: 40 tasks to be played up to 2 attempts"
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1
    assert await harness.state(1) is CheckpointState.PROMOTED
    assert (await harness.reason(1)).startswith("promoted: a gain above 0.0% is shown")
    assert "success 30.0% -> 90.0% on 40 tasks at 2 attempts a side" in await harness.reason(1)
    assert await harness.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]
    move = (await harness.models.head_moves(MODEL))[-1]
    assert (move.revision, move.actor, move.to_checkpoint_id) == (2, "gate", "ckpt-incident-v00000001")


async def test_a_candidate_that_is_no_better_is_held(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.4, head_rate=0.4)
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    assert (await harness.reason(1)).startswith("inconclusive: a gain above 0.0% is not shown")
    assert await harness.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.held/default/ckpt-incident-v00000001",
    ]


async def test_the_results_of_a_run_are_read_once_it_is_over(harness: RegistryHarness) -> None:
    """The gate asks about it every two seconds; an evaluation has thousands of results."""
    await harness.save(1)
    for _ in range(3):
        await harness.drive()
    assert len(harness.planner.orders) == 1
    assert harness.planner.read_whole == []
    await harness.finish(1, 0.9, 0.3)
    assert harness.planner.read_whole == [harness.planner.order_of(1)]


async def test_every_candidate_is_played_beside_head_anew(harness: RegistryHarness) -> None:
    """What selected a version is no evidence for or against it, and head is not measured once for all."""
    await judge(harness, 1, 0.6, head_rate=0.2)
    assert await harness.head() == 1
    await judge(harness, 2, 0.95, head_rate=0.6)
    played = [(order.version, order.against_version) for order in harness.planner.orders.values()]
    assert played == [(1, 0), (2, 1)]
    assert await harness.head() == 2
    seeds = {order.seed for order in harness.planner.orders.values()}
    assert len(seeds) == 2


async def test_an_evaluation_by_a_person_is_no_evidence_of_the_gate(harness: RegistryHarness) -> None:
    for version, rate in ((0, 0.0), (1, 1.0)):
        run = evaluation_run(f"run-by-ada-{version}", MODEL, version, PROFILE)
        harness.planner.runs[run.run_id] = run
        harness.planner.finish(run.run_id, rate, START)
        await harness.report(run.run_id)
    await judge(harness, 1, 0.4, head_rate=0.4)
    assert await harness.head() == 0


async def test_evidence_on_training_tasks_does_not_count(harness: RegistryHarness) -> None:
    harness.planner.tasksets["train"] = train = TasksetView("train", "e" * 64, False, 40)
    run = evaluation_run("run-leaky", MODEL, 0, PROFILE, train)
    harness.planner.runs[run.run_id] = run
    harness.planner.finish(run.run_id, 0.3, START)
    assert await harness.evidence.collect(run.run_id) is None


async def test_no_gate_leaves_a_candidate(harness: RegistryHarness) -> None:
    harness.planner.training_run("run-free", MODEL, gate=None)
    await harness.save(1, "run-free")
    await harness.drive()
    assert await harness.state(1) is CheckpointState.CANDIDATE
    said = await harness.reason(1)
    assert "asks for no gate; promote it with upcycle models head " in said
    assert " --set " in said


@pytest.mark.parametrize(("held_out", "why"), [(False, "is not held out"), (None, "is not registered")])
async def test_a_gate_on_the_wrong_taskset_holds(
    harness: RegistryHarness, held_out: bool | None, why: str
) -> None:
    harness.planner.tasksets.clear()
    if held_out is not None:
        harness.planner.tasksets[GATE.taskset] = TasksetView(GATE.taskset, "d" * 64, held_out, 40)
    await harness.save(1)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert why in await harness.reason(1)


async def test_only_the_newest_waiting_candidate_is_evaluated(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    for version in (2, 3, 4):
        await harness.save(version)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.EVALUATING
    assert [await harness.state(version) for version in (2, 3)] == [CheckpointState.HELD] * 2
    assert await harness.reason(2) == "superseded by v4 before it was evaluated"
    assert [order.version for order in harness.planner.orders.values()] == [1]
    await harness.finish(1, 0.5, 0.5)
    assert await harness.state(4) is CheckpointState.EVALUATING
    await harness.finish(4, 1.0, 0.5)
    assert await harness.head() == 4


async def test_a_redelivered_checkpoint_changes_nothing(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    events = await harness.events()
    assert not await harness.gate.record(checkpoint(1), "")
    await harness.drive()
    assert await harness.events() == events
    assert await harness.state(1) is CheckpointState.PROMOTED


async def test_a_version_is_never_reused(harness: RegistryHarness) -> None:
    await harness.save(1)
    with pytest.raises(VersionConflict, match="never reused"):
        await harness.save(1, digest="f" * 64)


async def test_a_checkpoint_of_an_unknown_model_is_refused(harness: RegistryHarness) -> None:
    stray = Checkpoint(
        "ckpt-other-v00000001", "other", 1, "", "d", BlobRef("k", "s", 1), CheckpointState.CANDIDATE, START
    )
    with pytest.raises(UnknownModel, match="other"):
        await harness.gate.record(stray, "")


@pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.CANCELLED])
async def test_a_failed_evaluation_is_tried_again_later(
    harness: RegistryHarness, outcome: RunOutcome
) -> None:
    await harness.save(1)
    await harness.drive()
    first = harness.planner.order_of(1)
    harness.planner.fail(first, outcome, "engine lost")
    await harness.report(first)
    assert harness.planner.order_of(1) == first
    harness.clock.forward(1.1)
    await harness.drive()
    assert harness.planner.order_of(1) != first
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1


async def test_a_candidate_is_judged_on_the_revision_that_its_job_began_with(
    harness: RegistryHarness,
) -> None:
    await harness.save(1)
    await harness.drive()
    first = harness.planner.order_of(1)
    harness.planner.tasksets = {"held-out": TasksetView("held-out", "e" * 64, True, 50, revision=3)}
    harness.planner.older = [HELD_OUT, TasksetView("held-out", "f" * 64, True, 45, revision=2)]
    harness.planner.asked.clear()
    harness.planner.fail(first, RunOutcome.FAILED, "engine lost")
    await harness.report(first)
    harness.clock.forward(1.1)
    await harness.drive()
    again = harness.planner.orders[harness.planner.order_of(1)]
    assert (again.taskset, harness.planner.orders[first].taskset) == ("held-out@1", "held-out@1")
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1
    assert set(harness.planner.asked) <= {"held-out@1"}


def test_a_revision_is_named_once() -> None:
    assert exact_name("held-out", 2) == "held-out@2"
    assert exact_name("held-out@2", 2) == "held-out@2"
    assert exact_name("held-out", 0) == "held-out"


async def test_an_evaluation_that_always_fails_holds_with_the_reason(harness: RegistryHarness) -> None:
    await harness.save(1)
    for _ in range(3):
        await harness.drive()
        run_id = harness.planner.order_of(1)
        harness.planner.fail(run_id, RunOutcome.FAILED, "no engine serves v1")
        await harness.report(run_id)
        harness.clock.forward(60)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert "in 3 tries" in await harness.reason(1)
    assert "no engine serves v1" in await harness.reason(1)
    assert await harness.events() == ["checkpoint.held/default/ckpt-incident-v00000001"]


async def test_a_refused_order_counts_as_a_try(harness: RegistryHarness) -> None:
    harness.planner.refusal = "taskset too large"
    await harness.save(1)
    for _ in range(4):
        await harness.drive()
        harness.clock.forward(60)
    assert await harness.state(1) is CheckpointState.HELD
    assert "taskset too large" in await harness.reason(1)


async def test_an_absent_planner_costs_nothing(harness: RegistryHarness) -> None:
    harness.planner.is_away = True
    await harness.save(1)
    for _ in range(5):
        with pytest.raises(Unavailable):
            await harness.drive()
    harness.planner.is_away = False
    await harness.drive()
    await harness.finish(1, 0.9, 0.3)
    assert await harness.head() == 1


async def test_a_restart_at_any_point_goes_on(harness: RegistryHarness) -> None:
    await harness.save(1)
    harness.restart()
    await harness.gate.advance(MODEL)
    harness.restart()
    await harness.gate.advance(MODEL)
    harness.restart()
    await harness.drive()
    harness.restart()
    # The event of the run's end was lost: polling finds the run.
    harness.planner.finish_pair(harness.planner.order_of(1), 0.9, 0.3, harness.clock())
    await harness.drive()
    harness.restart()
    await harness.drive()
    assert await harness.head() == 1
    assert len(harness.planner.orders) == 1
    assert await harness.events() == [
        "checkpoint.evaluated/default/ckpt-incident-v00000001",
        "checkpoint.promoted/default/incident/2",
    ]


async def test_head_moved_meanwhile_means_played_anew_against_the_new_head(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.5, head_rate=0.5)
    await harness.save(2)
    await harness.drive()
    first = harness.planner.order_of(2)
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=1, actor="ada", reason="a manual move", at=harness.clock()
    )
    await harness.drive()
    assert harness.planner.runs[first].outcome is RunOutcome.CANCELLED
    again = harness.planner.orders[harness.planner.order_of(2)]
    assert (again.version, again.against_version) == (2, 1)
    await harness.finish(2, 1.0, 0.5)
    assert await harness.head() == 2
    report = (await harness.models.version(MODEL, 2)).gate_json
    assert '"headCheckpointId": "ckpt-incident-v00000001"' in report


async def test_a_person_may_promote_what_is_being_evaluated(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=None, actor="ada", reason="trust me", at=harness.clock()
    )
    await harness.drive()
    assert await harness.state(1) is CheckpointState.PROMOTED
    assert await harness.reason(1) == "trust me"
    assert await harness.gates.models_with_open_jobs() == []


async def test_an_older_version_never_replaces_a_newer_head(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    await harness.save(5)
    target = await harness.models.version(MODEL, 5)
    await harness.models.move_head(
        target, expected_revision=None, actor="ada", reason="x", at=harness.clock()
    )
    await harness.drive()
    assert await harness.head() == 5
    assert "older than head v5" in await harness.reason(1)


async def later_evaluation(harness: RegistryHarness, version: int, rate: float, run_id: str) -> None:
    harness.clock.forward(60)
    harness.planner.runs[run_id] = evaluation_run(run_id, MODEL, version, PROFILE)
    harness.planner.finish(run_id, rate, harness.clock())
    await harness.report(run_id)


async def test_head_rolls_back_when_the_evidence_turns(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.5)
    await later_evaluation(harness, 1, 0.1, "run-later")
    assert await harness.head() == 0
    move = (await harness.models.head_moves(MODEL))[-1]
    assert (move.actor, move.revision) == ("gate", 3)
    assert "rolled back" in move.reason
    assert (await harness.events())[-1] == "checkpoint.rolled_back/default/incident/3"
    # And it stays: the same evidence never moves head forward again.
    await later_evaluation(harness, 0, 0.45, "run-after")
    assert await harness.head() == 0


async def test_evidence_that_was_stored_before_a_crash_still_counts(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.5)
    assert await harness.gates.models_evaluated_since_promotion() == []
    harness.clock.forward(60)
    harness.planner.runs["run-later"] = evaluation_run("run-later", MODEL, 1, PROFILE)
    harness.planner.finish("run-later", 0.1, harness.clock())
    await harness.evidence.collect("run-later")
    harness.restart()
    assert await harness.gates.models_evaluated_since_promotion() == [MODEL]
    await harness.drive()
    assert await harness.head() == 0
    assert await harness.gates.models_evaluated_since_promotion() == [], "head is another one now"


async def test_head_stays_when_it_is_merely_unlucky(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.5)
    await later_evaluation(harness, 1, 0.5, "run-later")
    assert await harness.head() == 1


async def test_a_manual_move_of_head_is_not_rolled_back(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.5, head_rate=0.5)
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=None, actor="ada", reason="x", at=harness.clock()
    )
    await later_evaluation(harness, 1, 0.0, "run-later")
    assert await harness.head() == 1


async def test_rollback_can_be_switched_off(harness: RegistryHarness) -> None:
    harness.rollback = RollbackPolicy(enabled=False)
    harness.restart()
    await judge(harness, 1, 0.9, head_rate=0.5)
    await later_evaluation(harness, 1, 0.0, "run-later")
    assert await harness.head() == 1
