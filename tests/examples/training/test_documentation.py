"""docs/evaluations_train.md prints what is executed, and every reason with the words that are printed."""

import re
import textwrap
from pathlib import Path

from episodes import GroupReason
from upcycle import Taskset
from upcycle.cli.group_outcomes import word
from upcycle.cli.standing import read
from upcycle.run_config import Purpose
from upcycle.run_config.reading import gather
from upcycle.shipped import BENCHMARKS

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "evaluations_train.md").read_text()
TRAINING = REPOSITORY / "examples" / "training"
PLANNERS_REASONS = {
    "held_out",
    "unassigned",
    "other_environment",
    "incomplete_group",
    "group_of_one",
    "too_large",
    "no_tokens",
    "version",
    "already_trained",
    "beyond_bounds",
    "run_over",
}


def test_the_grpc_client_is_printed_word_for_word() -> None:
    assert f"\n{(TRAINING / 'grpc_client.py').read_text()}```\n" in PAGE


def test_the_lines_of_the_sdk_are_those_of_its_example() -> None:
    (listing,) = re.findall(r"```python\n(job = .*?)```", PAGE, re.DOTALL)
    example = (TRAINING / "from_evaluations.py").read_text()
    assert textwrap.indent(listing, "    ") in example


def test_every_reason_is_in_the_table_with_the_words_that_are_printed() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    assert set(table) == {*PLANNERS_REASONS, *(reason.value for reason in GroupReason if reason)}
    assert table == {reason: word(reason) for reason in table}


def test_the_standing_run_of_the_examples_can_be_used() -> None:
    standing = read(TRAINING / "run.toml")
    assert standing.run.training is not None
    assert standing.run.training.is_standing
    assert Path(standing.run.taskset).samefile(REPOSITORY / "examples" / "incident" / "tasks.py")


def test_the_repair_run_trains_on_tasks_that_the_benchmark_does_not_have() -> None:
    run = gather({}, (), TRAINING / "repair.toml", names={}).run(Purpose.TRAIN, {})
    training = run.training
    assert training is not None
    assert (training.advantage, training.aggregation, run.group_size) == ("rloo", "constant_length", 8)
    assert not {"kl_coefficient", "entropy_bonus"} & set(training.loss_config)
    assert training.cut_off_episodes == "leave_out"
    assert run.track == ("repair-30:every=20",)
    practice = Taskset.load(run.taskset)
    assert (practice.name, practice.split, len(practice.tasks)) == ("repair-train", "train", 200)
    held_out = Taskset.load(BENCHMARKS["repair-30"].tasks_file)
    assert not {task.family for task in practice.tasks} & {task.family for task in held_out.tasks}


def test_the_self_play_run_plants_in_repositories_that_the_benchmark_does_not_have() -> None:
    run = gather({}, (), TRAINING / "self_play.toml", names={}).run(Purpose.TRAIN, {})
    assert run.training is not None
    assert (run.training.self_play, run.training.advantage) == ("plant:mend", "hierarchical")
    planting = Taskset.load(run.taskset)
    assert (planting.name, planting.split) == ("repair-plant", "train")
    assert {task.scenario for task in planting.tasks} == {"plant"}
    held_out = Taskset.load(BENCHMARKS["repair-30"].tasks_file)
    assert not {task.family.removeprefix("plant-") for task in planting.tasks} & {
        task.family for task in held_out.tasks
    }
