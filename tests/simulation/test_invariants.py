"""The simulator's checks say no."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulation.invariants import Broken, PromiseWatch


def watch_of(states: dict[str, str]) -> PromiseWatch:
    """Of a planner that has these episodes, and nothing else."""

    def rows(statement: str) -> list[Any]:
        return list(states.items()) if statement.startswith("SELECT episode_id, state") else []

    planner = SimpleNamespace(rows=rows)
    given: Any = SimpleNamespace(databases={"scenario_runner": planner}, loop=SimpleNamespace(failure=None))
    unused: Any = None
    return PromiseWatch(given, lambda *_: None, unused)


def test_a_failed_episode_that_the_planner_has_as_graded_afterwards_has_two_ends() -> None:
    """The planner decides before its plan changes, so its timeout never loses to a grade."""
    states = {"run-1-g00000-e000-a0": "failed"}
    watch = watch_of(states)
    watch.on_planned()
    assert watch._given.loop.failure is None
    states["run-1-g00000-e000-a0"] = "graded"
    watch.on_planned()
    assert "TWO ENDS: plan run-1-g00000-e000-a0 was failed and is graded" in str(watch._given.loop.failure)


@pytest.mark.parametrize("other", [{"outcome": "excluded"}, {"outcome": "trained", "step": 2}])
def test_a_group_that_is_settled_in_two_ways_has_two_ends(other: dict[str, Any]) -> None:
    watch = watch_of({})
    settled = {"groupId": "g", "runId": "run-1", "outcome": "trained", "step": 1}
    watch._on_settled(settled)
    watch._on_settled(settled)
    with pytest.raises(Broken, match="TWO ENDS: g was trained at step 1"):
        watch._on_settled({**settled, "step": 0, **other})
