"""`upcycle baseline` as a person meets it: tasks played at the keyboard, scores kept, left tasks not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from upcycle.cli.main import run
from upcycle.environment.source_files import source_digest

TASKS = """
from upcycle import Environment, Taskset

env = Environment("shop")


@env.scenario("count")
async def count(stock: int):
    answer = yield f"There are {stock}. How many?"
    if answer == "boom":
        raise KeyError("grade")
    yield 1.0 if answer == str(stock) else 0.25


tasks = Taskset("stock", [count.task(slug=f"t{n}", family="f", stock=n) for n in (3, 4, 5)], "held_out")
"""
FILE = Path(".upcycle/baselines/stock.jsonl")
Types = Callable[..., None]


@pytest.fixture
def types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Types:
    """What a person types, line after line; then the input ends."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    def typed(*lines: str) -> None:
        waiting = iter(lines)

        def read() -> str:
            for line in waiting:
                return line
            raise EOFError

        monkeypatch.setattr("builtins.input", read)

    return typed


def rows() -> list[dict[str, object]]:
    """Of the calibration file."""
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def test_what_a_person_plays_is_recorded_and_what_is_left_is_not(
    types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    types("3", "no idea", "/quit")
    assert run(["baseline", "record", "tasks.py", "--person", "ann"]) == 0
    said = capsys.readouterr().out
    for line in ("task 1 of 3: t3", "reward 1.000 success", "left: this task is not recorded"):
        assert line in said
    assert f"2 tasks recorded in {FILE}" in said
    found = rows()
    assert [(one["task"], one["reward"], one["success"]) for one in found] == [
        ("t3", 1.0, True),
        ("t4", 0.25, False),
    ]
    for one in found:
        assert (one["person"], one["taskset"], one["family"]) == ("ann", "stock", "f")
        assert one["source_digest"] == source_digest("tasks.py")
        assert len(str(one["task_digest"])) == 64
        assert str(one["date"]).endswith("+00:00")


def test_a_person_goes_on_where_they_left_and_another_one_begins_anew(
    types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    types("3")
    run(["baseline", "record", "tasks.py", "--person", "ann", "--limit", "1"])
    types("4", "5")
    assert run(["baseline", "record", "tasks.py", "--person", "ann"]) == 0
    assert [one["task"] for one in rows()] == ["t3", "t4", "t5"]
    types("3")
    assert run(["baseline", "record", "tasks.py", "--person", "ann"]) == 2
    assert "ann has played all 3 tasks" in capsys.readouterr().err
    assert run(["baseline", "record", "tasks.py", "--person", "ann", "--again", "--limit", "1"]) == 0
    types("3")
    assert run(["baseline", "record", "tasks.py:t3", "--person", "bob"]) == 0
    assert [(one["person"], one["task"]) for one in rows()[3:]] == [("ann", "t3"), ("bob", "t3")]


def test_an_edited_environment_is_played_again(types: Types) -> None:
    types("3")
    run(["baseline", "record", "tasks.py:t3", "--person", "ann"])
    other = TASKS.replace("0.25", "0.5")
    Path("edited").mkdir()
    Path("edited/tasks.py").write_text(other)
    types("3")
    assert run(["baseline", "record", "edited/tasks.py:t3", "--person", "ann"]) == 0
    assert len({one["source_digest"] for one in rows()}) == 2


def test_a_task_whose_environment_fails_is_not_recorded(
    types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    types("3", "boom", "5")
    assert run(["baseline", "record", "tasks.py", "--person", "ann"]) == 1
    said = capsys.readouterr().out
    assert "no reward: grade failed" in said
    assert "1 task recorded" in said
    assert [one["task"] for one in rows()] == ["t3"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tasks.py", "--person", " "], "no printable text"),
        (["sheet-5", "--person", "ann"], "no benchmark 'sheet-5' ships with upcycle; did you mean sheet-50?"),
        (["tasks.py:t9", "--person", "ann"], "has no task 't9'"),
        (["tasks.py", "--person", "ann", "--limit", "0"], "--limit is 0"),
        (["tasks.py", "--person", "ann", "--max-turns", "0"], "--max-turns is 0"),
        (
            ["tasks.py", "--person", "ann", "-o", "damaged.jsonl"],
            "line 1, the last one of damaged.jsonl, is cut off",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_played(
    types: Types, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    types("3")
    Path("damaged.jsonl").write_text('{"schema"')
    assert run(["baseline", "record", *arguments]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_without_a_terminal_no_person_plays(
    types: Types, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert run(["baseline", "record", "tasks.py", "--person", "ann"]) == 2
    assert "standard input is no terminal" in capsys.readouterr().err


def test_show_has_people_beside_the_scripted_players(
    types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["baseline", "show", "stock"]) == 2
    assert "no person has played 'stock'" in capsys.readouterr().err
    types("3", "4", "no idea")
    run(["baseline", "record", "tasks.py", "--person", "ann"])
    capsys.readouterr()
    assert run(["baseline", "show", "stock"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["ann", "3", "0.750"]
    assert run(["baseline", "show", "sheet-50", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(one["is_person"], one["tasks"]) for one in shown["players"]] == [(False, 50)] * 5
