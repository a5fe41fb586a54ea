"""Options of `upcycle train` that would be ignored, runs that are none, and how a run without a step ends."""

import pytest

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import taskset_pb2 as taskset
from upcycle.cli.main import run
from upcycle.cli.train import _print_done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--taskset", "t", "--observation-weight", "0.3"), "--observation-weight: for SFT"),
        (
            ("--taskset", "t", "--batch", "4", "--observation-weight", "0.3"),
            "--batch, --observation-weight: for",
        ),
        (("--attach", "last", "--batch", "4"), "--batch: for SFT, and no conversations are named"),
    ],
)
def test_options_of_sft_without_conversations_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run(["train", "m", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_sft_from_an_evaluation_in_one_process_names_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "m", "--sft-from", "here-138167a6c382"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--sft .upcycle/evaluations/here-138167a6c382/trajectories.jsonl" in said


@pytest.mark.parametrize("command", [("why",), ("runs", "stop"), ("runs", "cancel")])
def test_an_evaluation_in_one_process_is_no_run_that_waits_or_is_steered(
    capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    assert run([*command, "here-138167a6c382"]) == 2
    assert "upcycle view here-138167a6c382" in capsys.readouterr().err


@pytest.mark.parametrize(("step", "said"), [(0, "0 steps of 3, ended early, no new version,"), (2, "v5")])
def test_a_run_without_a_step_names_no_version(
    capsys: pytest.CaptureFixture[str], step: int, said: str
) -> None:
    spec = taskset.RunSpec(
        purpose=common.PURPOSE_TRAIN,
        policy=common.PolicySelector(model="incident"),
        training=taskset.TrainingConfig(steps=3),
    )
    version = 5 if step else 0
    ended = taskset.Run(
        run_id="run-000000000abc",
        spec=spec,
        state=taskset.RUN_STATE_FAILED,
        step=step,
        policy_version=version,
        failure="nothing to learn",
    )
    _print_done(ended, as_json=False)
    assert said in capsys.readouterr().out
