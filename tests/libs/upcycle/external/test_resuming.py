"""`upcycle eval --resume here-…`: what has a reward is kept, the rest is played."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, Said, Turn, openai_shaped, serving

from upcycle.cli.main import run


def answers(results: list[str]) -> Turn:
    """Looks for tea, and says what there is."""
    return Turn(results[-1]) if results else Turn("", ("stock", {"item": "tea"}))


class Flaky:
    """A server that knows nothing of milk until it is repaired."""

    def __init__(self) -> None:
        self.is_repaired = False
        self.asked: list[str] = []
        self._answer = openai_shaped(answers)

    def __call__(self, asked: Asked) -> Said:
        body = json.dumps(asked.body)
        if asked.method == "POST" and "How much" in body:
            self.asked.append("milk" if "How much milk?" in body else "tea")
            if self.asked[-1] == "milk" and not self.is_repaired:
                return Said(400, {"error": {"message": "no milk today"}})
        return self._answer(asked)


@pytest.fixture
def server(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    flaky = Flaky()
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    with serving(flaky) as address:
        monkeypatch.setenv("SERVER", f"openai:{address.url}/v1#{MODEL}")
        yield flaky


def evaluate(*more: str, group: int = 2) -> int:
    return run(["eval", "tasks.py", "--agent", os.environ["SERVER"], "--group", str(group), *more])


def begun(capsys: pytest.CaptureFixture[str]) -> tuple[str, Path]:
    """Id and file of an evaluation of which two of four episodes are missing."""
    assert evaluate() == 3
    said = capsys.readouterr().out
    (folder,) = Path(".upcycle/evaluations").iterdir()
    assert f"the same command with --resume {folder.name} plays what is missing" in said
    return folder.name, folder / "trajectories.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_missing_is_played_and_what_was_graded_is_kept(
    server: Flaky, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id, path = begun(capsys)
    kept = [row for row in rows(path) if row["reward"] is not None]
    server.is_repaired = True
    server.asked.clear()
    assert evaluate("--resume", run_id, "--json") == 0
    printed = capsys.readouterr()
    assert set(server.asked) == {"milk"}
    assert "2 of 4 episodes were graded before, 2 without a reward are played again" in printed.err
    done = json.loads(printed.out.splitlines()[-1])
    assert (done["run_id"], done["coverage"]["num_graded"], done["coverage"]["num_planned"]) == (run_id, 4, 4)
    assert [row for row in rows(path) if row["task"]["slug"] == "tea"] == kept
    assert sorted(row["episode_id"] for row in rows(path)) == [
        f"{run_id}/{task}/{attempt}" for task in ("milk", "tea") for attempt in (0, 1)
    ]
    assert run(["compare", run_id, run_id]) == 0


def test_an_evaluation_that_is_whole_is_reported_again_and_no_server_is_asked(
    server: Flaky, capsys: pytest.CaptureFixture[str]
) -> None:
    server.is_repaired = True
    assert evaluate() == 0
    run_id = next(Path(".upcycle/evaluations").iterdir()).name
    first = capsys.readouterr().out
    server.asked.clear()
    assert evaluate("--resume", run_id) == 0
    assert server.asked == []
    assert capsys.readouterr().out.splitlines()[0] == first.splitlines()[0]


def test_a_resume_that_is_refused_names_why_and_leaves_the_file(
    server: Flaky, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id, path = begun(capsys)
    before = path.read_text()
    refused = [
        (["eval", "tasks.py", "--resume", run_id], "TASKS and the agent missing"),
        (["eval", "--attach", run_id], f"that command with --resume {run_id} plays what is missing"),
        (["eval", "--resume", "here-nosuch"], f"the newest in this folder: {run_id}"),
    ]
    for command, said in refused:
        assert run(command) == 2
        assert said in capsys.readouterr().err
    assert evaluate("--resume", run_id, group=3) == 2
    assert f"{run_id} was begun with group 2, not 3; give the command" in capsys.readouterr().err
    (shop / "env.py").write_text((shop / "env.py").read_text() + "\n# edited\n")
    assert evaluate("--resume", run_id) == 2
    assert f"{run_id} was begun with source digest " in capsys.readouterr().err
    assert path.read_text() == before
