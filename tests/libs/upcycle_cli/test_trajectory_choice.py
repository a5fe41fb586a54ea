"""Filters of trajectories: what none can pass is refused by name."""

from typing import get_args

import pytest

from episodes.endings import EpisodeFailure
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.trajectory_choice import FailureKind, TrajectoryChoice


def test_every_kind_of_failure_can_be_asked_for_and_no_other() -> None:
    assert set(get_args(FailureKind)) == set(EpisodeFailure)


@pytest.mark.parametrize("command", ["list", "export"])
@pytest.mark.parametrize("flag", ["--failure", "--state"])
def test_a_word_that_is_none_is_refused_with_those_that_are(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trajectories", command, flag, "nonsense"]) == Exit.USAGE
    printed = capsys.readouterr()
    said = " ".join((printed.out + printed.err).replace("│", " ").split())
    assert f'Invalid value "nonsense" for {flag}. Choose from: ' in said
    assert ("answer_error" if flag == "--failure" else "evaluated") in said


def test_a_bound_that_only_environments_of_others_reach_is_said() -> None:
    assert TrajectoryChoice(min_reward=0.0, max_reward=1.0).odd_rewards() == ""
    assert TrajectoryChoice().odd_rewards() == ""
    said = TrajectoryChoice(min_reward=-1.0, max_reward=2.0).odd_rewards()
    assert (
        said == "--min-reward -1 and --max-reward 2: only environments of others give rewards outside 0 to 1"
    )
