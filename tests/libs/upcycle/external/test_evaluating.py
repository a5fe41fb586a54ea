"""Agents of others on a taskset: real HTTP, real episode processes."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.model_servers import (
    KEY,
    MODEL,
    Asked,
    Said,
    Turn,
    anthropic_shaped,
    gemini_shaped,
    openai_shaped,
    serving,
)

import upcycle
from upcycle import Taskset, create_agent
from upcycle.errors import Unavailable, UpcycleError
from upcycle.external.evaluating import ExternalEpisode, ExternalOptions, evaluate_tasks
from upcycle.external.naming import ExternalModel, external_model
from upcycle.playing.errors import AgentRefused, PlayRefused
from upcycle.results import Run
from upcycle.task_rows import canonical_json

NO_PAUSE = ExternalOptions(pauses_s=(0.0, 0.0))
SHAPES = {
    "claude": (anthropic_shaped, "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", ""),
    "openai": (openai_shaped, "OPENAI_BASE_URL", "OPENAI_API_KEY", "/v1"),
    "gemini": (gemini_shaped, "GEMINI_BASE_URL", "GEMINI_API_KEY", ""),
    "openai_compatible": (openai_shaped, "OPENAI_BASE_URL", "UPCYCLE_AGENT_KEY", "/v1"),
}


def looks(item: str = "tea") -> Callable[[list[str]], Turn]:
    """Asks for the stock, then says it."""
    return lambda results: Turn(results[-1]) if results else Turn("Let me look.", ("stock", {"item": item}))


def model_at(url: str, key: str = KEY) -> ExternalModel:
    """As `--agent openai:URL#shop-1` makes it."""
    return external_model(f"openai:{url}/v1#{MODEL}", environ={"UPCYCLE_AGENT_KEY": key})


def only(tasks: Taskset, **arguments: Any) -> list[Any]:
    """The first task with other arguments."""
    task = tasks.tasks[0]
    return [replace(task, args_json=canonical_json({**task.args, **arguments}))]


@pytest.mark.parametrize("name", SHAPES)
async def test_an_agent_of_others_calls_tools_and_is_graded(
    tasks: Taskset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, url_variable, key_variable, suffix = SHAPES[name]
    monkeypatch.setenv(key_variable, KEY)
    with serving(shape(looks())) as server:
        monkeypatch.setenv(url_variable, f"{server.url}{suffix}")
        agent = create_agent(f"{name}#{MODEL}", temperature=0.5, max_turns=4)
        async with upcycle.eval(tasks, group=2) as context:
            await agent.run(context)
    tea, milk = context.runs[:2], context.runs[2:]
    assert [run.task_slug for run in context.runs] == ["tea", "tea", "milk", "milk"]
    assert [(run.reward, run.success, run.answer) for run in tea] == [(1.0, True, "3")] * 2
    assert [(run.reward, run.success) for run in milk] == [(0.0, False)] * 2
    assert [(run.usage.prompt_tokens, run.usage.completion_tokens) for run in tea] == [(200, 20)] * 2
    assert tea[0].trajectory is not None
    assert [(use.name, use.result) for use in tea[0].trajectory.tool_calls] == [("stock", "3")]
    assert len({run.episode_id for run in context.runs}) == 4
    assert "0.5" in str(server.turns[0].body)


async def test_system_messages_tools_and_the_budget_reach_each_server(tasks: Taskset) -> None:
    asked: dict[str, Asked] = {}
    for name, (shape, url_variable, key_variable, suffix) in SHAPES.items():
        with serving(shape(lambda results: Turn("3"))) as server:
            environ = {url_variable: f"{server.url}{suffix}", key_variable: KEY}
            model = external_model(f"{name}#{MODEL}", environ=environ)
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tea?"}]
            tools = [
                {"type": "function", "function": {"name": "stock", "description": "d", "parameters": {}}}
            ]
            reply = await model.player(model.server()).reply(messages, tools, 77)
        assert reply.said.text == "3"
        asked[name] = server.turns[0]
    claude, gemini = asked["claude"].body, asked["gemini"].body
    assert (claude["system"], claude["max_tokens"], claude["tools"][0]["name"]) == ("Be brief.", 77, "stock")
    assert gemini["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert gemini["generationConfig"] == {"maxOutputTokens": 77}
    assert gemini["tools"][0]["functionDeclarations"][0]["name"] == "stock"
    assert asked["openai"].body["max_tokens"] == 77


async def test_no_key_is_in_an_episodes_process_in_a_run_or_in_a_trajectory(
    tasks: Taskset, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("UPCYCLE_AGENT_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, KEY)
    monkeypatch.setenv("HARMLESS", "yes")

    def policy(results: list[str]) -> Turn:
        return Turn(f"done {KEY}") if results else Turn("", ("keys", {}))

    seen: list[ExternalEpisode] = []
    with serving(openai_shaped(policy)) as server:
        runs = await evaluate_tasks(tasks.tasks, model_at(server.url), on_episode=seen.append)
    (use,) = runs[0].trajectory.tool_calls if runs[0].trajectory else ()
    assert "HARMLESS" in use.result
    assert "API_KEY" not in use.result
    assert KEY not in repr(runs) + repr([played.row for played in seen])
    assert KEY not in repr(model_at(server.url))


async def test_a_busy_server_is_asked_again_when_it_says(tasks: Taskset) -> None:
    answer, refusals = openai_shaped(looks()), iter([429, 529, 503])

    def busy(asked: Asked) -> Said:
        status = next(refusals, 200) if asked.method == "POST" else 200
        return answer(asked) if status == 200 else Said(status, "busy", {"Retry-After": "0"})

    slow = ExternalOptions(max_concurrent=1, pauses_s=(600.0, 600.0, 600.0))  # the server's word counts
    with serving(busy) as server:
        runs = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), slow)
    assert [run.reward for run in runs] == [1.0]
    assert len(server.turns) == 5


@pytest.mark.parametrize(
    ("status", "body", "headers", "said"),
    [
        (429, "slow down", {}, "answered 429: slow down; lower --max-concurrent"),
        (429, "quota", {"Retry-After": "7200"}, "asks for a pause of 7200 s, limit 120 s"),
        (500, "broken", {}, "answered 500: broken"),
        (400, f"bad request of {KEY}", {}, "answered 400: bad request of [key]"),
        (200, "<html>", {}, "sent no JSON"),
        (200, {"choices": []}, {}, "sent no chat completion"),
    ],
)
async def test_an_episode_whose_server_fails_is_missing_and_says_why(
    tasks: Taskset, status: int, body: Any, headers: dict[str, str], said: str
) -> None:
    answer = openai_shaped(looks())

    def failing(asked: Asked) -> Said:
        is_second = any(one["role"] == "tool" for one in asked.body.get("messages", ()))
        return Said(status, body, headers) if is_second else answer(asked)

    seen: list[ExternalEpisode] = []
    with serving(failing) as server:
        runs = await evaluate_tasks(tasks.tasks[:1], model_at(server.url), NO_PAUSE, on_episode=seen.append)
    (run,) = runs
    assert (run.is_error, run.failure) == (True, "player_failed")
    assert said in run.failure_detail
    assert seen[0].row["failure"]["message"] == run.failure_detail
    assert len(seen[0].row["turns"]) == 1  # what was played stays


@pytest.mark.parametrize(
    ("key", "model", "said"),
    [
        ("wrong", MODEL, "answered 401: the key is not accepted: set another one in UPCYCLE_AGENT_KEY"),
        ("", MODEL, "answered 401: the key is missing: set it in UPCYCLE_AGENT_KEY"),
        (KEY, "shop-l", "has no model 'shop-l'; did you mean 'shop-1'?"),
        (KEY, "x", "has no model 'x'; it has shop-1, other-2"),
    ],
)
async def test_a_refused_key_or_model_is_said_before_any_episode(
    tasks: Taskset, key: str, model: str, said: str
) -> None:
    with serving(openai_shaped(looks())) as server:
        asked = external_model(f"openai:{server.url}/v1#{model}", environ={"UPCYCLE_AGENT_KEY": key})
        with pytest.raises(PlayRefused) as raised:
            await evaluate_tasks(tasks.tasks, asked)
    assert said in str(raised.value)
    assert server.turns == []


@pytest.mark.parametrize("name", ["claude", "gemini"])
async def test_a_vendor_without_the_model_is_said_before_any_episode(tasks: Taskset, name: str) -> None:
    shape, url_variable, key_variable, _ = SHAPES[name]
    with serving(shape(looks())) as server:
        asked = external_model(f"{name}#none-3", environ={url_variable: server.url, key_variable: KEY})
        with pytest.raises(PlayRefused, match=f"has no model 'none-3'; name another: {name}#MODEL"):
            await evaluate_tasks(tasks.tasks, asked)


async def test_a_key_that_is_refused_later_ends_the_evaluation(tasks: Taskset) -> None:
    answer = openai_shaped(looks())

    def revoked(asked: Asked) -> Said:
        return answer(asked) if asked.method == "GET" else Said(401, f"no {KEY}")

    with serving(revoked) as server, pytest.raises(AgentRefused, match=r"answered 401: no \[key\]; the key"):
        await evaluate_tasks(tasks.tasks, model_at(server.url), ExternalOptions(group=5, max_concurrent=1))
    assert len(server.turns) == 1


async def test_a_server_that_is_not_there_is_said_at_once(tasks: Taskset) -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9/v1 does not answer"):
        await evaluate_tasks(tasks.tasks, model_at("http://127.0.0.1:9"))


async def test_at_most_so_many_episodes_ask_at_once(tasks: Taskset) -> None:
    answer, lock, both = openai_shaped(looks()), threading.Lock(), threading.Barrier(2, timeout=30)
    now, most = 0, 0

    def counting(asked: Asked) -> Said:
        nonlocal now, most
        if asked.method == "GET":
            return answer(asked)
        with lock:
            now, most = now + 1, max(most, now + 1)
        both.wait()  # two are here at once, always
        with lock:
            now -= 1
        return answer(asked)

    with serving(counting) as server:
        runs = await evaluate_tasks(
            tasks.tasks, model_at(server.url), ExternalOptions(group=4, max_concurrent=2)
        )
    assert (len(runs), most) == (8, 2)


async def failed(tasks: list[Any], policy: Callable[[list[str]], Turn]) -> Run:
    """The one run of one task."""
    with serving(openai_shaped(policy)) as server:
        return (await evaluate_tasks(tasks, model_at(server.url)))[0]


async def test_failures_of_an_environment_are_named_as_on_the_platform(tasks: Taskset) -> None:
    broken = await failed(only(tasks, fails="prompt"), looks())
    assert (broken.failure, broken.policy_failure) == ("environment_broken", "")
    assert "no shop today" in broken.failure_detail
    answered = await failed(only(tasks, fails="answer"), looks())
    assert (answered.failure, answered.policy_failure, answered.reward) == ("", "answer_error", 0.0)
    assert "KeyError: '3'" in answered.failure_detail
    ended = await failed(only(tasks), looks("gone"))
    assert (ended.failure, ended.policy_failure) == ("", "process_ended")
    assert "exit status 7" in ended.failure_detail


async def test_what_a_platform_would_do_is_refused(tasks: Taskset) -> None:
    agent = create_agent(f"openai:http://127.0.0.1:9/v1#{MODEL}")
    with pytest.raises(UpcycleError, match="trainable is given"):
        await tasks.run(agent, trainable=True)
    with pytest.raises(UpcycleError, match=r"episode_deadline_s is given.*it plays here, without a deadline"):
        await tasks.run(agent, episode_deadline_s=600)
    with pytest.raises(UpcycleError, match="'seed' is of our own models"):
        create_agent("openai:http://127.0.0.1:9/v1#m", seed=3)
    with pytest.raises(UpcycleError, match="has no versions"):
        create_agent("openai:http://127.0.0.1:9/v1#m", version=3)
    with pytest.raises(UpcycleError, match="group is 0"):
        await agent.evaluate(tasks, group=0)
