"""Players: a function, a person at the keyboard, a server that speaks as OpenAI's does."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from upcycle.external.keys import AGENT_KEY as KEY
from upcycle.external.naming import external_model
from upcycle.external.player import ModelPlayer
from upcycle.harness import AssistantTurn, ToolCall
from upcycle.harness.chat import ChatReply
from upcycle.playing.choosing import split_source
from upcycle.playing.errors import PlayerFailed
from upcycle.playing.person_player import PersonPlayer, read_call
from upcycle.playing.script_player import script_player, turn_of
from upcycle.tasks import EnvironmentRef, Task

TASK = Task(EnvironmentRef("shop"), "count", '{"item":"tea"}', "tea")
ASKED = [{"role": "user", "content": "How much tea?"}]
TOOLS = [{"type": "function", "function": {"name": "stock", "parameters": {}}}]


async def test_a_function_is_asked_with_the_task_and_the_conversation(tmp_path: Path) -> None:
    script = tmp_path / "by_function.py"
    script.write_text(
        "async def reply(task, messages):\n"
        "    return f\"{task.args['item']}: {messages[-1]['content']}\"\n"
        "def fails(task, messages):\n"
        "    return [][0]\n"
        "def odd(task, messages):\n"
        "    return 3\n"
    )
    said = await script_player(str(script), TASK).reply(ASKED, TOOLS, 100)
    assert said == ChatReply(AssistantTurn("tea: How much tea?"))
    with pytest.raises(PlayerFailed, match=r"raised IndexError: .* at .*by_function.py:4"):
        await script_player(f"{script}:fails", TASK).reply(ASKED, TOOLS, 100)
    with pytest.raises(PlayerFailed, match="odd returned a value of type int"):
        await script_player(f"{script}:odd", TASK).reply(ASKED, TOOLS, 100)


def test_a_turn_is_written_as_text_as_calls_or_as_a_message() -> None:
    call = ToolCall("stock", {"item": "tea"})
    spelled = '<tool_call>{"name": "stock", "arguments": {"item": "tea"}}</tool_call>'
    message = {"function": {"name": "stock", "arguments": '{"item": "tea"}'}}
    assert turn_of(spelled).tool_calls == (call,)
    assert turn_of({"tool_calls": [{"name": "stock", "arguments": {"item": "tea"}}]}).tool_calls == (call,)
    assert turn_of({"role": "assistant", "content": "hm", "tool_calls": [message]}) == AssistantTurn(
        "hm", (call,)
    )
    malformed = turn_of({"tool_calls": [{"name": "stock", "arguments": [1]}]})
    assert malformed.parse_error == "arguments of 'stock' are list, expected an object"
    for odd, said in (({}, "empty"), ({"text": "a", "x": 2}, "unknown field 'x'"), (None, "NoneType")):
        with pytest.raises(ValueError, match=said):
            turn_of(odd)


async def test_a_person_answers_in_a_line_and_calls_tools_with_a_slash() -> None:
    lines = iter(["", "/stok item=tea", "/stock tea", "/stock item=tea left=2", "three", "/quit"])
    said: list[str] = []
    person = PersonPlayer(lambda: next(lines), said.append)
    first = await person.reply(ASKED, TOOLS, 100)
    assert first.said.tool_calls == (ToolCall("stock", {"item": "tea", "left": 2}),)
    assert [line.split(" (")[0] for line in said] == [
        "no tool 'stok'; did you mean /stock?",
        "argument 'tea' is not name=value",
    ]
    assert (await person.reply(ASKED, TOOLS, 100)).said == AssistantTurn("three")
    with pytest.raises(PlayerFailed, match="left without an answer"):
        await person.reply(ASKED, TOOLS, 100)


def test_arguments_of_a_person_are_json_where_they_are_json() -> None:
    assert read_call('/stock {"item": ["a"]}', ["stock"]).arguments == {"item": ["a"]}
    assert read_call("/stock a='two words' b=true c=", ["stock"]).arguments == {
        "a": "two words",
        "b": True,
        "c": "",
    }
    with pytest.raises(ValueError, match="not a JSON object"):
        read_call("/stock {oops", ["stock"])
    with pytest.raises(ValueError, match="No closing quotation"):
        read_call("/stock a='x", ["stock"])


def test_the_slug_of_a_source_follows_the_files_suffix(tmp_path: Path) -> None:
    assert split_source("a/tasks.py:x:y") == (Path("a/tasks.py"), "x:y")
    assert split_source("a.jsonl:x") == (Path("a.jsonl"), "x")
    assert split_source("a.json") == (Path("a.json"), "")


def url_player(
    agent: str, *, pauses_s: tuple[float, ...] = (0.0,), temperature: float | None = None
) -> ModelPlayer:
    """As `upcycle play --agent` makes it."""
    model = external_model(agent, temperature=temperature)
    return model.player(model.server(pauses_s=pauses_s))


Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A chat completions server on loopback: its URL, and what it was asked, headers under `headers`."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked.append({**body, "headers": headers, "path": self.path})
            status, reply = answer(body)
            data = reply.encode() if isinstance(reply, str) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/v1", asked
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


def completion(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return {"choices": [choice], "usage": {"total_tokens": 41}}


async def test_a_server_is_sent_conversation_tools_and_key_and_its_calls_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY, " secret ")
    row = {"id": "c1", "type": "function", "function": {"name": "stock", "arguments": '{"item": "tea"}'}}
    with server(lambda _: (200, completion({"content": None, "tool_calls": [row]}))) as (url, asked):
        reply = await url_player(f"openai:{url}/#shop", temperature=0.0).reply(ASKED, TOOLS, 100)
    assert reply == ChatReply(AssistantTurn("", (ToolCall("stock", {"item": "tea"}),)), num_tokens=41)
    (request,) = asked
    assert (request["model"], request["messages"], request["tools"]) == ("shop", ASKED, TOOLS)
    assert (request["max_tokens"], request["temperature"]) == (100, 0.0)
    assert request["path"] == "/v1/chat/completions"
    assert request["headers"]["authorization"] == "Bearer secret"


async def test_a_turn_that_the_server_cut_is_cut() -> None:
    with server(lambda _: (200, completion({"content": "and so"}, "length"))) as (url, _):
        reply = await url_player(f"openai:{url}#m").reply(ASKED, (), 1)
    assert (reply.was_cut, reply.said.text) == (True, "and so")


async def test_a_server_that_knows_only_max_completion_tokens_gets_that() -> None:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        if "max_tokens" in body:
            return 400, {"error": {"message": "use 'max_completion_tokens' instead"}}
        return 200, completion({"content": str(body["max_completion_tokens"])})

    with server(answer) as (url, asked):
        player = url_player(f"openai:{url}#m")
        assert [(await player.reply(ASKED, (), n)).said.text for n in (7, 8)] == ["7", "8"]
    assert len(asked) == 3


async def test_a_busy_server_is_asked_again_and_then_named() -> None:
    with server(lambda _: (429, "slow down")) as (url, asked):
        player = url_player(f"openai:{url}#m", pauses_s=(0.0, 0.0))
        with pytest.raises(PlayerFailed, match="answered 429: slow down"):
            await player.reply(ASKED, (), 1)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("status", "reply", "said"),
    [
        (401, "no", "the key is missing: set it in UPCYCLE_AGENT_KEY"),
        (404, "no", "does it serve model 'm' at"),
        (200, "<html>", "sent no JSON: '<html>'"),
        (200, {"choices": []}, "sent no chat completion"),
        (200, [], "sent no chat completion"),
        (200, {"choices": [{"message": "text"}]}, "sent no chat completion"),
    ],
)
async def test_an_answer_that_is_no_completion_is_said(status: int, reply: Any, said: str) -> None:
    with server(lambda _: (status, reply)) as (url, _), pytest.raises(PlayerFailed) as raised:
        await url_player(f"openai:{url}#m").reply(ASKED, (), 1)
    assert said in str(raised.value)
