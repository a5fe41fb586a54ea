"""Open alarms of the monitors of reward hacks hold what the gate would promote."""

import pytest
from tests.services.checkpoint_registry.conftest import RegistryHarness, judge

from checkpoint_registry.domain.models import CheckpointState

ALARM = "shadow_disagrees of run run-train: 30% succeeded by the reward's grader alone"


async def test_an_open_alarm_of_the_run_holds_its_candidate_and_says_so(harness: RegistryHarness) -> None:
    harness.alarms.raised["run-train"] = ALARM
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    assert (await harness.reason(1)).startswith(f"held: open alarm {ALARM}")


async def test_an_alarm_of_the_candidates_evaluation_holds_it_as_well(harness: RegistryHarness) -> None:
    await harness.save(1)
    await harness.drive()
    harness.alarms.raised[harness.planner.order_of(1)] = "impossible_solved: 40%"
    await harness.finish(1, 0.9, 0.3)
    assert await harness.state(1) is CheckpointState.HELD
    assert harness.planner.order_of(1) in harness.alarms.asked[-1]


@pytest.mark.parametrize("raised", [{}, {"run-other": ALARM}], ids=["none", "of another run"])
async def test_other_alarms_hold_nothing(harness: RegistryHarness, raised: dict[str, str]) -> None:
    harness.alarms.raised.update(raised)
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 1


async def test_the_next_candidate_is_promoted_once_the_alarm_is_over(harness: RegistryHarness) -> None:
    harness.alarms.raised["run-train"] = ALARM
    await judge(harness, 1, 0.9, head_rate=0.3)
    harness.alarms.raised.clear()
    await judge(harness, 2, 0.9, head_rate=0.3)
    assert await harness.head() == 2
