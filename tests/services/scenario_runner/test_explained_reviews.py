"""`why` names a promotion that waits for people, for the monitors of reward hacks, or for their store."""

from dataclasses import replace

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import TRAIN, arith, register, run_spec, submit
from tests.services.scenario_runner.support import explain as why_of
from tests.services.scenario_runner.test_explaining import run_facts

from scenario_runner.domain.explain import explain
from scenario_runner.domain.runs import RunState
from upcycle.api.common.v1 import common_pb2
from upcycle.api.registry.v1.registry_pb2 import Checkpoint
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.gate.words import PASSED_AND_WAITS
from upcycle.run_config import Gate


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.COMPLETED])
def test_a_promotion_that_waits_for_people_is_named_also_after_the_run(state: RunState) -> None:
    facts = run_facts(num_confirmed=1)
    training = replace(facts.view.run.spec, gate=Gate("held", require_review=3))
    waiting = replace(
        facts, view=replace(facts.view, run=replace(facts.view.run, state=state, spec=training))
    )
    reasons, _ = explain(waiting)
    assert [(one.owner, one.what, one.remedy) for one in reasons] == [
        (
            "you",
            "its checkpoints become head once 3 of its best trajectories are confirmed, 1 are",
            "look at them: upcycle trajectories review run-1",
        )
    ]
    for enough in (3, None):  # None: the store did not answer
        assert explain(replace(waiting, num_confirmed=enough))[0] == []


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.COMPLETED])
def test_a_candidate_that_waits_for_its_alarms_is_named_also_after_the_run(state: RunState) -> None:
    facts = run_facts(waiting_candidates=["v3: it passed, and waits for trajectory_store"])
    ended = replace(facts, view=replace(facts.view, run=replace(facts.view.run, state=state)))
    assert [(one.owner, one.what) for one in explain(ended)[0]] == [
        ("trajectory_store", "v3: it passed, and waits for trajectory_store")
    ]


async def test_the_registry_is_asked_for_candidates_of_the_run_that_wait(runner: Runner) -> None:
    await register(runner, arith())
    await register(runner, arith(name="held", split=common_pb2.SPLIT_HELD_OUT, first=10))
    training = taskset_pb2.TrainingConfig(steps=5, prompts_per_step=1, max_staleness=0)
    gated = await submit(
        runner, run_spec(TRAIN, training=training, gate=taskset_pb2.GateConfig(taskset="held"))
    )
    reasons = {
        1: (gated.run_id, "held: older than head v2"),
        2: (gated.run_id, f"{PASSED_AND_WAITS} for trajectory_store, which does not answer"),
        3: ("run-other", f"{PASSED_AND_WAITS} until the monitors have seen it"),
    }
    runner.registry.checkpoints = [
        Checkpoint(checkpoint_id=f"c{version}", model="incident", version=version, run_id=run, reason=reason)
        for version, (run, reason) in reasons.items()
    ]
    why = await why_of(runner, gated.run_id)
    waiting = [one.what for one in why.waiting_for if PASSED_AND_WAITS in one.what]
    assert waiting == [f"v2: {reasons[2][1]}"]
