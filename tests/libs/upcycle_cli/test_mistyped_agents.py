"""A mistyped agent is no slug of a model without a word about agents."""

from pathlib import Path

import grpc
import pytest
from tests.libs.upcycle_cli.planner import Planner, serving

from upcycle.cli.before_work import NotBegun
from upcycle.cli.evaluate import evaluate
from upcycle.cli.exits import Exit
from upcycle.cli.main import run
from upcycle.platform import PEERS

AGENTS = "are agents of others, which play here: claude, openai, gemini, openai_compatible, openai:URL#model"
UNKNOWN = "model {!r} is not in the registry; `upcycle models list` shows what is"


def test_without_a_platform_the_agents_of_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["eval", "sums", "claud"]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert "model 'claud' plays on a platform, and no running platform was found" in said
    assert f"did you mean the agent 'claude'? There {AGENTS}" in said
    assert run(["eval", "sums", "incident"]) == Exit.UNREACHABLE
    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert AGENTS in said


async def test_a_model_that_the_registry_does_not_have_is_answered_with_both_lists(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = Planner()  # type: ignore[abstract]
    planner.refusal, planner.status = UNKNOWN.format("gemni"), grpc.StatusCode.NOT_FOUND
    async with serving(planner) as addresses:
        for peer in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", addresses.peers[peer])
        with pytest.raises(NotBegun) as refused:
            await evaluate("sums", "gemni")
    said = refused.value.message
    assert said == f"{planner.refusal}; did you mean the agent 'gemini'? There {AGENTS}"
