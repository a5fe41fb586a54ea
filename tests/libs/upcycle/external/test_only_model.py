"""`create_agent("openai:URL")`: the only model of that server, asked for when the agent plays."""

import pytest
from tests.support.model_servers import KEY, MODEL, Asked, Said, Turn, openai_shaped, serving

from upcycle import Taskset, create_agent
from upcycle.playing.errors import PlayRefused


def shop(asked: Asked) -> Said:
    """A server of one model, which asks for the stock and then says it."""
    if asked.path.endswith("/models"):
        return Said(200, {"data": [{"id": MODEL}]})
    looks = Turn("Let me look.", ("stock", {"item": "tea"}))
    return openai_shaped(lambda results: Turn(results[-1]) if results else looks)(asked)


@pytest.mark.parametrize("form", ["openai:{}/v1", "{}/v1", "openai:{}/v1#"])
async def test_the_only_model_of_a_server_plays(
    tasks: Taskset, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_AGENT_KEY", KEY)
    with serving(shop) as server:
        agent = create_agent(form.format(server.url), temperature=0.5)
        assert server.asked == []
        assert agent.model == f"openai:{server.url}/v1"
        runs = await tasks.run(agent)
    assert [run.reward for run in runs] == [1.0, 0.0]
    assert {(turn.body["model"], turn.body["temperature"]) for turn in server.turns} == {(MODEL, 0.5)}


async def test_of_several_models_one_must_be_named(tasks: Taskset) -> None:
    with serving(lambda asked: Said(200, {"data": [{"id": "a"}, {"id": "b"}]})) as server:
        agent = create_agent(f"openai:{server.url}/v1")
        said = rf"{server.url}/v1 serves a, b; name one: openai:{server.url}/v1#a"
        with pytest.raises(PlayRefused, match=said):
            await tasks.run(agent)


def test_what_is_no_url_is_refused_at_once() -> None:
    with pytest.raises(PlayRefused, match="names no http URL"):
        create_agent("openai:http://")
