"""Generators of scenarios: what they are given, and what they make that is no task."""

from typing import Any

import pytest
from tests.services.scenario_runner.environments import generating, self_play

from upcycle import Environment
from upcycle.environment.channel import ChannelError
from upcycle.errors import DefinitionError, ScenarioError
from upcycle.generator import Parent
from upcycle.playing.hosting import SameProcessHost
from upcycle.transcripts import Answer


async def test_a_generator_makes_a_task_of_its_parent_and_a_seed() -> None:
    async with SameProcessHost(generating.env).channel() as channel:
        failed = [await channel.generate("count", seed, {"upto": 7}, solved=False) for seed in (0, 1, 2, 0)]
        assert failed == [{"upto": 6}, {"upto": 5}, {"upto": 4}, {"upto": 6}]
        assert await channel.generate("count", 1, {}, solved=True) == {"upto": 11}
        rows = {row["id"]: row.get("generator", False) for row in await channel.list_tasks()}
        assert rows == {"count": True, "raises": True, "misfit": True, "sleeps": True, "bare": False}


async def test_a_task_in_progress_stays() -> None:
    async with SameProcessHost(generating.env).channel() as channel:
        await channel.start("count", {"upto": 2})
        await channel.generate("count", 0, {"upto": 7}, solved=False)
        assert (await channel.grade("1 2"))["score"] == 1.0


@pytest.mark.parametrize(
    ("scenario", "seed", "says"),
    [
        ("bare", 0, "scenario 'bare' declares no generator; write @scenario.generator"),
        ("raises", 5, "the generator of scenario 'raises' raised LookupError: no task for 5"),
        ("misfit", 0, "the generator of scenario 'misfit' made no task"),
        ("misfit", 1, "the generator of scenario 'misfit' made no task"),
        ("misfit", 2, "arguments are 70011 bytes, limit 65536"),
        ("misfit", 3, "the generator of scenario 'misfit' returned 'a', not arguments"),
        ("misfit", 4, "argument 'word': JSON cannot carry this"),
        ("nobody", 0, "no scenario 'nobody'"),
    ],
)
async def test_what_is_no_task_is_refused_by_name(scenario: str, seed: int, says: str) -> None:
    async with SameProcessHost(generating.env).channel() as channel:
        with pytest.raises(ChannelError) as raised:
            await channel.generate(scenario, seed, {}, solved=False)
        assert says in str(raised.value)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"id": "count", "parent": {"args": {}}}, "seed is NoneType, not a whole number"),
        ({"id": "count", "seed": True, "parent": {"args": {}}}, "seed is bool, not a whole number"),
        ({"id": "count", "seed": 0, "parent": {}}, "parent.args is NoneType, not an object"),
        ({"id": "count", "seed": 0, "parent": 7}, "parent is of type int, not an object"),
        ({"seed": 0}, "id is NoneType, not text"),
    ],
)
async def test_a_call_that_is_none_is_refused(params: dict[str, Any], says: str) -> None:
    async with SameProcessHost(generating.env).channel() as channel:
        with pytest.raises(ChannelError) as raised:
            await channel.call("tasks.generate", params, timeout_s=30)
        assert says in str(raised.value)


async def test_what_is_declared_wrongly_is_refused_where_it_stands() -> None:
    env = Environment("twice")

    @env.scenario()
    def ask(word: str) -> Any:
        yield "?"
        yield 1.0

    with pytest.raises(ScenarioError, match="declares no generator"):
        await ask.generate(0, Parent())
    ask.generator(lambda seed, parent: {"word": f"{parent.arguments['word']}{seed}"})
    assert ask.generates
    assert await ask.generate(3, Parent({"word": "a"})) == {"word": "a3"}
    with pytest.raises(DefinitionError, match="two generators"):
        ask.generator(lambda seed, parent: {})


PROPOSAL = {"answer": "4", "trajectory": {}}


async def test_an_answer_to_one_scenario_proposes_a_task_of_another() -> None:
    async with SameProcessHost(self_play.env).channel() as channel:
        made = await channel.generate("find", 0, {"below": 5}, solved=True, proposal=PROPOSAL)
        assert made == {"number": 4, "below": 5}
        assert await channel.generate("find", 1, {}, solved=True, proposal=PROPOSAL) == {
            "number": 4,
            "below": 9,
        }
        rows = {row["id"]: row.get("proposed_by", "") for row in await channel.list_tasks()}
        assert rows == {"hide": "", "find": "hide", "alone": ""}


async def test_a_failed_attempt_leaves_a_task_of_its_own_scenario() -> None:
    async with SameProcessHost(self_play.env).channel() as channel:
        task, failed = {"number": 3, "below": 5}, {"answer": "4", "trajectory": {}}
        made = await channel.generate("find", 0, task, solved=False, proposal=failed)
        assert made == {"number": 4, "below": 5}
        with pytest.raises(ChannelError, match="attempt at scenario 'find' leaves raised ValueError"):
            await channel.generate("find", 0, task, solved=False, proposal={"answer": "four"})
        rows = {row["id"]: row.get("left_over", False) for row in await channel.list_tasks()}
        assert rows == {"hide": False, "find": True, "alone": False}


@pytest.mark.parametrize(
    ("scenario", "parent", "answer", "says"),
    [
        ("alone", {}, "4", "no scenario proposes tasks of scenario 'alone'; write @scenario.proposed_by"),
        ("find", {}, "7", "the proposal of scenario 'hide' for 'find' raised LookupError: seven is nowhere"),
        ("find", {}, "four", "the proposal of scenario 'hide' for 'find' raised ValueError"),
        ("find", {"above": 1}, "4", "above"),
    ],
)
async def test_a_proposal_that_is_none_is_refused_by_name(
    scenario: str, parent: dict[str, Any], answer: str, says: str
) -> None:
    async with SameProcessHost(self_play.env).channel() as channel:
        with pytest.raises(ChannelError) as raised:
            await channel.generate(scenario, 0, parent, solved=True, proposal={"answer": answer})
        assert says in str(raised.value)


async def test_a_call_whose_proposal_is_no_object_is_refused() -> None:
    async with SameProcessHost(self_play.env).channel() as channel:
        with pytest.raises(ChannelError, match=r"parent\.proposal is str, not an object"):
            await channel.call(
                "tasks.generate",
                {"id": "find", "seed": 0, "parent": {"args": {}, "proposal": "4"}},
                timeout_s=30,
            )


async def test_a_proposer_that_is_declared_wrongly_is_refused_where_it_stands() -> None:
    env = Environment("twice")

    @env.scenario()
    def ask(word: str = "") -> Any:
        yield "?"
        yield 1.0

    @env.scenario()
    def other() -> Any:
        yield "?"
        yield 1.0

    with pytest.raises(DefinitionError, match="proposes its own tasks"):
        ask.proposed_by(ask)
    ask.proposed_by(other)(lambda proposal: {"word": str(proposal)})
    assert ask.proposer == "other"
    assert await ask.generate(0, Parent({}, proposal=Answer("a"))) == {"word": "a"}
    assert not ask.leaves_tasks
    ask.left_over(lambda failed, word: {"word": f"{word}{failed}"})
    assert ask.leaves_tasks
    assert await ask.generate(0, Parent({"word": "b"}, proposal=Answer("a"))) == {"word": "ba"}
    with pytest.raises(DefinitionError, match="two left overs"):
        ask.left_over(lambda failed, word: {})
    assert await ask.generate(0, Parent({}, solved=True, proposal=Answer("a"))) == {"word": "a"}
    with pytest.raises(DefinitionError, match="two proposers"):
        ask.proposed_by(other)(lambda proposal: {})
