"""States of an environment in the fleet: with the prompt, with each tool's result, and before the grade."""

import json
from pathlib import Path

import pytest
from tests.libs.upcycle import counting_states
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import EnvironmentBroken, PythonEnvironment, UnknownLease
from scenario_runner.wire.environments import opened_to_wire

COUNTING = PythonEnvironment("counting-states", str(Path(counting_states.__file__)))


async def test_states_travel_beside_what_the_policy_reads(fleet: Fleet) -> None:
    opened = await fleet.open("writing", source=COUNTING)
    assert json.loads(opened_to_wire(opened, "x").first_state.value_json)["lines"] == []
    one = await fleet.call(opened, "write", '{"line": "one"}', "c1")
    again = await fleet.call(opened, "write", '{"line": "one"}', "c1")
    assert one == again
    assert json.loads(one.state.patch) == [{"op": "add", "path": "/lines/-", "value": "one"}]
    await fleet.call(opened, "write", '{"line": "two"}')
    last = await fleet.leases.last_state(opened.lease_id)
    assert last == await fleet.leases.last_state(opened.lease_id)
    grade = await fleet.grade(opened, "x")
    assert grade.reward == 1.0
    assert [len(state["lines"]) for state in grade.info["states"]] == [0, 1, 2, 2]


async def test_a_state_that_fails_at_the_prompt_is_the_authors_error(fleet: Fleet) -> None:
    with pytest.raises(EnvironmentBroken, match=r"(?s)KeyError: 'missing'.*counting_states.py.*line 21"):
        await fleet.open("broken", source=COUNTING)


async def test_a_state_that_fails_later_costs_the_episode_nothing(fleet: Fleet) -> None:
    opened = await fleet.open("writing", source=COUNTING)
    result = await fleet.call(opened, "write", '{"line": "raise"}')
    assert (result.content, result.is_error) == ("written", False)
    assert "counting_states.py:21" in result.state.note
    assert (await fleet.grade(opened, "x")).reward == 0.0
    with pytest.raises(UnknownLease):
        await fleet.leases.last_state(opened.lease_id)
