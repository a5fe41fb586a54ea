"""`sys.exit` in an author's file: it is named with its line, and never decides the status of a command."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from upcycle import Environment
from upcycle.cli.main import run
from upcycle.errors import DefinitionError, ScenarioError
from upcycle.modules import load_module

HEAD = """import os, sys
from upcycle import Environment, Taskset
env = Environment("shop")
"""
ASK = """@env.scenario("ask")
async def ask(q: str, expected: str):
    answer = yield q
    yield 1.0 if answer == expected else 0.0
"""
TOOL = "@env.tool()\ndef look() -> str:\n    sys.exit(0)\n"
TASKS = 'tasks = Taskset("t", [ask.task(slug="a", q="Hm?", expected="yes")])\n'
LOOKS = '{"text": "I look", "tool_calls": [{"name": "look", "arguments": {}}]}\n"yes"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "say.jsonl").write_text('"yes"\n')
    (tmp_path / "look.jsonl").write_text(LOOKS)
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["check", "mine.py"],
        ["eval", "mine.py", "claude"],
        ["sync", "tasks", "mine.py"],
        ["deploy", "mine.py", "--dry-run"],
        ["play", "mine.py", "--script", "say.jsonl"],
    ],
)
def test_a_file_that_exits_as_it_is_loaded_is_refused_with_its_line(
    command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + ASK + TASKS + "sys.exit(0)\n")
    assert run(command) == 2
    said = capsys.readouterr().err
    assert "mine.py:9: it called sys.exit(0) as it was loaded; raise an error instead of exiting" in said


def test_a_file_that_another_one_imports_is_named_and_can_be_mended(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("raise SystemExit\n")
    (tmp_path / "importing.py").write_text("import exits\n")
    with pytest.raises(DefinitionError, match=r"exits\.py:1: it called sys\.exit\(\) as it was loaded"):
        load_module(tmp_path / "importing.py")
    (tmp_path / "exits.py").write_text("NAME = 'mended'\n")
    assert load_module(tmp_path / "importing.py").exits.NAME == "mended"


@pytest.mark.parametrize("place", [["--in-process"], []])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            ASK.replace("    answer", "    sys.exit('bye')\n    answer"),
            "scenario 'ask' (mine.py:6) called sys.exit('bye') before its first yield (the prompt); raise",
        ),
        (
            ASK.replace("    yield 1.0 if", "    sys.exit(0)\n    yield 1.0 if"),
            "scenario 'ask' (mine.py:7) called sys.exit(0) before its second yield (the reward); raise",
        ),
        (
            ASK + "    sys.exit()\n",
            "scenario 'ask' (mine.py:8) called sys.exit() after its second yield; raise",
        ),
        (
            "@env.initialize\ndef connect():\n    sys.exit(4)\n" + ASK,
            "@env.initialize: connect called sys.exit(4) (mine.py:6); raise an error instead of exiting",
        ),
        (
            "@env.state()\ndef seen() -> int:\n    sys.exit(4)\n" + ASK,
            "@env.state() failed: sys.exit(4) (mine.py:6)",
        ),
    ],
)
def test_an_exit_in_an_episode_is_the_authors_failure(
    body: str, said: str, place: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + body + TASKS)
    assert run(["play", "mine.py", "--script", "say.jsonl", "--no-keep", *place]) == 1
    shown = capfd.readouterr()
    assert said in shown.out
    assert "never retrieved" not in shown.err


@pytest.mark.parametrize("place", [["--in-process"], []])
def test_an_exit_in_a_tool_is_what_the_player_reads(
    place: list[str], folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.py").write_text(HEAD + TOOL + ASK + TASKS)
    assert run(["play", "mine.py", "--script", "look.jsonl", "--no-keep", *place]) == 0
    shown = capfd.readouterr()
    assert "look called sys.exit(0) (mine.py:6); raise an error instead of exiting" in shown.out
    assert "reward 1.000" in shown.out
    assert "never retrieved" not in shown.err


def test_a_gold_answer_that_exits_is_named() -> None:
    env = Environment("gold")

    @env.scenario()
    async def ask() -> AsyncGenerator[Any, Any]:
        yield "Hm?"
        yield 1.0

    @ask.gold
    def solved() -> str:
        sys.exit(2)

    with pytest.raises(
        ScenarioError, match=r"the gold answer of scenario 'ask' called sys\.exit\(2\) \(test_"
    ):
        ask.reference({})


def test_what_is_left_ends_a_command_with_1(folder: Path) -> None:
    """A status of 0 would let a build pass that did nothing."""
    (folder / "ends.py").write_text(
        "import sys\nimport upcycle.cli.check as check\n"
        "def gone(*_, **__): sys.exit(0)\n"
        "check._chosen = gone\n"
        "from upcycle.cli.main import run\nsys.exit(run(['check', 'mine.py']))\n"
    )
    done = subprocess.run(
        [sys.executable, "ends.py"], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "the command was ended by sys.exit(0) (ends.py:3)" in done.stderr
