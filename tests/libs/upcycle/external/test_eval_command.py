"""`upcycle eval` of agents that are no models of the platform."""

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import (
    KEY,
    MODEL,
    Asked,
    Said,
    anthropic_shaped,
    look_for_tea,
    openai_shaped,
    serving,
)

from upcycle.cli.main import run


@pytest.fixture
def claude(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A server in Anthropic's place."""
    monkeypatch.setenv("UPCYCLE_CLAUDE_MODEL", MODEL)
    with serving(anthropic_shaped(look_for_tea)) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        yield server


def test_claude_evaluates_a_taskset(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("UPCYCLE_AGENT_PRICES", f"{MODEL}=1000/10000")
    status = run(["eval", "tasks.py", "claude", "--group", "2", "--max-concurrent", "1"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    assert f"claude#{MODEL}, in this process" in printed.err
    lines = printed.out.splitlines()
    assert "success 50.0%, reward 0.500, graded 4 of 4 episodes of 2 tasks" in lines[0]
    assert lines[1] == "tokens 800 read, 80 written, cost 1.6"
    path = shop / next(line for line in lines if line.startswith("read them in: "))[len("read them in: ") :]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted((row["task"]["slug"], row["reward"]) for row in rows) == [
        ("milk", 0.0),
        ("milk", 0.0),
        ("tea", 1.0),
        ("tea", 1.0),
    ]
    assert (rows[0]["agent"], rows[0]["prompt_tokens"], rows[0]["cost"]) == (f"claude#{MODEL}", 200, 0.4)
    assert KEY not in path.read_text() + printed.out + printed.err


def test_the_report_of_an_agent_of_others_is_the_whole_one_and_what_it_names_can_be_shown(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert run(["eval", "tasks.py", "claude", "--group", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    intervals = next(line for line in lines if line.startswith("95 % intervals"))
    assert "success 50.0% [" in intervals
    assert "per episode 2.0 turns, 20 tokens (80 in all);" in "\n".join(lines)
    assert "pass@k, one of k succeeds  50.0%  50.0%" in lines
    assert "0 of 2 whole groups (0%) have spread at --group 2: only those would train" in lines
    command = lines[lines.index("worst:") + 1].partition("upcycle ")[2]
    assert command.startswith("trajectories show here-")
    assert run(command.split()) == 0
    shown = capsys.readouterr().out
    assert "How much milk?" in shown
    assert '→ stock({"item": "tea"})' in shown
    assert "← 3" in shown
    assert "reward 0.000 no success" in shown
    assert run([*command.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["task"]["slug"] == "milk"


def test_an_episode_of_a_file_elsewhere_is_shown_and_another_one_is_not_found(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert run(["eval", "tasks.py", "claude", "--trajectories", "my own.jsonl"]) == 0
    worst = next(line for line in capsys.readouterr().out.splitlines() if line.endswith(".jsonl'"))
    command = shlex.split(worst.partition("upcycle ")[2])
    assert command[-2:] == ["--file", "my own.jsonl"]
    assert run(command) == 0
    assert "How much milk?" in capsys.readouterr().out
    assert run(["trajectories", "show", "last", "--file", "my own.jsonl"]) == 0
    assert run(["trajectories", "show", command[2].replace("milk", "mulk"), "--file", "my own.jsonl"]) == 2
    assert f"it has {command[2]}" in capsys.readouterr().err
    assert run(["trajectories", "show", "here-0"]) == 2
    assert "there is no file .upcycle/evaluations/here-0/trajectories.jsonl" in capsys.readouterr().err


def test_json_lines_say_the_same(
    claude: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    status = run(
        ["eval", "tasks.py", "claude", "--json", "--min-success", "0.6", "--trajectories", "t.jsonl"]
    )
    launch, done = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert status == 3
    assert (launch["kind"], launch["agent"], launch["group"]) == ("launch", f"claude#{MODEL}", 1)
    assert (done["success_rate"], done["coverage"]["share"], done["trajectories"]) == (0.5, 1.0, "t.jsonl")
    assert done["usage"]["prompt_tokens"] == 400
    assert Path("t.jsonl").read_text().count("\n") == 2
    assert (done["report"]["overall"]["num_tasks"], done["evaluation"]["model"]) == (2, f"claude#{MODEL}")
    rows = [(row["task_slug"], row["reward"], row["ended"]) for row in done["evaluation"]["episodes"]]
    assert rows == [("milk", 0.0, "answered"), ("tea", 1.0, "answered")]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A test run in the background of a shell was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_says_how_far_it_was_and_what_is_left_is_no_whole_evaluation(
    shop: Path, interruptible: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = openai_shaped(look_for_tea)

    def interrupting(asked: Asked) -> Said:
        if asked.method == "POST" and "How much milk?" in json.dumps(asked.body):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)  # the answer must not come before the signal
        return answer(asked)

    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    with serving(interrupting) as server:
        agent = f"openai:{server.url}/v1#{MODEL}"
        command = ["eval", "tasks.py", "--agent", agent, "--max-concurrent", "1", "--trajectories", "t.jsonl"]
        assert run(command) == 130
    assert "graded 1 of 2 tasks; interrupted; read them in: t.jsonl" in capsys.readouterr().err
    (row,) = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    planned = row["planned"]
    assert (planned["taskset"], planned["group"], planned["num_episodes"]) == ("shop-tasks", 1, 2)
    assert len(planned["source_digest"]) == 64
    assert run(["compare", "t.jsonl", "t.jsonl"]) == 2
    assert "is not whole: graded 1 of 2 tasks; interrupted" in capsys.readouterr().err


def test_two_of_them_compare(
    claude: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("a", "b"):
        assert run(["eval", "tasks.py", "claude", "--json", "--trajectories", f"{name}.jsonl"]) == 0
        Path(f"{name}.json").write_text(capsys.readouterr().out)
    said = []
    for a, b in (("a.json", "b.json"), ("a.jsonl", "b.json"), ("a.jsonl", "b.jsonl")):
        assert run(["compare", a, b]) == 0
        said.append(capsys.readouterr().out)
    assert "success +0.0 points" in said[0]
    assert said[0] == said[1] == said[2]


def test_a_file_names_tasks_beside_it_and_a_refused_key_leaves_yesterdays_lines(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "sub").mkdir()
    for name in ("env.py", "tasks.py"):
        (shop / name).rename(shop / "sub" / name)
    (shop / "sub" / "eval.toml").write_text('taskset = "tasks.py"\n[policy]\nmodel = "claude"\n')
    Path("t.jsonl").write_text("yesterday\n")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "expired-expired")
    command = ["eval", "--config", "sub/eval.toml", "--trajectories", "t.jsonl"]
    assert run(command) == 2
    assert "answered 401: the key is not accepted" in capsys.readouterr().err
    assert Path("t.jsonl").read_text() == "yesterday\n"
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert run(command) == 0
    assert [json.loads(line)["reward"] is None for line in Path("t.jsonl").read_text().splitlines()] == [
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["tasks.py", "claude"], 2, "agent 'claude' has no key; set ANTHROPIC_API_KEY"),
        (["tasks.py", "gemini"], 2, "agent 'gemini' has no key; set GEMINI_API_KEY"),
        (["tasks.py", "operator"], 2, "agent 'operator' needs a screen"),
        (["tasks.py", "operator", "--gateway"], 2, "agent 'operator' needs a screen"),
        (["tasks.py", "gemini_cua", "--gateway"], 2, "agent 'gemini_cua' needs a screen"),
        (["tasks.py", "incident", "--agent", "claude"], 2, "both name the agent"),
        (["tasks.py", "claude", "--trainable"], 2, "--trainable is for models that the platform plays"),
        (["tasks.py", "claude", "--timeout-s", "9"], 2, "--timeout-s is for models that the platform plays"),
        (["tasks.py", "claude", "--set", "sampling.max_turns=abc"], 2, "sampling.max_turns"),
        (["tasks.py", "claude", "--trajectories", "env.py"], 2, "env.py exists and is no .jsonl file"),
        (["tasks.py", "claude", "--detach"], 2, "--detach leaves a run to the platform"),
        (["--agent", "claude"], 2, "TASKS missing"),
        (["tasks.py", "--gateway"], 2, "MODEL missing"),
        (["tasks.py", "claude", "--group", "0"], 2, "--group"),
        (["tasks.py", "claude", "--max-concurrent", "0"], 2, "--max-concurrent"),
        (["tasks.py", "claude", "--max-turns", "0"], 2, "--max-turns"),
        (["tasks.py", "--agent", "openai:http://127.0.0.1:9/v1#m"], 4, "127.0.0.1:9/v1 does not answer"),
        (["nothing.py", "claude"], 2, "nothing.py"),
        (
            ["tasks.py", "claude", "--resume", "here-0123456789ab"],
            2,
            "--resume here-0123456789ab: there is no file .upcycle/evaluations/here-0123456789ab/"
            "trajectories.jsonl; none was played in this folder; --trajectories names a file elsewhere",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_one_line(
    shop: Path, arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", *arguments]) == status
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("upcycle: ")
    assert said in line


def test_nothing_is_said_to_run_where_no_environment_is_served(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert run(["eval", "tasks.py", "claude", "--runtime", "tcp://127.0.0.1:9"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("upcycle: no environment answers at tcp://127.0.0.1:9")


def test_a_turn_that_was_played_counts_where_no_grade_follows(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    tasks = (shop / "tasks.py").read_text().replace('wanted="', 'fails="answer", wanted="')
    (shop / "tasks.py").write_text(tasks)
    run(["eval", "tasks.py", "claude"])
    assert "per episode 2.0 turns" in capsys.readouterr().out


def test_what_was_played_here_is_listed_where_no_platform_is_found(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    assert run(["trajectories", "list"]) == 4
    assert "no running platform was found" in capsys.readouterr().err
    assert run(["eval", "tasks.py", "claude", "--json"]) == 0
    printed = capsys.readouterr().out
    (shop / "a.json").write_text(printed)
    run_id = json.loads(printed.splitlines()[0])["run_id"]
    for flags in ((), ("--run", "last"), ("--run", run_id)):
        assert run(["trajectories", "list", "--json", *flags]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [(row["episode_id"], row["reward"]) for row in rows] == [
            (f"{run_id}/milk/0", 0.0),
            (f"{run_id}/tea/0", 1.0),
        ]
    assert run(["trajectories", "list", "--min-reward", "0.5"]) == 0
    said = capsys.readouterr()
    assert f"{run_id}/tea/0" in said.out
    assert f"{run_id}/milk/0" not in said.out
    assert "no platform was found: these were played here" in said.err
    assert run(["trajectories", "list", "--run", "run-1"]) == 4
    assert "no running platform was found" in capsys.readouterr().err
    assert run(["view", "a.json"]) == 2
    assert "a line that `upcycle eval --json` printed, for `upcycle compare`" in capsys.readouterr().err
    assert run(["tasksets", "from", run_id, "--below", "-0.5", "-o", "hard.json"]) == 1
    assert "no task is chosen by --below -0.5" in capsys.readouterr().err


def test_a_key_that_is_refused_in_the_middle_ends_with_one_line(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = openai_shaped(look_for_tea)
    with serving(lambda asked: answer(asked) if asked.method == "GET" else Said(403, "no")) as server:
        monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
        status = run(["eval", "tasks.py", "--agent", f"openai:{server.url}/v1#{MODEL}"])
    assert status == 1
    assert "answered 403: no; the key is not accepted" in capsys.readouterr().err.splitlines()[-1]


def test_the_report_names_a_tool_whose_result_held_the_answer(
    claude: Any, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    stock, wanted = (
        ('{"tea": "3", "milk": "5"}', '{"tea": "three tins", "milk": "none"}'),
        ("wanted", "expected"),
    )
    for name, words in (("env.py", stock), ("env.py", wanted), ("tasks.py", wanted)):
        text = (shop / name).read_text()
        (shop / name).write_text(text.replace(*words))
    text = (shop / "tasks.py").read_text()
    (shop / "tasks.py").write_text(text.replace('"3"', '"three tins"').replace('"5"', '"five tins"'))
    assert run(["eval", "tasks.py", "claude", "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert done["report"]["shown_answers"] == [{"task": "tea", "tool": "stock", "count": 1}]
    shown = {one["task_slug"]: one["answer_shown_by"] for one in done["evaluation"]["episodes"]}
    assert shown == {"tea": "stock", "milk": ""}, "the tool told milk's episode what tea's is to find"
