"""`upcycle eval` with a key and defaults from files: the key reaches the server, and no episode."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import KEY, MODEL, Turn, anthropic_shaped, serving

from upcycle.cli.main import run
from upcycle.external.keys import KEY_VARIABLES, without_keys
from upcycle.user_settings.catalogue import SETTINGS


def looks_for_keys(results: list[str]) -> Turn:
    """Reads the variables of the episode's process, and says them."""
    return Turn(results[-1]) if results else Turn("", ("keys", {}))


@pytest.fixture
def profile(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A home folder whose profile has the key of Claude and a server in its place."""
    with serving(anthropic_shaped(looks_for_keys)) as server:
        path = shop / "home" / "config.toml"
        path.parent.mkdir()
        path.write_text(
            f'[keys]\nANTHROPIC_API_KEY = "{KEY}"\n'
            f'[agents]\nanthropic_url = "{server.url}"\nclaude_model = "{MODEL}"\n'
            "[eval]\ngroup_size = 3\n[eval.policy]\nmodel = 'claude'\n"
        )
        path.chmod(0o600)
        monkeypatch.setenv("UPCYCLE_PROFILE", str(path))
        yield path


def test_the_key_of_the_profile_reaches_the_server_and_no_episode(
    profile: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "upcycle.toml").write_text("[eval]\ngroup_size = 1\nlabel = 'ours'\n")
    status = run(["eval", "tasks.py", "--trajectories", "t.jsonl"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    rows = [json.loads(line) for line in (shop / "t.jsonl").read_text().splitlines()]
    assert len(rows) == 2, "the project's group of 1 wins over the profile's 3"
    assert all("'UPCYCLE_PROFILE': ''" in row["answer"] for row in rows)
    assert KEY not in (shop / "t.jsonl").read_text() + printed.out + printed.err


def test_a_flag_wins_and_a_value_of_a_file_is_refused_with_its_line(
    profile: Path, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "tasks.py", "--group", "2", "--trajectories", "t.jsonl"]) == 0
    assert (shop / "t.jsonl").read_text().count("\n") == 4
    (shop / "upcycle.toml").write_text("[eval]\ngroup_size = 0\n")
    capsys.readouterr()
    assert run(["eval", "tasks.py"]) == 2
    assert f"group_size ({shop}/upcycle.toml:2)" in capsys.readouterr().err


def test_every_key_of_the_settings_is_kept_out_of_episodes() -> None:
    assert {one.variable for one in SETTINGS if one.is_secret} <= set(KEY_VARIABLES)
    assert without_keys({"OPENAI_API_KEY": "k", "UPCYCLE_PROFILE": "p", "HOME": "h"}) == {
        "HOME": "h",
        "UPCYCLE_PROFILE": "",
    }
