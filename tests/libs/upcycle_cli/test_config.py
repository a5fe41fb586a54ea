"""`upcycle config show`, and commands that follow the settings."""

import json
import os
from pathlib import Path

import pytest

from upcycle.cli.main import run
from upcycle.cli.up import Layout, with_settings
from upcycle.errors import UpcycleError
from upcycle.user_settings.layers import UserSettings

SECRET = "sk-never-shown-anywhere"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder; its parent is the home folder, with a profile that holds a key."""
    profile = tmp_path / ".config" / "upcycle" / "config.toml"
    profile.parent.mkdir(parents=True)
    profile.write_text(f'[keys]\nOPENAI_API_KEY = "{SECRET}"\n[up]\nmodel = "mine"\n')
    profile.chmod(0o600)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(work)
    return work


def test_each_setting_is_shown_with_its_source_and_no_key_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "upcycle.toml").write_text("[eval]\ngroup_size = 4\n")
    monkeypatch.setenv("UPCYCLE_CLAUDE_MODEL", "haiku")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://me:password@host/v1")
    assert run(["config", "show", "--sources"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    profile = folder.parent / ".config/upcycle/config.toml"
    assert lines["keys.OPENAI_API_KEY"] == ["set", "profile:", f"{profile}:2", "OPENAI_API_KEY"]
    assert lines["keys.GEMINI_API_KEY"] == ["not", "set", "default", "GEMINI_API_KEY"]
    where = f"{folder}/upcycle.toml:2"
    assert lines["eval.group_size"] == ["4", "project:", where, "UPCYCLE_EVAL_GROUP_SIZE"]
    assert lines["agents.claude_model"][:2] == ["haiku", "environment:"]
    assert lines["train.group_size"][:2] == ["8", "default"]
    assert lines["agents.openai_url"][:2] == ["set", "environment:"]


def test_what_commands_take_from_the_running_platform_is_shown_with_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / ".upcycle" / "up" / "state.json"
    place.parent.mkdir(parents=True)
    peers = {"registry": "127.0.0.1:7406", "gateway": "127.0.0.1:7480"}
    place.write_text(json.dumps({"pid": os.getpid(), "peers": peers, "gateway_key_file": "gateway.key"}))
    monkeypatch.setenv("UPCYCLE_PEERS_GATEWAY", "127.0.0.1:9")
    monkeypatch.delenv("UPCYCLE_API_KEY", raising=False)
    assert run(["config", "show", "--sources"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["platform.registry"][:4] == ["127.0.0.1:7406", "running", "platform:", str(place)]
    assert lines["platform.gateway"][:2] == ["127.0.0.1:9", "environment:"]
    key = str(place.parent / "gateway.key")
    assert lines["keys.UPCYCLE_API_KEY"][:4] == ["set", "running", "platform:", key]


def test_json_lines_hold_no_key(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--json"]) == 0
    printed = capsys.readouterr().out
    rows = {row["key"]: row for row in map(json.loads, printed.splitlines())}
    assert (rows["keys.OPENAI_API_KEY"]["value"], rows["keys.OPENAI_API_KEY"]["is_set"]) == (None, True)
    assert (rows["up.model"]["value"], rows["up.model"]["layer"]) == ("mine", "profile")
    assert SECRET not in printed


def test_a_wrong_file_ends_any_command_with_its_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "upcycle.toml").write_text("[platform]\nhots = 'x'\n")
    for command in (["config", "show"], ["runs"], ["eval", "tasks.py", "claude"]):
        assert run(command) == 2
        assert f"{folder}/upcycle.toml:2: unknown key 'hots' in [platform]; did you mean 'host'?" in (
            capsys.readouterr().err
        )


def test_up_takes_what_no_flag_says(folder: Path) -> None:
    (folder / "upcycle.toml").write_text("[up]\nport_offset = 100\ndata_dir = 'data'\nmodel_dir = 'm'\n")
    found = with_settings(Layout(), UserSettings.read())
    assert (found.model, found.port_offset, found.engine) == ("mine", 100, "embedded")
    assert (found.data_dir, found.model_dir) == (folder / "data", folder / "m")
    asked = with_settings(Layout(model="other", port_offset=0, data_dir=Path("x")), UserSettings.read())
    assert (asked.model, asked.port_offset, asked.data_dir) == ("other", 0, Path("x"))
    standing = with_settings(Layout(standing=Path("run.toml")), UserSettings.read())
    assert standing.model is None, "the standing run's model is served"


def test_a_misspelt_variable_of_up_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPCYCLE_UP_PORTOFFSET", "1")
    with pytest.raises(UpcycleError, match="did you mean 'UPCYCLE_UP_PORT_OFFSET'"):
        with_settings(Layout(), UserSettings.read())
