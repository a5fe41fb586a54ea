"""A tool that may take longer than an episode is named before anything is submitted."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from upcycle.cli.check import DEADLINE_S
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.cli.tasksets import TasksetSource, load_source
from upcycle.cli.tool_limits import ToolTooLong, refuse_long_tools
from upcycle.run_config import RunSpec

DECLARES = """
from upcycle import Environment, Taskset
env = Environment("long-tools")

@env.tool({limit})
def build() -> str:
    return "built"

@env.scenario()
async def job():
    answer = yield "?"
    yield float(answer == "built")

@job.gold
def solved() -> str:
    return "built"

tasks = Taskset("jobs", [job.task(slug="one")], split="train")
"""


@pytest.mark.parametrize("command", [["eval", "{file}", "m"], ["train", "m", "--taskset", "{file}"]])
def test_a_run_whose_episodes_are_shorter_than_a_tool_is_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "env.py"
    file.write_text(DECLARES.format(limit="timeout_s=3600"))
    asked = [part.format(file=file) for part in command]
    assert run(asked) == Exit.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "tool 'build' of environment 'long-tools' may take 3600 s (its timeout_s)" in said
    assert "an episode of this run ends after 120 s; give --episode-deadline-s 3660 or so" in said
    assert run([*asked, "--episode-deadline-s", "3600"]) == Exit.UNREACHABLE  # no platform: it went on


def test_only_what_declares_a_limit_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "env.py"
    file.write_text(DECLARES.format(limit=""))
    source = load_source(str(file))
    file.write_text("raise RuntimeError('loaded')\n")
    refuse_long_tools(source, 1)
    file.write_text("raise RuntimeError('timeout_s')\n")
    refuse_long_tools(source, 1)  # it is not known here: the platform may load it
    refuse_long_tools(TasksetSource("registered"), 1)


def test_a_limit_as_long_as_the_episode_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "env.py"
    file.write_text(DECLARES.format(limit="timeout_s=600"))
    source = load_source(str(file))
    refuse_long_tools(source, 600)
    with pytest.raises(ToolTooLong, match=re.escape("ends after 599 s")):
        refuse_long_tools(source, 599)


@pytest.mark.parametrize(("limit", "is_named"), [("timeout_s=3600", True), ("timeout_s=60", False)])
def test_check_names_it(
    limit: str, is_named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "env.py"
    file.write_text(DECLARES.format(limit=limit))
    assert run(["check", str(file)]) == Exit.OK
    said = "tool build may take 3600 s: its runs need an --episode-deadline-s above that"
    assert (said in " ".join(capsys.readouterr().out.split())) is is_named
    assert run(["check", str(file), "--json"]) == Exit.OK
    row = json.loads(capsys.readouterr().out)
    assert row["tool_limits"] == {"build": float(limit.partition("=")[2])}


def test_the_deadline_that_check_compares_with_is_a_runs_default() -> None:
    (found,) = [one.default for one in fields(RunSpec) if one.name == "episode_deadline_s"]
    assert found == DEADLINE_S
