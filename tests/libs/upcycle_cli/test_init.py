"""`upcycle init`: the project that it writes works as it is, and nothing that exists is touched."""

import ast
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from upcycle.cli.main import build_app, run
from upcycle.cli.sft import conversations_in
from upcycle.errors import Failed
from upcycle.playing.demonstrations import write_demonstrations
from upcycle.projects.writing import PRESETS, NewProject, demonstrate, next_commands, write_project
from upcycle.run_config import Purpose
from upcycle.run_config.reading import gather
from upcycle.tasks import Taskset

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = ROOT / "libs" / "upcycle" / "projects" / "templates"
SKILL = Path(".agents/skills/upcycle-environment")
TEXTS = (".py", ".md", ".toml", ".json", ".jsonl")


def in_project(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A Python program, run in the project."""
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip


def upcycle(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_project(folder, "-c", "from upcycle.cli.main import main; main()", *arguments)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "preset", [pytest.param(one, marks=pytest.mark.study) if one == "sheet" else one for one in PRESETS]
)
def test_a_new_project_plays_passes_its_test_and_has_its_demonstrations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    folder = tmp_path / "shop"
    sizes = ["--tasks", "24", "--held-out", "12", "--demonstrations", "6"]
    assert run(["init", str(folder), "--preset", preset, *sizes]) == 0
    printed = capsys.readouterr()
    assert "upcycle play tasks.py" in printed.out
    said = printed.err.splitlines()
    assert {"  env.py", "  run.toml", "  .agents/skills/upcycle-environment/examples/  (2 files)"} <= set(
        said
    )
    assert said[-1].startswith("  demonstrations.jsonl: the reference player plays 6 tasks")

    played = upcycle(folder, "play", "tasks.py:train-0000023", "--script", "player.py", "--json")
    assert played.returncode == 0, played.stderr
    assert json.loads(played.stdout)["reward"] == 1.0

    checked = in_project(folder, str(SKILL / "scripts" / "check.py"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert [line[:4] for line in checked.stdout.splitlines() if line[0] != " "] == ["ok: "] * 4

    listed = upcycle(folder, "eval", "tasks.py", "shop", "--dry-run", "--json")
    rows = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(row["taskset"], row["split"], row["tasks"]) for row in rows] == [
        ("shop-train", "train", 24),
        ("shop-held-out", "held_out", 12),
    ]
    given = gather({}, (), folder / "run.toml", names={}).run(Purpose.TRAIN, {})
    assert (given.run.policy.model, given.taskset_name) == ("shop", "shop-train")

    conversations = list(conversations_in(folder / "demonstrations.jsonl"))
    assert len(conversations) == 6
    assert all(one.task and one.messages[-1]["role"] == "assistant" for one in conversations)
    servers = json.loads((folder / ".mcp.json").read_text())["mcpServers"]
    assert servers == {"upcycle": {"command": "upcycle", "args": ["docs", "mcp"]}}
    assert {".upcycle/", "model/"} <= set((folder / ".gitignore").read_text().splitlines())
    texts = {path: path.read_text() for path in folder.rglob("*") if path.suffix in TEXTS}
    assert len(texts) > 10
    assert not [path for path, text in texts.items() if "my-agent" in text or "<!--" in text]


def test_every_command_that_it_prints_can_be_typed(tmp_path: Path) -> None:
    app = build_app()
    commands = next_commands(NewProject(tmp_path / "shop", "blank", 1, 1))
    assert len(commands) == 6
    for command, _ in commands:
        program, *arguments = shlex.split(command)
        assert program == "upcycle"
        app.parse_args(arguments, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["full"], "full exists and is not an empty folder"),
        (["a_file"], "a_file exists and is not an empty folder"),
        (["a_file/below"], "cannot be written"),
        (["Shop"], "'Shop' is no name for a model"),
        (["new", "--preset", "sheets"], "there is no preset 'sheets'; use blank, incident, mcp or sheet"),
        (["new", "--tasks", "0"], "--tasks is 0"),
        (["new", "--held-out", "100001"], "--held-out is 100001"),
        (["new", "--demonstrations", "-1"], "--demonstrations is -1"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_changes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.py").write_text("mine")
    (tmp_path / "a_file").write_text("mine")
    assert run(["init", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "a_file",
        "full",
        "full/mine.py",
    ]


def test_an_empty_folder_is_taken_and_stays_the_one_that_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop").mkdir()
    monkeypatch.chdir(tmp_path / "shop")
    assert run(["init", ".", "--demonstrations", "0"]) == 0
    assert Path("env.py").read_text().count('Environment("shop")') == 1
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


def test_an_interrupted_command_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(folder: Path, count: int) -> None:
        assert (folder / "env.py").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("upcycle.cli.init.demonstrate", interrupted)
    run(["init", str(tmp_path / "shop")])
    assert not list(tmp_path.iterdir())


def test_demonstrations_that_fail_are_said(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    write_project(NewProject(tmp_path / "shop", "blank", 2, 2), tmp_path / "shop")
    (tmp_path / "shop" / "player.py").write_text("def reply(task, messages):\n    return 'seven'\n")
    with pytest.raises(Failed, match=r"the reference player earned 0.000 of task 'train-0000000'"):
        demonstrate(tmp_path / "shop", 2)
    assert not (tmp_path / "shop" / "demonstrations.jsonl").exists()


def test_demonstrations_of_an_environment_that_fails_name_the_task(tmp_path: Path) -> None:
    (tmp_path / "broken_world.py").write_text(
        "from upcycle import Environment\n"
        "env = Environment('broken')\n"
        "@env.scenario('s')\n"
        "def s():\n"
        "    yield 'go'\n"
        "    raise KeyError('grade')\n"
        "tasks = [s.task(slug='one')]\n"
    )
    taskset = Taskset.load(tmp_path / "broken_world.py")
    with pytest.raises(Failed, match=r"task 'one': grade failed: .*KeyError: 'grade'"):
        write_demonstrations(tmp_path / "out.jsonl", taskset, lambda task, messages: "x")


@pytest.mark.parametrize("name", ["env.py", "grading.py", "names.py", "world.py"])
def test_the_incident_preset_is_the_example(name: str) -> None:
    example = (ROOT / "examples" / "incident" / name).read_text().replace("from examples.incident.", "from ")
    assert ast.dump(ast.parse((TEMPLATES / "incident" / name).read_text())) == ast.dump(ast.parse(example))
