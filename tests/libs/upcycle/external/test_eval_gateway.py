"""`upcycle eval --gateway`: registered models, and those of providers behind the gateway."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, Said, look_for_tea, openai_shaped, serving

from upcycle.cli.main import run
from upcycle.platform import PEERS


def test_the_gateway_plays_registered_models_and_refuses_others_by_name(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = openai_shaped(look_for_tea)

    def gateway(asked: Asked) -> Said:
        return answer(asked)

    with serving(gateway) as server:
        for peer in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", server.url.removeprefix("http://"))
        monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
        assert run(["eval", "tasks.py", MODEL, "--gateway"]) == 0
        assert "success 50.0%" in capsys.readouterr().out
        asked = len(server.turns)
        assert run(["eval", "tasks.py", "claude", "--gateway"]) == 2
        refusal = capsys.readouterr().err
        assert len(server.turns) == asked
        monkeypatch.setenv("UPCYCLE_API_KEY", "wrong")
        assert run(["eval", "tasks.py", MODEL, "--gateway"]) == 2
        assert "set the key of this platform in UPCYCLE_API_KEY" in capsys.readouterr().err
    assert "has no models of 'claude': none of its providers is called anthropic or claude" in refusal
    assert "name one in its MODEL_GATEWAY_PROVIDERS_FILE" in refusal
    assert "without --gateway, claude plays with your own key" in refusal


BEHIND = {
    "incident": "upcycle",
    "anthropic/claude-sonnet-4-5": "anthropic",
    "anthropic/claude-haiku-4-5": "anthropic",
    "openai/large": "openai",
    "google/a": "google",
    "google/b": "google",
    "acme/large": "acme",
}


@pytest.fixture
def gateway(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A platform's gateway, with the models of providers behind it."""
    answer = openai_shaped(look_for_tea)

    def said(asked: Asked) -> Said:
        if asked.method == "GET":
            rows = [{"id": name, "owned_by": owner} for name, owner in BEHIND.items()]
            return Said(200, {"object": "list", "data": rows})
        return answer(replace(asked, body={**asked.body, "model": MODEL}))

    with serving(said) as server:
        for peer in PEERS:
            monkeypatch.setenv(f"UPCYCLE_PEERS_{peer.upper()}", server.url.removeprefix("http://"))
        monkeypatch.setenv("UPCYCLE_API_KEY", KEY)
        yield server


@pytest.mark.parametrize(
    ("agent", "variables", "model"),
    [
        ("claude", {}, "anthropic/claude-sonnet-4-5"),
        ("claude", {"UPCYCLE_CLAUDE_MODEL": "claude-haiku-4-5"}, "anthropic/claude-haiku-4-5"),
        ("claude#claude-haiku-4-5", {}, "anthropic/claude-haiku-4-5"),
        ("openai", {}, "openai/large"),
        ("gemini#b", {}, "google/b"),
        ("openai_compatible", {}, "acme/large"),
    ],
)
def test_an_agent_of_others_is_the_model_of_its_provider_behind_the_gateway(
    gateway: Any, agent: str, variables: dict[str, str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run(["eval", "tasks.py", agent, "--gateway", "--full", "--remote"]) == 0
    assert {asked.body["model"] for asked in gateway.turns} == {model}


def test_a_registered_model_has_the_budgets_of_the_platform_and_one_of_others_its_own(gateway: Any) -> None:
    assert run(["eval", "tasks.py", "incident", "--gateway", "--top-p", "0.5"]) == 0
    bodies = [asked.body for asked in gateway.turns]
    assert {(body["max_tokens"], body["temperature"], body["top_p"]) for body in bodies} == {(128, 1.0, 0.5)}
    assert run(["eval", "tasks.py", "acme/large", "--gateway"]) == 0
    others = [asked.body for asked in gateway.turns[len(bodies) :]]
    assert {(body["max_tokens"], body.get("temperature")) for body in others} == {(4096, None)}


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ("gemini", "it has google/a, google/b; name one in the place of gemini: google/a"),
        ("openai#small", "agent 'openai' as 'small' is not one model of the gateway"),
        ("claude#x", "it has anthropic/claude-sonnet-4-5, anthropic/claude-haiku-4-5"),
    ],
)
def test_an_agent_that_may_be_several_models_of_the_gateway_is_refused_with_their_names(
    gateway: Any, agent: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "tasks.py", agent, "--gateway"]) == 2
    assert said in capsys.readouterr().err
    assert gateway.turns == []
