"""What follows the success of a run needs episodes that the run plays."""

import pytest

from upcycle.run_config import PolicyChoice, RunConfigInvalid, RunSpec
from upcycle.run_config.names import Purpose
from upcycle.run_config.refusing import checked

RUN = {
    "taskset": "t",
    "purpose": Purpose.TRAIN,
    "policy": PolicyChoice("m"),
    "source_runs": ("run-000000000001",),
}


@pytest.mark.parametrize(
    "training",
    [{"lr_success_decay": 0.5}, {"kl_success_growth": 2.0, "loss_config": {"kl_coefficient": 0.1}}],
)
def test_a_run_that_plays_nothing_has_no_success_to_follow(training: dict[str, object]) -> None:
    checked(RunSpec, {**RUN, "training": training})
    with pytest.raises(RunConfigInvalid, match="follows the success of episodes that the run plays itself"):
        checked(RunSpec, {**RUN, "training": training, "no_sampling": True})
