"""Open alarms of the monitors of reward hacks hold what the gate would promote."""

import pytest
from tests.services.checkpoint_registry.conftest import RegistryHarness, judge

from checkpoint_registry.domain.models import CheckpointState
from upcycle.errors import Unavailable

ALARM = "shadow_disagrees: 30% succeeded by the reward's grader alone"


async def test_an_open_alarm_of_the_run_holds_its_candidate_and_says_so(harness: RegistryHarness) -> None:
    harness.alarms.raised["run-train"] = ALARM
    await judge(harness, 1, 0.9, head_rate=0.3)
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.HELD
    assert (await harness.reason(1)).startswith(
        "held: open alarm shadow_disagrees of run run-train: 30% succeeded by the reward's grader alone"
    )


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


UNSEEN = "its monitors have not seen 3 episodes yet"


async def passed_and_waits(harness: RegistryHarness) -> None:
    harness.alarms.unseen = UNSEEN
    await harness.save(1)
    await harness.drive()
    await harness.finish(1, 0.9, 0.3)


async def test_a_candidate_waits_for_monitors_that_are_behind_and_their_alarm_holds_it(
    harness: RegistryHarness,
) -> None:
    """It was promoted: the alarm of what played its pairs came a moment after the gate had asked."""
    await passed_and_waits(harness)
    run = harness.planner.order_of(1)
    assert await harness.head() == 0
    assert await harness.state(1) is CheckpointState.EVALUATING
    assert (await harness.reason(1)).endswith(f"trajectory_store says that {UNSEEN}")
    assert harness.alarms.seen_until > harness.clock()  # all that its runs said, on a clock that differs
    harness.alarms.unseen, harness.alarms.raised[run] = "", ALARM
    harness.clock.forward(5)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert (await harness.reason(1)).startswith(f"held: open alarm shadow_disagrees of run {run}")


async def test_a_candidate_is_promoted_once_the_monitors_have_seen_all_of_it(
    harness: RegistryHarness,
) -> None:
    await passed_and_waits(harness)
    harness.restart()
    await harness.drive()
    assert await harness.head() == 0
    harness.alarms.unseen = ""
    await harness.drive()
    assert await harness.head() == 1
    assert (await harness.reason(1)).startswith("promoted: ")


async def test_monitors_that_never_catch_up_hold_the_candidate_after_an_hour(
    harness: RegistryHarness,
) -> None:
    await passed_and_waits(harness)
    harness.clock.forward(3599)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.EVALUATING
    harness.clock.forward(2)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    reason = await harness.reason(1)
    assert reason.startswith("held: evidence incomplete: monitors of reward hacks have not seen all of its")
    assert f"after 3600 s trajectory_store says that {UNSEEN}; without that it would be promoted" in reason


async def test_restarts_make_the_hour_no_longer(harness: RegistryHarness) -> None:
    """Each process counted an hour of its own, so one that restarted every 50 minutes never held it."""
    await passed_and_waits(harness)
    harness.clock.forward(3000)
    harness.restart()
    await harness.drive()
    assert await harness.state(1) is CheckpointState.EVALUATING
    harness.clock.forward(601)
    harness.restart()
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    assert "monitors of reward hacks have not seen" in await harness.reason(1)


async def test_the_reason_says_what_is_unread_by_now(harness: RegistryHarness) -> None:
    await passed_and_waits(harness)
    harness.alarms.unseen = "its monitors have not seen 2 episodes yet"
    harness.clock.forward(5)
    await harness.drive()
    assert (await harness.reason(1)).endswith("have not seen 2 episodes yet")


async def unanswered(harness: RegistryHarness) -> None:
    """One look of the gate while the store does not answer: it is to be tried again."""
    with pytest.raises(Unavailable):
        await harness.drive()
    assert await harness.state(1) is CheckpointState.EVALUATING
    said = "it passed, and waits for trajectory_store, which does not answer: the trajectory store does not"
    assert (await harness.reason(1)).startswith(said)


async def passed_without_the_store(harness: RegistryHarness) -> None:
    harness.alarms.is_down = True
    await harness.save(1)
    await harness.drive()
    with pytest.raises(Unavailable):
        await harness.finish(1, 0.9, 0.3)


async def test_a_store_that_does_not_answer_is_named_and_after_an_hour_the_candidate_is_held(
    harness: RegistryHarness,
) -> None:
    """It waited for ever, and its reason was still that of the pairs that were played."""
    await passed_without_the_store(harness)
    harness.clock.forward(3599)
    await unanswered(harness)
    harness.clock.forward(2)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD
    reason = await harness.reason(1)
    assert reason.startswith("held: evidence incomplete: alarms of its runs could not be read; after 3600 s")
    assert "the trajectory store does not answer; without that it would be promoted: a gain" in reason
    harness.alarms.is_down = False
    await harness.drive()
    assert await harness.head() == 0


async def test_a_store_that_answers_again_within_the_hour_lets_it_become_head(
    harness: RegistryHarness,
) -> None:
    await passed_without_the_store(harness)
    harness.clock.forward(3000)
    await unanswered(harness)
    harness.alarms.is_down = False
    await harness.drive()
    assert await harness.head() == 1


async def test_a_store_that_starts_after_the_registry_holds_nothing(harness: RegistryHarness) -> None:
    """The whole platform was off for a night while a candidate waited."""
    await passed_without_the_store(harness)
    harness.clock.forward(8 * 3600)
    harness.restart()
    await unanswered(harness)
    harness.clock.forward(59)
    await unanswered(harness)
    harness.clock.forward(2)
    await harness.drive()
    assert await harness.state(1) is CheckpointState.HELD


async def test_what_fails_its_gate_waits_for_no_monitor(harness: RegistryHarness) -> None:
    harness.alarms.unseen = UNSEEN
    await judge(harness, 1, 0.3, head_rate=0.3)
    assert await harness.state(1) is CheckpointState.HELD
