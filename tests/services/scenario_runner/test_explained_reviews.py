"""`why` names a promotion that waits for people."""

from dataclasses import replace

import pytest
from tests.services.scenario_runner.test_explaining import run_facts

from scenario_runner.domain.explain import explain
from scenario_runner.domain.runs import RunState
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
