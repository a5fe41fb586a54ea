"""What the preset sheet promises beside that it works: test_init.py plays it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from upcycle.benchmarks.sheet_50 import extra
from upcycle.benchmarks.sheet_50.env import NUM_TASKS, drawn
from upcycle.benchmarks.sheet_50.one_column import SMALL_KINDS, fill_calls
from upcycle.benchmarks.sheet_50.problems import Kind, problem_of
from upcycle.cli.main import run
from upcycle.projects.writing import NewProject, write_project

NUM_SEEDS = 64
PROGRAM = f"""
import json
from env import drawn
from upcycle.benchmarks.sheet_50.problems import problem_of
found = {{}}
for size in ("column", "workbook"):
    for split in ("train", "held_out"):
        rows = [problem_of(*drawn(size, split, seed)).sheets for seed in range({NUM_SEEDS})]
        found[f"{{size}} {{split}}"] = [repr(row) for row in rows]
print(json.dumps(found))
"""


@pytest.mark.timeout(400)
def test_no_workbook_of_the_benchmark_and_none_that_is_held_out_trains(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    write_project(NewProject(folder, "sheet", 24, 12), folder)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = {name: set(rows) for name, rows in json.loads(done.stdout).items()}
    found["benchmark"] = {repr(problem_of(*drawn(number)).sheets) for number in range(NUM_TASKS)}
    assert [len(rows) for rows in found.values()] == [NUM_SEEDS] * 4 + [NUM_TASKS]
    assert len(set().union(*found.values())) == 4 * NUM_SEEDS + NUM_TASKS


@pytest.mark.parametrize("kind", SMALL_KINDS, ids=lambda kind: kind.name)
def test_a_small_task_is_one_column_that_one_call_fills(kind: Kind) -> None:
    problem = problem_of(kind, "train/0")
    ((name, arguments),) = fill_calls(problem)
    assert (len({one.part for one in problem.targets}), name) == (1, "fill_formula")
    _, asked, _ = problem.text.splitlines()
    assert asked.startswith(f"- {arguments['sheet']}!{arguments['area']}")
    assert len(problem.text) < 300


@pytest.fixture
def without_the_extra(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extra, "_PACKAGES", ("a_package_that_is_not_there",))
    extra.need_extra.cache_clear()
    yield
    extra.need_extra.cache_clear()


@pytest.mark.usefixtures("without_the_extra")
def test_without_its_packages_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init", str(tmp_path / "shop"), "--preset", "sheet"]) == 2
    said = capsys.readouterr().err
    assert "a_package_that_is_not_there" in said
    assert "upcycle[benchmarks]" in said
    assert not list(tmp_path.iterdir())
