"""`upcycle play` as its user meets it: what is shown, what is refused by name, which status it ends with."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, Said, Turn, openai_shaped, serving

from upcycle.cli.main import run

ROOT = Path(__file__).parents[3]

TASKS = """
import os
from upcycle import Environment, EvaluationResult, SubScore

env = Environment("shop")


@env.tool()
def stock(item: str) -> str:
    "How many are left."
    print("looked up", item)
    return {"tea": "3", "red": "\\x1b[31m\\x9b2J"}[item]


@env.tool()
def huge() -> str:
    return "x" * 50_000_000


@env.tool()
def leave() -> str:
    os._exit(3)


@env.scenario("count")
def count(mood: str = "good"):
    if mood == "no prompt":
        raise KeyError("prompt")
    answer = yield "How much tea?"
    if mood == "bad":
        raise KeyError("grade")
    right = float(answer.strip() == "3")
    detail = SubScore("exact", right, 0.5, {"wanted": "3"})
    total = SubScore("all", right, 1.0, {}, (detail,))
    yield EvaluationResult(right, None, (total,), {"reason": str(answer)})


moods = {"tea": "good", "bad": "bad", "none": "no prompt"}
tasks = [count.task(slug=slug, mood=mood) for slug, mood in moods.items()]
"""
LOOK = '{"text": "I look", "tool_calls": [{"name": "stock", "arguments": {"item": "tea"}}]}\n'


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tasks.py and scripts, and the working directory."""
    monkeypatch.chdir(tmp_path)
    files = {
        "tasks.py": TASKS,
        "empty.py": "",
        "right.jsonl": LOOK + '"3"\n',
        "short.jsonl": LOOK,
        "blank.jsonl": "\n",
        "broken.jsonl": '"3"\n{"text": \n',
        "odd.jsonl": '{"txet": "3"}\n',
        "user.jsonl": '{"role": "user", "content": "3"}\n',
        "leave.jsonl": '{"tool_calls": [{"name": "leave"}]}\n',
        "huge.jsonl": '{"tool_calls": [{"name": "huge"}]}\n"3"\n',
        "hostile.jsonl": '{"text": "\\u001b]0;x\\u0007", "tool_calls": [{"name": "stock", "arguments": '
        '{"item": "red"}}, {"name": "stok"}, {"name": "stock", "arguments": {"item": "milk"}}]}\n'
        '"<tool_call>{no</tool_call>"\n"\\u202e3\\u001b[1m"\n',
        "wrong.py": "x = 1\n",
        "no_arguments.py": "def reply(): ...\n",
        "raises.py": "1 / 0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def forked(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "upcycle"), "play", *arguments]
    env, closed = {**os.environ, "NO_COLOR": "1"}, subprocess.DEVNULL
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False, stdin=closed
    )


def test_an_episode_is_played_in_a_process_of_its_own_and_shown_whole(shop: Path) -> None:
    done = forked("tasks.py", "--script", "right.jsonl", cwd=shop)
    assert done.returncode == 0, done.stderr
    for shown in (
        "tea of shop, in a process of its own",
        "user: How much tea?",
        "tool stock(item: string)  How many are left.",
        "turn 1: I look",
        '→ stock({"item": "tea"})',
        "← 3",
        "the environment printed:\nlooked up tea",
        "answered after 2 turns",
        "reward 1.000 success",
        "reason: 3",
        "└── all 1.000 × 1",
        '    └── exact 1.000 × 0.5  {"wanted": "3"}',
    ):
        assert shown in done.stdout


def test_the_first_example_of_the_guide_wins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "do" / "play.md").read_text()
    typed, shown, *_ = (one.partition("```")[0] for one in page.split("```text\n")[1:])
    said = iter([line.removeprefix("> ") for line in typed.splitlines()])
    monkeypatch.setattr("builtins.input", lambda: next(said))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.chdir(ROOT)
    assert run(["play", "examples/incident/tasks.py", "--in-process", "--no-keep"]) == 0
    assert shown in capsys.readouterr().out


