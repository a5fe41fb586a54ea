"""Names of agents, prices and pauses."""

import pytest

from upcycle.external.dialects import Tokens
from upcycle.external.naming import external_model, is_external, key_variable
from upcycle.external.prices import price_of
from upcycle.external.server import retry_after_s
from upcycle.playing.errors import PlayRefused


@pytest.mark.parametrize(
    ("name", "environ", "said"),
    [
        ("claude", {}, "agent 'claude' has no key; set ANTHROPIC_API_KEY"),
        ("openai", {"UPCYCLE_AGENT_KEY": "k"}, "agent 'openai' has no key; set OPENAI_API_KEY"),
        ("gemini", {"GEMINI_API_KEY": " "}, "agent 'gemini' has no key; set GEMINI_API_KEY"),
        ("openai_compatible", {}, "names no server; set OPENAI_BASE_URL"),
        ("openai_compatible", {"OPENAI_BASE_URL": "http://h/v1"}, "names no model; write openai_"),
        ("operator", {"OPENAI_API_KEY": "k"}, "agent 'operator' needs a screen"),
        ("gemini_cua", {"GEMINI_API_KEY": "k"}, "agent 'gemini_cua' needs a screen"),
        ("claud", {}, "agent 'claud' is of no kind that plays here; did you mean the agent 'claude'? There"),
        ("openia:http://h/v1#m", {}, "did you mean the agent 'openai'?"),
        ("incident", {}, "there are agents of others, which play here: claude,"),
        ("openai:localhost#m", {}, "names no http URL"),
        ("openai:http://h/v1", {}, "names no model"),
        ("http://h/v1", {}, "names no model"),
        ("https://me:pw@h/v1#m", {}, "an agent's URL holds a password"),
        ("openai:http://me:pw@h/v1#m", {}, "an agent's URL holds a password"),
        ("claude", {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "localhost:1"}, "names no http URL"),
    ],
)
def test_a_name_that_cannot_play_is_refused(name: str, environ: dict[str, str], said: str) -> None:
    with pytest.raises(PlayRefused) as raised:
        external_model(name, environ=environ)
    assert said in str(raised.value)
    assert "pw" not in str(raised.value)


def test_the_model_of_a_vendor_is_named_in_the_agent_in_a_variable_or_known() -> None:
    env = {"ANTHROPIC_API_KEY": "k"}
    assert external_model("claude", environ=env).model == "claude-sonnet-4-5"
    named = {**env, "UPCYCLE_CLAUDE_MODEL": "claude-opus"}
    assert external_model("claude", environ=named).model == "claude-opus"
    assert external_model("claude#mine", environ=named).model == "mine"
    proxied = external_model("claude", environ={**env, "ANTHROPIC_BASE_URL": "http://proxy/v1/"})
    assert proxied.url == "http://proxy"


def test_what_is_external_is_no_slug_of_ours() -> None:
    assert all(map(is_external, ("claude", "openai#gpt-5", "operator", "openai:http://h#m", "http://h#m")))
    assert external_model("http://h/v1#m", environ={}) == external_model("openai:http://h/v1#m", environ={})
    assert not any(map(is_external, ("incident", "claude-tuned", "openai/gpt-oss", "a@v3")))


def test_openais_own_key_goes_to_openai_alone() -> None:
    assert key_variable("https://api.openai.com/v1", {}) == "OPENAI_API_KEY"
    assert key_variable("https://api.openai.com.example.org/v1", {}) == "UPCYCLE_AGENT_KEY"
    assert key_variable("https://api.openai.com/v1", {"UPCYCLE_AGENT_KEY": "k"}) == "UPCYCLE_AGENT_KEY"
    model = external_model("openai:http://h/v1#m", environ={"OPENAI_API_KEY": "secret"})
    assert (model.key, dict(model.headers)) == ("", {})


def test_a_price_is_of_a_million_tokens() -> None:
    env = {"UPCYCLE_AGENT_PRICES": "gpt-5=1.25/10, a=b=3/15"}
    price = price_of("gpt-5", env)
    assert price is not None
    assert price.of(Tokens(1_000_000, 200_000)) == pytest.approx(1.25 + 2.0)
    assert price_of("a=b", env) is not None
    assert price_of("unknown", env) is None
    for text in ("gpt-5", "gpt-5=1", "=1/2", "gpt-5=-1/2", "gpt-5=x/y"):
        with pytest.raises(PlayRefused, match="write MODEL=READ/WRITTEN"):
            price_of("gpt-5", {"UPCYCLE_AGENT_PRICES": text})


def test_retry_after_holds_seconds_or_a_date() -> None:
    assert retry_after_s("7", 0.0) == 7.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:30 GMT", 60.0) == 30.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:30 GMT", 600.0) == 0.0
    assert retry_after_s("soon", 0.0) is None
    assert retry_after_s("", 0.0) is None
