"""`upcycle eval --benchmark` of an agent of others ends with whom it is compared with."""

import json
from pathlib import Path

import pytest
from tests.support.model_servers import KEY, MODEL, Turn, openai_shaped, serving

from upcycle.cli.main import run


def answers(results: list[str]) -> Turn:
    """Gives up at once."""
    return Turn("I do not know")


def test_the_report_of_a_benchmark_names_its_anchor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    with serving(openai_shaped(answers)) as server:
        agent = f"openai:{server.url}/v1#{MODEL}"
        command = ["eval", "--benchmark", "repair-30", "--agent", agent, "--limit", "2"]
        assert run(command) == 0
        text = capsys.readouterr().out
        assert run([*command, "--json"]) == 0
        done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "anchor: scripted-5, 5 scripted players; no people (upcycle baseline record adds them)\n" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("all ")]
    # Nothing is lower than 0. Two of five scripts earn as little on the first task, three on the second
    # (the beginner leaves it): half of 40 % and of 60 %.
    assert row == ["all", "25", "–"]
    assert done["anchor"]["overall"] == {"name": "all", "scripted": 25.0, "people": None, "people_tasks": 0}