def test_nothing_that_an_agent_or_a_tool_says_reaches_the_terminal_as_a_control_character(shop: Path) -> None:
    done = forked("tasks.py", "--script", "hostile.jsonl", cwd=shop)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout) & set("\x1b\x07\x9b\u202e")
    assert "unreadable: tool call is not JSON" in done.stdout
    assert "has no tool 'stok'" in done.stdout
    assert 'tasks.py", line 12, in stock' in done.stdout  # the tool's own traceback
    assert "KeyError: 'milk'" in done.stdout


def test_a_tool_that_ends_the_process_is_named_with_its_exit_status(shop: Path) -> None:
    done = forked("tasks.py", "--script", "leave.jsonl", cwd=shop)
    assert done.returncode == 1
    said = "tool 'leave' (tasks.py): its process ended with exit status 3; raise an error instead of exiting"
    assert f"no reward: tool leave failed, process_ended: {said}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["tasks.py:teaa", "--script", "right.jsonl"], 2, "has no task 'teaa'; did you mean 'tea'?"),
        (["tasks.py:zzz", "--script", "right.jsonl"], 2, "it has tea, bad, none"),
        (["empty.py", "--script", "right.jsonl"], 2, "no task"),
        (["absent.py", "--script", "right.jsonl"], 2, "no such file: absent.py"),
        (["raises.py", "--script", "right.jsonl"], 2, "raises.py:1: ZeroDivisionError"),
        (["tasks", "--script", "right.jsonl"], 2, "'tasks' is no tasks file"),
        (["tasks.py"], 2, "there is no player"),
        (["absent.py"], 2, "no such file: absent.py"),
        (["tasks.py", "--script", "right.jsonl", "--agent", "openai:http://x#m"], 2, "both name the player"),
        (["tasks.py", "--script", "right.jsonl", "--max-turns", "0"], 2, "--max-turns is 0"),
        (["tasks.py", "--script", "absent.jsonl"], 2, "no such script: absent.jsonl"),
        (["tasks.py", "--script", "absent.py"], 2, "no such file: absent.py"),
        (["tasks.py", "--script", "blank.jsonl"], 2, "blank.jsonl has no turn"),
        (["tasks.py", "--script", "broken.jsonl"], 2, "broken.jsonl:2 is not JSON"),
        (["tasks.py", "--script", "odd.jsonl"], 2, "odd.jsonl:1 is an object with unknown field 'txet'"),
        (["tasks.py", "--script", "user.jsonl"], 2, "user.jsonl:1 is a message of role 'user'"),
        (["tasks.py", "--script", "wrong.py"], 2, "wrong.py has no function 'reply'"),
        (["tasks.py", "--script", "no_arguments.py"], 2, "cannot be called with (task, messages)"),
        (["tasks.py", "--script", "raises.py"], 2, "raises.py:1"),
        (["tasks.py", "--agent", "claude"], 2, "agent 'claude' has no key; set ANTHROPIC_API_KEY"),
        (["tasks.py", "--agent", "openai:localhost#m"], 2, "names no http URL"),
        (["tasks.py", "--agent", "openai:http://127.0.0.1:9/v1"], 4, "127.0.0.1:9/v1 does not answer"),
        (["tasks.py", "--agent", "openai:http://me:pw@h/v1#m"], 2, "holds a password"),
        (["tasks.py", "--agent", "openai:http://127.0.0.1:9/v1#m"], 4, "127.0.0.1:9/v1 does not answer"),
        (["tasks.py", "--script", "short.jsonl"], 1, "has 1 turn, and the episode wants another"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(
    shop: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    assert run(["play", *arguments, "--in-process"]) == status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("slug", "during", "line"), [("bad", "grade", 31), ("none", "prompt", 28)])
def test_a_scenario_that_raises_shows_file_and_line(
    shop: Path, capsys: pytest.CaptureFixture[str], slug: str, during: str, line: int
) -> None:
    arguments = ["play", f"tasks.py:{slug}", "--script", "right.jsonl", "--in-process"]
    assert run(arguments) == 1
    shown = capsys.readouterr().out
    assert f'tasks.py", line {line}, in count' in shown
    assert f"no reward: {during} failed, scenario_error" in shown
    assert run([*arguments, "--json"]) == 1
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (record["reward"], record["failure"]["during"], record["stop_reason"]) == (
        None,
        during,
        "answered" if during == "grade" else "failed",
    )
    assert f"line {line}" in record["failure"]["traceback"]


def test_the_trajectory_is_one_json_line(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["play", "tasks.py:tea", "--script", "right.jsonl", "--in-process", "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [message["role"] for message in record["messages"]] == ["user", "assistant", "tool", "assistant"]
    called = {"name": "stock", "arguments": {"item": "tea"}, "result": "3", "is_error": False}
    assert record["turns"] == [{"text": "I look", "tool_calls": [called]}, {"text": "3", "tool_calls": []}]
    assert (record["answer"], record["reward"], record["success"]) == ("3", 1.0, True)
    assert (record["task"]["slug"], record["host"]) == ("tea", "in this process")


def test_a_result_of_50_megabytes_is_cut_for_the_player_and_for_the_terminal(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["play", "tasks.py", "--script", "huge.jsonl", "--in-process", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out.splitlines()[-1])["turns"][0]["tool_calls"]
    assert 32_768 <= len(result["result"]) < 33_000
    assert result["result"].endswith("more characters were cut]")
    assert run(["play", "tasks.py", "--script", "huge.jsonl", "--in-process"]) == 0
    assert len(capsys.readouterr().out) < 10_000


def test_too_few_turns_end_the_episode_without_an_answer(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["play", "tasks.py", "--script", "right.jsonl", "--max-turns", "1", "--in-process", "--json"]
    assert run(arguments) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (record["stop_reason"], record["answer"], record["reward"]) == ("max_turns", "", 0.0)


def test_what_was_played_can_be_read_again_and_is_left_alone_where_that_is_asked_for(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop)
    assert run(["eval", "tasks.py", "--dry-run"]) == 0  # no model and no platform is needed
    for name in ("right.jsonl", "short.jsonl"):
        run(["play", "tasks.py:tea", "--script", name, "--in-process", "--no-keep"])
    assert not (shop / ".upcycle").exists()
    assert run(["trajectories", "show", "last"]) == 4
    capsys.readouterr()
    assert run(["play", "tasks.py:tea", "--script", "right.jsonl", "--in-process"]) == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:3] == ["upcycle", "trajectories", "show"]
    assert run(command[1:]) == 0
    shown = capsys.readouterr().out
    assert "How much tea?" in shown
    assert "· script ·" in shown
    assert "reward 1.000 success" in shown
    assert run(["play", "tasks.py:bad", "--script", "right.jsonl", "--in-process", "--json"]) == 1
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    for name in (record["kept"], "last"):
        assert run(["trajectories", "show", name]) == 0
        assert "no reward: scenario_error" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["", "openai:"])
def test_an_agent_is_the_only_model_of_its_server_where_none_is_named(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    chats, models = openai_shaped(lambda results: Turn("3")), [MODEL]

    def answer(asked: Asked) -> Said:
        rows = [{"id": name} for name in models]
        return Said(200, {"data": rows}) if asked.path == "/v1/models" else chats(asked)

    with serving(answer) as server:
        url = f"{server.url}/v1"
        command = ["play", "tasks.py", "--in-process", "--agent", f"{kind}{url}"]
        assert run(command) == 0
        shown = capsys.readouterr().out
        assert "reward 1.000 success" in shown
        assert run(["trajectories", "show", shown.split()[-1]]) == 0
        assert f"{url}#{MODEL}" in capsys.readouterr().out
        for models[:], said in (
            (["a", "b"], f"{url} serves a, b; name one: {kind}{url}#a"),
            ([], f"{url} answered 200 and names no model; name one: {kind}{url}#model"),
        ):
            num_turns = len(server.turns)
            assert run(command) == 2
            assert said in capsys.readouterr().err
            assert len(server.turns) == num_turns
