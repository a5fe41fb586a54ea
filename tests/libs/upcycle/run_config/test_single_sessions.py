"""Single sessions of a run, and sessions as they come: which combinations are refused, and by what words."""

from typing import Any

import pytest

from upcycle.run_config import PolicyChoice, RunConfigInvalid, RunSpec, Training
from upcycle.run_config.names import Purpose
from upcycle.run_config.reading import Given, Sources, of_sessions_alone, without_tasks_of_settings
from upcycle.run_config.refusing import checked


def run_of(sessions: str = "all", sessions_idle_s: int = 0, **training: Any) -> RunSpec:
    given = {"single_sessions": "batch", **training}
    return checked(
        RunSpec,
        {
            "taskset": "t",
            "purpose": Purpose.TRAIN,
            "policy": PolicyChoice("m"),
            "training": given,
            "sessions": sessions,
            "sessions_idle_s": sessions_idle_s,
        },
    )


@pytest.mark.parametrize("advantage", ["dr_grpo", "rloo"])
def test_single_sessions_train_with_an_advantage_that_is_a_difference(advantage: str) -> None:
    training = run_of(advantage=advantage).training
    assert training is not None
    assert training.single_sessions == "batch"
    assert Training().single_sessions == "leave_out"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"advantage": "grpo"}, "set training.advantage to dr_grpo or rloo"),
        ({"advantage": "batch"}, "divides by what one reward does not have"),
        ({"turn_credit": "turn"}, "leave one of them out"),
        ({"prompts_per_step": 1}, "set training.prompts_per_step to 2 or more"),
        ({"sessions": ""}, "name sessions in sessions, or leave it out"),
    ],
)
def test_what_gives_a_single_session_no_baseline_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RunConfigInvalid) as error:
        run_of(**changes)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("sessions", "reason"),
    [
        ("", "sessions_idle_s is 600 and sessions is empty: none would come"),
        ("group=g, before = 2026-01-01", "sessions has an end, before=…: leave one of the two out"),
    ],
)
def test_a_wait_for_sessions_that_cannot_come_is_refused(sessions: str, reason: str) -> None:
    with pytest.raises(RunConfigInvalid) as error:
        run_of(sessions, 600, single_sessions="leave_out")
    assert reason in str(error.value)


def test_a_run_may_wait_for_sessions_for_a_month_at_most() -> None:
    assert run_of(sessions_idle_s=30 * 86_400).sessions_idle_s == 30 * 86_400
    with pytest.raises(RunConfigInvalid):
        run_of(sessions_idle_s=30 * 86_400 + 1)


def alone(**changes: Any) -> RunSpec:
    """A run that is about no tasks."""
    training = changes.pop("training", {"steps": 3})
    given = {"taskset": "", "purpose": Purpose.TRAIN, "policy": PolicyChoice("m"), "training": training}
    return checked(RunSpec, {**given, "sessions": "all", "no_sampling": True, **changes})


def test_a_run_of_recorded_sessions_alone_needs_no_taskset() -> None:
    assert alone().taskset == ""
    assert alone(sessions_idle_s=60, training={"steps": 0, "lr_schedule": "constant"}).taskset == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sessions": ""}, "taskset must be set; only a training run with sessions and no_sampling"),
        ({"no_sampling": False}, "taskset must be set"),
        ({"source_runs": ("run-a",)}, "and without source_runs, needs none"),
        ({"training": {"epochs": 2}}, "training.epochs are passes over a taskset"),
    ],
)
def test_what_is_about_tasks_needs_a_taskset(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RunConfigInvalid) as error:
        alone(**changes)
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("asked", "taskset", "plays"),
    [
        ({"sessions": "all"}, "", False),
        ({"sessions": "all", "taskset": "mine"}, "mine", True),
        ({}, "of-the-project", True),
    ],
    ids=["sessions alone", "sessions, then tasks", "tasks"],
)
def test_tasks_of_the_settings_are_not_added_to_sessions(
    asked: dict[str, str], taskset: str, plays: bool
) -> None:
    below = {"taskset": Given("of-the-project", "taskset (upcycle.toml)")}
    values = {path: Given(value, path) for path, value in {**asked, "policy.model": "m"}.items()}
    given = without_tasks_of_settings(Sources(values, below=below))
    run = given.run(Purpose.TRAIN, of_sessions_alone(given))
    assert (run.taskset, not run.no_sampling) == (taskset, plays)
