"""What an author of an environment gets wrong: one line that names file, line, thing and way out.

2: nothing was played; 1: an episode was begun.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from upcycle import Environment
from upcycle.cli.main import run
from upcycle.errors import DefinitionError

HEAD = """from upcycle import Environment, Taskset
env = Environment("shop")
"""
ASK = """@env.scenario("ask")
async def ask(q: str):
    answer = yield q
    yield 1.0
"""


def tasks_of(*calls: str, rest: str = "") -> str:
    return f'tasks = Taskset("t", [{", ".join(calls)}]{rest})\n'


def played(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(HEAD + body)
    Path("say.jsonl").write_text('"hi"\n')
    return run(["play", "mine.py", "--script", "say.jsonl"])


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        (ASK + tasks_of('ask(question="a")'), 7, "ask: unknown argument 'question'; it takes q"),
        (ASK + tasks_of('ask("a")'), 7, "ask: argument 'a' has no name; write ask(q=…)"),
        (ASK + tasks_of("ask(q={1})"), 7, "ask.q: expected a string, got {1}"),
        (ASK + tasks_of("ask()"), 7, "ask: missing argument 'q'; it takes q"),
        (ASK + tasks_of('ask(q="a")', 'ask(q="a")'), 7, "occurs twice; make slugs unique"),
        (ASK + tasks_of('ask(q="a")', rest=', "heldout"'), 7, "split 'heldout' is unknown; use 'train'"),
        (ASK.replace('("ask")', ""), 3, '@env.scenario is missing its parentheses; write @env.scenario("'),
        ("@env.tool\ndef add(): ...\n", 3, "@env.tool is missing its parentheses; write @env.tool()"),
        ("@env.tool()\n" + ASK, 3, "tool 'ask' is a scenario, or yields as one; a tool is what"),
        (ASK.replace("\n", "\n@env.tool()\n", 1), 4, "tool 'ask' is a scenario, or yields as one"),
        (ASK.replace("yield", "_ ="), 3, "scenario 'ask' is not a generator function; write `answer ="),
        (ASK + ASK, 7, "environment 'shop' has two scenarios called 'ask'; give one of them another name"),
        (
            "@env.tool()\ndef big() -> str: ...\n" * 2,
            5,
            "environment 'shop' has two tools called 'big'; give one of them another name",
        ),
        (
            'env.connect_mcp_config({"mcpServers": {"docs": {"url": "http://127.0.0.1:1/mcp"}}})\n',
            3,
            "connect_mcp_config got a whole configuration file; pass what is inside mcpServers",
        ),
        (
            ASK.replace("q: str", "q: float") + tasks_of('ask(q=float("nan"))'),
            7,
            "ask.q: JSON cannot carry this: Out of range float values",
        ),
        (
            ASK.replace("q: str", "q: dict") + tasks_of('ask(q={"a": object()})'),
            7,
            "ask.q: JSON cannot carry this: Object of type object",
        ),
    ],
)
def test_a_declaration_that_cannot_work_names_its_line(
    body: str,
    line: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert played(body, tmp_path, monkeypatch) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"upcycle: mine.py:{line}: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_two_environments_of_one_name_are_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = 'again = Environment("shop")\n' + ASK + tasks_of('ask(q="a")')
    assert played(body, tmp_path, monkeypatch) == 2
    said = capsys.readouterr().err
    assert "mine.py has two environments called 'shop': env and again; give one of them another name" in said


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        (
            ASK.replace("    yield 1.0\n", ""),
            3,
            "ended before its second yield (the reward); a scenario yields",
        ),
        (ASK + "    yield 1.0\n", 7, "yielded a third time; yield the prompt, then the reward"),
        (ASK.replace("1.0", "1.7"), 6, "reward is 1.7, outside [0, 1]; rescale it"),
        (ASK.replace("1.0", "'good'"), 6, "reward"),
        (
            ASK.replace("yield 1.0", "yield int(answer)"),
            6,
            "raised before its second yield (the reward): Val",
        ),
        (ASK.replace("yield q", "yield 7"), 5, "first yield is of type int, not a prompt; yield a str"),
        (ASK + "    raise KeyError('late')\n", 7, "raised after its second yield: KeyError: 'late'"),
    ],
)
def test_a_scenario_that_breaks_the_protocol_names_its_line(
    body: str,
    line: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert played(body + tasks_of('ask(q="a")'), tmp_path, monkeypatch) == 1
    *_, failure, shown_by = capsys.readouterr().out.splitlines()
    assert f"scenario 'ask' (mine.py:{line})" in failure
    assert said in failure
    assert shown_by.startswith("upcycle trajectories show ")


OURS = ("upcycle/", "asyncio/", "/mcp/", "/anyio/", "subprocess.py", "Traceback")
SERVED = 'env.connect_mcp_config({"docs": {"command": "PROGRAM"}})\n' + ASK


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (ASK + "    yield 1.0\n", "yielded a third time"),
        (ASK.replace("yield q", "yield {1: q}"), "first yield is of type dict"),
        (SERVED.replace("PROGRAM", "no-such-program"), "run its command in a shell"),
        (SERVED.replace("PROGRAM", "false"), "run its command in a shell"),
    ],
)
def test_what_has_no_line_of_the_author_is_shown_without_lines_of_ours(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(body + tasks_of('ask(q="a")'), tmp_path, monkeypatch) == 1
    shown = capsys.readouterr().out
    assert said in shown
    assert [one for one in OURS if one in shown] == []


def test_an_error_of_the_author_has_the_authors_lines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "import json\n" + ASK.replace("yield 1.0", "yield json.loads('{')") + tasks_of('ask(q="a")')
    assert played(body, tmp_path, monkeypatch) == 1
    shown = capsys.readouterr().out
    lines = [line.split('"')[1] for line in shown.splitlines() if line.startswith('  File "')]
    assert lines[0] == str(tmp_path / "mine.py")
    assert not [one for one in lines if "upcycle/" in one or "asyncio" in one]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            ASK.replace("yield q", "yield q * 20_000_000"),
            "scenario 'ask' (mine.py:5): its prompt has 20000002 bytes as JSON, limit 15728640; ask",
        ),
        (
            "from upcycle import EvaluationResult\n"
            + ASK.replace("yield 1.0", "yield EvaluationResult(1.0, None, (), {'log': 'x' * 20_000_000})"),
            "scenario 'ask' (mine.py): frame of the answer to tasks.grade",
        ),
        (
            "import os\n" + ASK.replace("yield 1.0", "os._exit(7)\n    yield 1.0"),
            "process_ended: scenario 'ask' (mine.py): its process ended with exit status 7; raise an error",
        ),
    ],
)
def test_what_no_frame_carries_and_an_end_of_the_process_name_the_scenario(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played(body + tasks_of('ask(q="a")'), tmp_path, monkeypatch) == 1
    assert said in capsys.readouterr().out


def test_two_files_with_environments_of_one_name_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.py").write_text(HEAD + ASK)
    body = "import other\n" + ASK + tasks_of('other.ask(q="a")', 'ask(q="b")')
    assert played(body, tmp_path, monkeypatch) == 2
    said = f"'shop': {tmp_path / 'other.py'} and {tmp_path / 'mine.py'}; give one of them another name"
    assert said in capsys.readouterr().err


def test_a_plain_generator_names_its_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    body = ASK.replace("async def", "def").replace("1.0", "[]") + tasks_of('ask(q="a")')
    assert played(body, tmp_path, monkeypatch) == 1
    assert "scenario 'ask' (mine.py:6)" in capsys.readouterr().out


HEADER = '{"name": "t", "environment": {"name": "shop", "path": "mine.py"}}\n'


def row(**fields: object) -> str:
    return json.dumps({"slug": "a", "scenario": "ask", "args": {"q": "b"}, **fields}) + "\n"


@pytest.mark.parametrize(
    ("text", "suffix", "said"),
    [
        (
            HEADER + row() + row(args={"q": "c"}),
            "jsonl",
            "f.jsonl:3: slug 'a' occurs twice, first at f.jsonl:2;",
        ),
        (
            HEADER + "\n" + row(args=7),
            "jsonl",
            "f.jsonl:3: task 'a': arguments are of type int, not an object",
        ),
        (HEADER + row(famly="x"), "jsonl", "f.jsonl:2: task row has unknown field 'famly'; use args, env"),
        (
            HEADER + row(scenario="aks"),
            "jsonl",
            "task 'a': environment 'shop' has no scenario 'aks'; it has ask",
        ),
        (HEADER + row(args={"p": 1}), "jsonl", "task 'a': ask: unknown argument 'p'; it takes q"),
        (HEADER + row(args={"q": 1}), "jsonl", "task 'a': ask.q: expected a string, got 1"),
        (
            HEADER.replace("shop", "shp") + row(),
            "jsonl",
            "mine.py declares no environment 'shp'; it has shop",
        ),
        (
            json.dumps({"environment": {"name": "shop"}, "tasks": [{"scenario": "ask", "args": []}]}),
            "json",
            "f.json: task 1: task 'ask': arguments are of type list",
        ),
        (
            "slug,scenario,environment,path,q\na,ask,shop,mine.py,b\na,ask,shop,mine.py,c\n",
            "csv",
            "f.csv:3: slug 'a' occurs twice, first at f.csv:2",
        ),
        ("tasks: []", "yaml", "f.yaml is a file, and none of tasks; give a .py, .json, .jsonl or .csv file"),
        ("x = 1", "py", "f.py defines no taskset; make one: tasks = Taskset("),
    ],
)
def test_a_file_of_tasks_that_cannot_be_played_is_refused_with_its_place(
    text: str,
    suffix: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(HEAD + ASK)
    Path(f"f.{suffix}").write_text(text)
    for more in (["--dry-run"], []):
        assert run(["eval", f"f.{suffix}", "m", *more]) == 2
        shown = capsys.readouterr()
        assert said in shown.err
        assert (shown.err.count("\n"), shown.out) == (1, "")


def test_two_environments_of_one_name_are_refused_by_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(HEAD + 'again = Environment("shop")\n' + ASK + tasks_of('ask(q="a")'))
    assert run(["eval", "mine.py", "m", "--dry-run"]) == 2
    assert "mine.py has two environments called 'shop'" in capsys.readouterr().err


def test_an_environment_that_is_not_here_or_needs_what_is_not_here_is_left_to_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.jsonl").write_text(HEADER + row())
    assert run(["eval", "f.jsonl", "m", "--dry-run"]) == 0
    Path("mine.py").write_text("import no_such_package\n" + HEAD + ASK)
    assert run(["eval", "f.jsonl", "m", "--dry-run"]) == 0
    assert "t: 1 task" in capsys.readouterr().err


def test_a_file_called_mcp_is_named_where_it_hides_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", ModuleType("mcp"))
    sys.modules["mcp"].__file__ = "mcp.py"
    with pytest.raises(DefinitionError, match=r"mcp\.py hides the package mcp; give the file another name"):
        Environment("e").connect_mcp_config({"one": {"command": "x"}})


def test_files_that_cannot_be_written_are_named_with_their_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(HEAD + ASK + tasks_of('ask(q="a")'))
    agent = "openai:http://127.0.0.1:9/v1#m"
    assert run(["eval", "mine.py", agent, "--trajectories", "mine.py/x/f.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "--trajectories mine.py/x/f.jsonl: its folder cannot be made: Not a directory; name a file" in said
    assert run(["up", "--data-dir", "mine.py/x"]) == 2
    said = capsys.readouterr().err
    assert "mine.py/x cannot be used: Not a directory; name another: --data-dir FOLDER" in said
