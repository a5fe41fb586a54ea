"""Likely mistakes of a person at the command line: each is one line that names the thing and the way out."""

from pathlib import Path

import pytest

from upcycle.cli.main import run

ENV = """
from upcycle import Environment, Taskset

env = Environment("on-call")


@env.scenario("ask")
async def ask(q: str):
    yield "x"
    yield 1.0


tasks = Taskset("one", [ask.task(q="1")])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Without a platform."""
    for variable in ("UPCYCLE_UP_DATA_DIR", "UPCYCLE_PLATFORM_HOST"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.py").write_text(ENV)
    (tmp_path / "wrong.py").write_text("x = (")
    (tmp_path / "lacks.py").write_text("import no_such_module_here")
    (tmp_path / "run.toml").write_text('model = "shop"\n')
    (tmp_path / "many.toml").write_text('[training]\nsteps = "many"\n')
    (tmp_path / "sub" / "tasks").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check", "TASKS is missing; `upcycle check --help` says what it is"),
        ("keys create ann", "--role is missing; `upcycle keys create --help` says what it is"),
        ("train shop --gate", "--gate has no value; `upcycle train --help` says what it takes"),
        ("eval ok.py shop --temperature hot", "--temperature is 'hot'; it takes a number"),
        ("eval ok.py shop --group some", "--group is 'some'; it takes a whole number"),
        ("play ok.py --zzz 1", "Unknown option: --zzz. `upcycle play --help` names those that there are"),
        ("set", "nothing is named to set; give NAME, --list, or --remove NAME"),
        ("set OPENAI_API_KEY --list", "NAME and --list ask for different things; give one of them"),
        ("set --list --from-file x", "--from-file is given without NAME; give both"),
        ("set secret", "nothing is named to set; give NAME, --list, --remove NAME, or --rotate"),
        ("check ok.py --limit 0", "--limit is 0; give at least 1 task"),
        ("check ok.py --max-cheat 2", "--max-cheat is 2; it is a reward from 0 to 1, such as 0.05"),
        ("check sub/tasks", "sub/tasks is a folder; give a .py, .json, .jsonl or .csv file"),
        (
            "eval sub/tasks shop",
            "sub/tasks is a folder; give a .py, .json, .jsonl or .csv file, "
            "or the name of a registered taskset",
        ),
        ("eval --config run.toml", "model (run.toml:1): unknown key 'model'; did you mean 'policy.model'?"),
        ("train --config run.toml", "model (run.toml:1): unknown key 'model'; did you mean 'policy.model'?"),
        ("train m --config many.toml", "training.steps (many.toml:2) = 'many' is not a whole number"),
        (
            "train m --taskset ok.py --gate ok.py",
            "--gate is ok.py, a file; name a held-out taskset of the tasks file, or a registered one",
        ),
        ("eval wrong.py shop", "wrong.py:1: SyntaxError: '(' was never closed"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    assert run(line.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"upcycle: {said}\n")


def test_a_module_that_is_missing_names_where_it_belongs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "lacks.py", "shop"]) == 2
    said = capsys.readouterr().err
    assert "lacks.py:1: ModuleNotFoundError: No module named 'no_such_module_here'; install what has" in said


def test_a_mistyped_file_of_a_page_is_named_where_no_platform_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["view", "nothere"]) == 4
    assert "nothere is no file, and as the id of a run: no running platform" in capsys.readouterr().err
    assert run(["view", "last"]) == 4
    assert capsys.readouterr().err.startswith("upcycle: no running platform")
