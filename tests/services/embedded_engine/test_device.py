"""The device of an engine: refused by name where this machine lacks it, passed on by the supervisor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from embedded_engine.app import _parse
from policy_engine.adapters.engine_kinds import EmbeddedKind, EngineOptions

MODEL = ("--model", "nowhere")


@pytest.mark.parametrize(
    ("name", "said"), [("cdua", "no device"), ("meta", "not on meta"), ("cuda:7", "cuda:7")]
)
def test_a_device_that_is_not_here_is_refused_by_name(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 7)
    with pytest.raises(SystemExit) as ended:
        _parse([*MODEL, "--device", name])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_device_that_is_here_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _parse([*MODEL]).device == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert _parse([*MODEL, "--device", "cuda:1"]).device == torch.device("cuda:1")


def test_the_supervisor_names_a_device_that_is_not_the_processor() -> None:
    def argv(options: EngineOptions) -> str:
        return " ".join(EmbeddedKind(options).command(Path("/p"), "127.0.0.1", 1).argv)

    assert "--device" not in argv(EngineOptions("m"))
    assert "--device cuda:1" in argv(EngineOptions("m", device="cuda:1"))
