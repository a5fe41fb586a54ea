"""`upcycle eval --best-of` and `upcycle reward-model train`: what is refused, and what is chosen."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.libs.reward_models.small_policy import COLOURS, MAX_LENGTH, write_policy
from tests.libs.upcycle_cli.doors import doors, line
from tests.support.model_servers import KEY, MODEL, Turn, openai_shaped, serving

from upcycle.cli.main import run


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Graded episodes: 40 tasks that may train, 2 that may not, and what teaches nothing."""
    written = [line(task, attempt) for task in range(40) for attempt in range(4)]
    written += [line(40, 0, split="held_out"), line(41, 0, split="audit")]
    written += [{**line(1, 5), "reward": None, "success": None}, {**line(2, 5), "guided_after": "ep-1"}]
    path = tmp_path / "trajectories.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in written))
    return path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--best-of", "4"], "--best-of 4 says not what chooses; add --select orm:FOLDER"),
        (["--select", "orm:x"], "--select orm:x chooses among how many attempts?"),
        (["--best-of", "1", "--select", "orm:x"], "--best-of is 1; there is a choice among 2 or more"),
        (["--best-of", "4", "--select", "reward"], "--select reward would look at the answer"),
        (["--best-of", "4", "--select", "judge"], "--select 'judge' chooses nothing"),
        (["--best-of", "4", "--select", "orm:"], "--select 'orm:' chooses nothing"),
        (["--best-of", "4", "--select", "orm:x", "--group", "2"], "--best-of is 4, and --group is 2"),
        (["--best-of", "4", "--select", "orm:x", "--detach"], "--detach leaves before there is anything"),
        (["--best-of", "4", "--select", "orm:absent", "--dry-run"], "absent is no folder"),
    ],
)
def test_what_cannot_be_chosen_is_refused_in_one_line(
    flags: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(doors(tmp_path))
    assert run(["eval", "tasks.py", "m", *flags]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert len(printed.strip().splitlines()) == 1


def test_a_policy_is_refused_as_a_reward_model_before_anything_is_played(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(doors(tmp_path))
    assert run(["eval", "tasks.py", "m", "--best-of", "2", "--select", f"orm:{base}"]) == 2
    assert f"{base} is no reward model" in capsys.readouterr().err


def test_a_reward_model_is_trained_on_a_file_and_chooses_in_an_evaluation(
    base: Path, lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    orm = tmp_path / "orm"
    command = ["reward-model", "train", str(lines), "--base", str(base), "-o", str(orm)]
    assert run([*command, "--learning-rate", "3e-3", "--epochs", "4", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    left_out = {
        "of held-out tasks": 1,
        "of audit tasks": 1,
        "without a grade": 1,
        "guided: their prompt had help": 1,
    }
    assert (made["kind"], made["episodes"], made["tasks"], made["left_out"]) == (
        "reward_model",
        128,
        32,
        left_out,
    )
    assert made["kept_apart"]["auc"]["value"] > 0.9
    assert made["max_tokens"] == MAX_LENGTH

    monkeypatch.chdir(doors(tmp_path))
    said = iter(COLOURS * 50)
    with serving(openai_shaped(lambda results: Turn(f"the colour is {next(said)}"))) as server:
        monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
        agent = ["--agent", f"openai:{server.url}/v1#{MODEL}", "--max-concurrent", "1"]
        chooses = ["--best-of", "4", "--select", f"orm:{orm}"]
        assert run(["eval", "tasks.py", *agent, *chooses]) == 2
        assert f"{orm} reads {MAX_LENGTH}" in capsys.readouterr().err
        assert not server.turns
        short = ["--max-tokens-per-episode", str(MAX_LENGTH)]
        assert run(["eval", "tasks.py", *agent, *chooses, *short, "--min-success", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    best = done["best_of"]
    shares = [best[name]["value"] for name in ("chosen", "mean", "ceiling", "gain", "left")]
    assert shares == [1.0, 0.25, 1.0, 0.75, 0.0]
    assert (best["num_attempts"], best["num_tasks"], best["num_seen"]) == (4, 3, 0)
    assert best["gate_evidence"] is False
    assert len(done["evaluation"]["episodes"]) == 12


def test_an_attempt_more_or_less_trains_nothing_where_all_is_held_out(
    base: Path, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "held.jsonl"
    path.write_text(json.dumps(line(1, 0, split="held_out")) + "\n")
    command = ["reward-model", "train", str(path), "--base", str(base), "-o", str(tmp_path / "orm")]
    assert run(command) == 2
    assert "has no episode to learn from: 1 of held-out tasks" in capsys.readouterr().err
    assert not (tmp_path / "orm").exists()
