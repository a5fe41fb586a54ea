"""A version that was rolled back, and what was trained from it, does not become head by the gate again."""

from dataclasses import replace

import pytest
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness, checkpoint, judge

from checkpoint_registry.domain.bars import bar_of
from checkpoint_registry.domain.models import CheckpointState, HeadMove
from identities.entities import checkpoint_id

PARENTS = {checkpoint_id(MODEL, version): checkpoint_id(MODEL, version - 1) for version in range(1, 7)}


def head_moves(*versions: tuple[int, str]) -> list[HeadMove]:
    """Head was at 0, then moved to each of these versions, by whom."""
    moves, at = [], 0
    for revision, (version, actor) in enumerate(versions, start=2):
        ids = checkpoint_id(MODEL, at), checkpoint_id(MODEL, version)
        moves.append(HeadMove(MODEL, revision, *ids, actor, "", START))
        at = version
    return moves


@pytest.mark.parametrize(
    ("moves", "barred"),
    [
        ([(2, "gate")], set()),
        ([(2, "gate"), (0, "gate")], {2, 3, 4, 5, 6}),
        ([(2, "gate"), (0, "ann")], set()),  # a person's step back says nothing about the line
        ([(2, "gate"), (0, "gate"), (4, "ann")], set()),  # and may take it in again
        ([(2, "gate"), (0, "gate"), (1, "ann")], {2, 3, 4, 5, 6}),  # not by a version before it
        ([(2, "gate"), (0, "gate"), (4, "ann"), (1, "gate")], {4, 5, 6}),
        ([(1, "gate"), (3, "gate"), (1, "gate")], {3, 4, 5, 6}),
    ],
)
def test_a_rollback_bars_a_version_and_its_line(moves: list[tuple[int, str]], barred: set[int]) -> None:
    made = head_moves(*moves)
    found = {version for version in range(7) if bar_of(checkpoint_id(MODEL, version), made, PARENTS)}
    assert found == barred


def test_a_line_that_ends_in_itself_ends() -> None:
    parents = {
        checkpoint_id(MODEL, 1): checkpoint_id(MODEL, 2),
        checkpoint_id(MODEL, 2): checkpoint_id(MODEL, 1),
    }
    assert bar_of(checkpoint_id(MODEL, 1), head_moves((3, "gate"), (0, "gate")), parents) is None


async def rolled_back(harness: RegistryHarness) -> None:
    """Head went from v1 back to v0 by the platform's own decision."""
    harness.clock.forward(1)
    target = await harness.models.version(MODEL, 0)
    await harness.models.move_head(
        target, expected_revision=None, actor="gate", reason="rolled back: worse", at=harness.clock()
    )


async def test_what_was_trained_from_a_version_that_was_rolled_back_is_held_unplayed(
    harness: RegistryHarness,
) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    await rolled_back(harness)
    num_orders = len(harness.planner.orders)
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.HELD
    reason = await harness.reason(2)
    assert reason.startswith(
        "held: trained from ckpt-incident-v00000001, which was rolled back at 2026-11-21"
    )
    assert "upcycle models head incident --set ckpt-incident-v00000002" in reason
    assert len(harness.planner.orders) == num_orders


async def test_a_rollback_holds_the_candidate_that_is_being_judged(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.EVALUATING
    await rolled_back(harness)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.HELD


async def test_a_run_that_began_from_head_after_the_rollback_is_judged(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    await rolled_back(harness)
    fresh = replace(checkpoint(2), parent_checkpoint_id=checkpoint_id(MODEL, 0))
    await harness.gate.record(fresh, "")
    await harness.drive()
    await harness.decide(2, 0.9, 0.3)
    assert await harness.head() == 2


async def test_a_person_takes_the_line_in_again(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.9, head_rate=0.3)
    await rolled_back(harness)
    harness.clock.forward(1)
    target = await harness.models.version(MODEL, 1)
    await harness.models.move_head(
        target, expected_revision=None, actor="ann", reason="it was the grader", at=harness.clock()
    )
    await harness.save(2)
    await harness.drive()
    assert await harness.state(2) is CheckpointState.EVALUATING
