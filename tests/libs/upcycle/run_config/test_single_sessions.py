"""Single sessions of a run: which combinations are refused, and by what words."""

from typing import Any

import pytest

from upcycle.run_config import PolicyChoice, RunConfigInvalid, RunSpec, Training
from upcycle.run_config.names import Purpose
from upcycle.run_config.refusing import checked


def run_of(sessions: str = "all", **training: Any) -> RunSpec:
    given = {"single_sessions": "batch", **training}
    return checked(
        RunSpec,
        {
            "taskset": "t",
            "purpose": Purpose.TRAIN,
            "policy": PolicyChoice("m"),
            "training": given,
            "sessions": sessions,
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
