"""`upcycle store keys`."""

import json
from pathlib import Path

import pytest

from upcycle.cli.main import run

SERVICES = 8


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that the server shall let do everything."""
    monkeypatch.setenv("UPCYCLE_S3_ACCESS_KEY", "ops")
    monkeypatch.setenv("UPCYCLE_S3_SECRET_KEY", "ops-secret")
    monkeypatch.setenv("UPCYCLE_S3_BUCKET", "weights")


def test_each_service_and_the_server_get_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "keys", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert len(said["keys"]) == SERVICES
    known = {
        one["name"]: (one["credentials"][0]["accessKey"], one["actions"])
        for one in json.loads(Path(said["server"]).read_text())["identities"]
    }
    assert known["operator"][0] == "ops"
    for name, path in said["keys"].items():
        assert json.loads(Path(path).read_text())["access_key"] == known[name][0]
    assert known["policy_engine"][1] == ["Read:weights/.ready*", "Read:weights/default/policies/*"]


def test_one_key_is_renewed_and_the_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "keys", str(tmp_path)]) == 0
    before = {path: path.read_text() for path in tmp_path.glob("*/s3.json")}
    assert run(["store", "keys", str(tmp_path), "--renew", "policy_engine"]) == 0
    changed = {path.parent.name for path, text in before.items() if path.read_text() != text}
    assert changed == {"policy_engine", "seaweedfs"}
    assert run(["store", "keys", str(tmp_path), "--renew", "engine"]) == 2
    assert "no key is called 'engine'; there are: checkpoint_registry" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["UPCYCLE_S3_ACCESS_KEY", "UPCYCLE_S3_SECRET_KEY"])
def test_without_the_operators_key_nothing_is_written(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(name)
    assert run(["store", "keys", str(tmp_path / "keys")]) == 2
    assert f"{name} is not set" in capsys.readouterr().err
    assert not (tmp_path / "keys").exists()
