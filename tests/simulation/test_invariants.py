"""The simulator's checks say no."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.simulation.invariants import Broken, PromiseWatch
from tests.simulation.services import PLANNER_DB, STORE_DB


def watch_of(states: dict[str, str]) -> PromiseWatch:
    """Of a planner that has these episodes, and nothing else."""
    return watch_over({"SELECT episode_id, state FROM": lambda: list(states.items())})


def watch_over(tables: dict[str, Callable[[], list[Any]]]) -> PromiseWatch:
    """Of services that have these rows. tables: by how the statement begins that reads them."""

    def rows(statement: str) -> list[Any]:
        found = [read for begins, read in tables.items() if statement.startswith(begins)]
        return found[0]() if found else []

    databases = {name: SimpleNamespace(rows=rows) for name in (PLANNER_DB, STORE_DB)}
    given: Any = SimpleNamespace(databases=databases, loop=SimpleNamespace(failure=None))
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


@pytest.mark.parametrize(
    ("counted", "alarm", "why"),
    [
        ([("run-1", 5, "", 1), ("run-1", 7, "timeout", 1)], (0, 0), ""),
        ([("run-1", 7, "timeout", 1)], (0, 0), "counts 0 evaluated in the ledger, and has 1"),
        ([("run-1", 5, "", 1), ("run-1", 7, "timeout", 2)], (0, 0), "counts 2 failed(timeout)"),
        ([("run-1", 5, "", 1), ("run-1", 7, "error", 1)], (0, 0), "run-1 counts 1 failed(error)"),
        ([("run-2", 5, "", 1), ("run-1", 7, "timeout", 1)], (0, 0), "run-1 counts 0 evaluated"),
        ([("run-1", 5, "", 1), ("run-1", 7, "timeout", 1)], (1, 0), "counts 1 conflicts and 0 trained twice"),
    ],
)
def test_sums_of_the_ledger_that_are_not_its_rows_break_its_equation(
    counted: list[Any], alarm: tuple[int, int], why: str
) -> None:
    episodes = [("a", 5, False, False, "run-1", "late"), ("b", 7, False, False, "run-1", "timeout")]
    watch = watch_over(
        {
            "SELECT episode_id, state, in_conflict": lambda: episodes,
            "SELECT run_id, state, reason": lambda: counted,
            "SELECT run_id, conflicts": lambda: [("run-1", *alarm)],
        }
    )
    watch.on_counted()
    failure = watch._given.loop.failure
    assert (failure is None) is (why == "")
    assert why in str(failure)


@pytest.mark.parametrize(
    ("planned", "counted", "why"),
    [
        ({"a": "evaluated"}, {"a": 5}, ""),
        ({"a": "cancelled"}, {"a": 5}, ""),  # ended as it was cancelled
        ({"a": "evaluated"}, {"a": 8}, "a is evaluated for the planner, cancelled in the ledger"),
        ({"a": "cancelled"}, {"a": 4}, "a is cancelled for the planner, trained in the ledger"),
        ({"a": "evaluated"}, {}, "a is evaluated for the planner, unknown in the ledger"),
        ({"a": "evaluated"}, {"a": 5, "b": 5}, "b is unknown to the planner, evaluated in the ledger"),
    ],
)
def test_planner_and_ledger_have_the_same_episodes(
    planned: dict[str, str], counted: dict[str, int], why: str
) -> None:
    episodes = [(one, state, False, False, "run-1", "") for one, state in counted.items()]
    watch = watch_over(
        {
            "SELECT episode_id, state FROM": lambda: list(planned.items()),
            "SELECT episode_id, state, in_conflict": lambda: episodes,
        }
    )
    assert (watch.difference() or "") == why


@pytest.mark.parametrize("counted", [(5, 0, 4), (4, 1, 3), (4, 0, 4)])
def test_a_run_that_is_over_keeps_the_counts_of_its_episodes(counted: tuple[int, int, int]) -> None:
    kept = json.dumps({"by_state": {"trained": 3, "failed": 1}})
    found: list[Any] = [("run-1", kept, 4, 0, 3)]
    watch = watch_over({"SELECT run.run_id, run.final_counts": lambda: found})
    watch.at_the_end()
    found[:] = [("run-1", kept, *counted)]
    with pytest.raises(Broken, match="COUNTS: run-1 is over with"):
        watch.at_the_end()
