"""New tasks that are expected to be too hard, or too easy, are not played: in the planner's transactions."""

from collections.abc import Mapping
from typing import Any

from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.difficulty import LOOK_BACK_STEPS, Attempts, expected, is_fit, value_of
from scenario_runner.domain.new_tasks import NewTaskRow


def chosen(unit: PlanUnit, row: NewTaskRow, schema: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a new task that was just made is played, and what was expected of it: "" where its run does not
    ask for that, or played nothing that tells. schema: of its scenario's arguments."""
    run = unit.run(row.run_id)
    training = run.spec.training if run is not None else None
    if run is None or training is None or not training.new_tasks_difficulty:
        return True, ""
    argument = training.new_tasks_difficulty
    since = max(0, run.next_position - LOOK_BACK_STEPS * training.prompts_per_step)
    played = [
        Attempts(value, num_graded, num_successes)
        for args_json, num_graded, num_successes in unit.task_pasts.attempts(row, since)
        if (value := value_of(args_json, argument, schema)) is not None
    ]
    own = value_of(row.args_json, argument, schema)
    found = None if own is None else expected(own, played)
    return (True, "") if found is None else (is_fit(training, found.success), found.said(argument))
