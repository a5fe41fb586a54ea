"""Guidance of a scenario: what it makes of a failed attempt, and where it stands in the prompt."""

from typing import Any

import pytest
from tests.services.scenario_runner.environments import guided

from upcycle import Environment
from upcycle.environment.channel import ChannelError
from upcycle.errors import ArgumentsInvalid, DefinitionError, ScenarioError
from upcycle.guidance import Guidance, guided_prompt, parts_in
from upcycle.playing.hosting import SameProcessHost
from upcycle.transcripts import Answer

FAILED = {
    "answer": "attic",
    "trajectory": {"turns": [{"text": "", "tool_calls": [{"name": "look", "arguments": {"place": "barn"}}]}]},
}
HINT = "You looked in barn and said 'attic'. It begins with 'c'."


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_guidance_ends_the_prompt() -> None:
    system = {"role": "system", "content": "Be brief."}
    assert guided_prompt("Where?", "Look down.") == "Where?\n\nLook down."
    assert guided_prompt([system, user("Where?")], "Look down.") == [system, user("Where?\n\nLook down.")]
    assert guided_prompt([system], "Look down.") == [system, user("Look down.")]
    parts = [{"type": "text", "text": "Where?"}]
    assert guided_prompt([user(parts)], "Down.") == [user([*parts, {"type": "text", "text": "Down."}])]


async def test_a_scenario_guides_after_an_attempt_and_not_without() -> None:
    async with SameProcessHost(guided.env).channel() as channel:
        assert await channel.start("find", {"place": "cellar"}) == "Where is it?"
        assert channel.guidance == ""
        prompt = await channel.start("find", {"place": "cellar"}, failed=FAILED)
        assert (prompt, channel.guidance) == (f"Where is it?\n\n{HINT}", HINT)
        assert (await channel.grade("cellar"))["score"] == 1.0
        assert await channel.start("find", {"place": "cellar"}) == "Where is it?"
        assert channel.guidance == "", "of the newest start"
        rows = {row["id"]: row.get("guidance", False) for row in await channel.list_tasks()}
        assert rows == {"find": True, "told": True, "mute": True, "bare": False}


@pytest.mark.parametrize(
    ("scenario", "failed", "says"),
    [
        ("bare", FAILED, "scenario 'bare' declares no guidance; write @scenario.guidance"),
        ("mute", FAILED, "the guidance of scenario 'mute' returned ' ', not a text"),
        (
            "find",
            {"trajectory": {"turns": [{"tool_calls": [{"name": "look"}]}]}},
            "the guidance of scenario 'find' raised KeyError: 'place'",
        ),
        ("find", "attic", "failed is of type str, not an object"),
    ],
)
async def test_guidance_that_cannot_be_given_is_a_fault_by_name(
    scenario: str, failed: Any, says: str
) -> None:
    arguments = {"place": "cellar"} if scenario == "find" else {}
    async with SameProcessHost(guided.env).channel() as channel:
        params = {"id": scenario, "args": arguments, "failed": failed}
        with pytest.raises(ChannelError) as raised:
            await channel.call("tasks.start", params, timeout_s=30)
        assert says in str(raised.value)
        with pytest.raises(ChannelError, match="no task in progress"):
            await channel.grade("cellar")


async def test_a_server_that_leaves_guidance_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of an older version does not read the field, and its episode would be taken for a guided one."""
    async with SameProcessHost(guided.env).channel() as channel:
        asked = channel.call

        async def older(method: str, params: dict[str, Any], **limits: Any) -> dict[str, Any]:
            return await asked(method, {key: params[key] for key in params if key != "failed"}, **limits)

        monkeypatch.setattr(channel, "call", older)
        with pytest.raises(ChannelError, match="was to be guided, and no guidance came"):
            await channel.start("find", {"place": "cellar"}, failed=FAILED)


async def test_what_is_declared_wrongly_is_refused_where_it_stands() -> None:
    env = Environment("twice")

    @env.scenario()
    def ask(word: str) -> Any:
        yield "?"
        yield 1.0

    with pytest.raises(ScenarioError, match="declares no guidance"):
        await ask.guide(Answer(""), {"word": "a"})
    ask.guidance(lambda failed, word: f"not {failed}, {word}")
    assert ask.is_guided
    assert await ask.guide(Answer("b"), {"word": "a"}) == Guidance(text="not b, a")
    with pytest.raises(ArgumentsInvalid):
        await ask.guide(Answer("b"), {"letter": "a"})
    with pytest.raises(DefinitionError, match="two guidances"):
        ask.guidance(lambda failed, word: "")


async def test_a_plan_feedback_and_a_hint_stay_apart_and_end_the_prompt_in_this_order() -> None:
    env = Environment("kinds")

    @env.scenario()
    def ask(word: str) -> Any:
        yield "?"
        yield 1.0

    @ask.guidance
    def guide(failed: Answer, word: str) -> Guidance:
        return Guidance(hint=f"It begins with {word[0]}.", plan="Look first.", feedback=f"Not {failed}.")

    async with SameProcessHost(env).channel() as channel:
        prompt = await channel.start("ask", {"word": "cellar"}, failed={"answer": "attic"})
        assert prompt == "?\n\nLook first.\n\nNot attic.\n\nIt begins with c."
        assert list(channel.guidance_parts.items()) == [
            ("plan", "Look first."),
            ("feedback", "Not attic."),
            ("hint", "It begins with c."),
        ]
        assert prompt == f"?\n\n{channel.guidance}"
        await channel.start("ask", {"word": "cellar"})
        assert channel.guidance_parts == {}


@pytest.mark.parametrize("said", [Guidance(), Guidance(plan=" "), Guidance(hint=7), None])  # type: ignore[arg-type]
async def test_guidance_without_a_text_is_refused(said: Any) -> None:
    env = Environment("empty")

    @env.scenario()
    def ask() -> Any:
        yield "?"
        yield 1.0

    ask.guidance(lambda failed: said)
    with pytest.raises(ScenarioError, match="not a text or Guidance with one"):
        await ask.guide(Answer("b"), {})


def test_what_a_server_that_knows_no_kinds_says_is_of_none() -> None:
    assert parts_in({"guidance": "Look down."}) == {"text": "Look down."}
    assert parts_in({}) == {}
    assert parts_in({"guidance": "a", "guidance_parts": {"hint": "a", "spell": "b", "plan": ""}}) == {
        "hint": "a"
    }
