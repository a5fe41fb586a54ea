"""Benchmarks by their names: on the command line, and where tasks are registered."""

from pathlib import Path

import pytest

from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.usecases.registering import check_none_only_measures
from service_kit.errors import InvalidRequest
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.environment.source_files import read_source
from upcycle.errors import UnknownName
from upcycle.shipped import BENCHMARKS, FOLDER, benchmark_named, only_measures
from upcycle.tasks import Taskset


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_taskset_of_a_benchmark_is_held_out_and_only_measures(name: str) -> None:
    taskset = Taskset.load(BENCHMARKS[name].tasks_file, name)
    assert taskset.name == name
    assert taskset.split == "held_out"
    assert all(only_measures(task.environment.name, task.scenario) for task in taskset)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_the_source_of_a_benchmark_is_its_own_folder(name: str) -> None:
    source = read_source(Taskset.load(BENCHMARKS[name].tasks_file, name).environment.path)
    assert source.root == FOLDER.resolve()
    assert {Path(file).parts[0] for file in source.files} == {BENCHMARKS[name].folder}


def test_the_planner_refuses_a_benchmarks_task_as_training_data() -> None:
    task = RunnableTask("t", "workbook", '{"number":1}', "formulas", "0" * 64)
    with pytest.raises(InvalidRequest, match="'t' is of benchmark sheet-50, whose tasks only measure"):
        check_none_only_measures("sheet-50", [task])
    check_none_only_measures("sheets", [task])


def test_a_benchmark_is_evaluated_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "--benchmark", "sheet-50", "my-model", "--dry-run"]) == Exit.OK
    said = capsys.readouterr()
    assert "sheet-50: 50 tasks, split held_out" in said.out + said.err


@pytest.mark.parametrize(("name", "ours"), [("sheetbench-50", "sheet-50"), ("autonomy-10", "autonomy-10")])
def test_another_platforms_name_is_answered_with_what_it_is_here(
    name: str, ours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "--benchmark", name, "--model", "m", "--dry-run"]) == Exit.OK
    said = capsys.readouterr()
    line = f"{ours}: Upcycle's own tasks, not those of the benchmark {name!r} of others"
    assert line in (said.out + said.err).splitlines()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sheet-5", "m"), "no benchmark 'sheet-5' ships with upcycle; did you mean sheet-50?"),
        (("zebra", "m"), "no benchmark 'zebra' ships with upcycle; there are: sheet-50, repair-30"),
        (("sheet-50", "tasks.py", "m"), "--benchmark sheet-50 and TASKS tasks.py; name one of them"),
        (("sheet-50",), "MODEL missing"),
    ],
)
def test_a_name_that_is_none_and_two_sources_are_refused(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "--benchmark", *arguments]) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_every_other_name_means_one_that_ships() -> None:
    benchmark, said = benchmark_named("sheetbench-50")
    assert benchmark.name == "sheet-50"
    assert said
    with pytest.raises(UnknownName):
        benchmark_named("")
