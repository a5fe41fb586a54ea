"""`upcycle tasksets from` the trajectories of an evaluation in one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.tasks import Taskset

REWARDS = {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (0.2, 0.2), "d": (None, None)}


def lines(**planned: Any) -> str:
    """Four tasks, twice each."""
    asked = {"taskset": "sums", "split": "train", "group": 2, "num_episodes": 8, **planned}
    where = {"name": "arith", "path": "env.py"}
    rows: list[dict[str, Any]] = [
        {
            "run_id": "here-1",
            "episode_id": f"here-1/{slug}/{at}",
            "task": {
                "slug": slug,
                "scenario": "add",
                "args": {"n": slug},
                "environment": where,
                "digest": "x",
            },
            "turns": [],
            "reward": reward,
            "success": reward == 1.0,
            "planned": asked,
        }
        for slug, rewards in REWARDS.items()
        for at, reward in enumerate(rewards)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(lines())
    return tmp_path


def chosen(*flags: str) -> list[str]:
    assert run(["tasksets", "from", "t.jsonl", *flags, "-o", "hard.jsonl", "--overwrite"]) == Exit.OK
    return [task.slug for task in Taskset.load("hard.jsonl")]


def test_the_tasks_are_chosen_as_those_of_a_run_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen("--failed") == ["a", "c"]
    said = (
        "hard.jsonl: taskset sums-failed, 2 of 4 tasks; 0 held-out tasks left out, 1 without a graded episode"
    )
    assert said in capsys.readouterr().out
    assert chosen("--no-spread") == ["a", "c"]
    assert chosen("--below", "0.3") == ["a", "c"]
    assert chosen("--below", "0.6") == ["a", "b", "c"]
    written = Taskset.load("hard.jsonl")
    assert (written.split, written.tasks[1].args, written.environment.name) == ("train", {"n": "b"}, "arith")


def test_held_out_tasks_are_left_out_of_a_file_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "t.jsonl").write_text(lines(split="held_out"))
    assert run(["tasksets", "from", "t.jsonl", "--failed", "-o", "hard.jsonl"]) == Exit.FAILED
    assert "0 of 4 tasks; 4 held-out tasks left out" in capsys.readouterr().err
    assert not Path("hard.jsonl").exists()


def test_what_a_killed_writer_left_is_read_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = lines(num_episodes=40)
    (folder / "t.jsonl").write_text(whole + whole[:50])
    assert chosen("--failed") == ["a", "c"]
    said = capsys.readouterr().err
    assert "t.jsonl: graded 6 of 40 episodes; interrupted" in said
    assert "line 9, the last one of t.jsonl, is cut off: it is left out" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (lines(split=""), "t.jsonl does not say of which split its tasks are; name the run instead"),
        (lines().replace('"args"', '"arg"'), "t.jsonl:1: its task has no 'args'; name the run instead"),
        (lines().replace("\n", "\n{\n", 1), "t.jsonl:2: not JSON"),
        ("", "t.jsonl holds no trajectory"),
    ],
)
def test_what_holds_no_tasks_is_refused_by_name(
    folder: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "t.jsonl").write_text(text)
    assert run(["tasksets", "from", "t.jsonl", "--failed", "-o", "hard.jsonl"]) == Exit.USAGE
    assert said in capsys.readouterr().err
