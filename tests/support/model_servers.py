"""Servers of models on loopback, as OpenAI's, Anthropic's and Gemini's speak: real HTTP, scripted turns."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-0123456789"
MODEL = "shop-1"


@dataclass(frozen=True)
class Said:
    """What a server answers: status, JSON or text, headers."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """A request. headers: names in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class ModelServerDouble:
    """url: of the server, without a path. asked: every request, in order."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    @property
    def turns(self) -> list[Asked]:
        """The requests for turns."""
        return [one for one in self.asked if one.method == "POST"]


@contextmanager
def serving(answer: Callable[[Asked], Said]) -> Iterator[ModelServerDouble]:
    """`answer` is called for each request, in threads."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, json.loads(data) if data else {})
            double.asked.append(asked)
            said = answer(asked)
            reply = (said.body if isinstance(said.body, str) else json.dumps(said.body)).encode()
            self.send_response(said.status)
            for name, value in {**said.headers, "Content-Length": str(len(reply))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    double = ModelServerDouble(f"http://127.0.0.1:{found.server_port}")
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    try:
        yield double
    finally:
        found.shutdown()
        found.server_close()
        thread.join()


@dataclass(frozen=True)
class Turn:
    """What a model says: a tool call, or an answer."""

    text: str = ""
    call: tuple[str, Mapping[str, Any]] | None = None


Policy = Callable[[list[str]], Turn]
"""From the results of its tools so far to its next turn."""


def openai_shaped(policy: Policy) -> Callable[[Asked], Said]:
    """Chat completions and a list of models; refuses another key and another model."""

    def answer(asked: Asked) -> Said:
        if asked.headers.get("authorization") != f"Bearer {KEY}":
            given = asked.headers.get("authorization")
            return Said(401, {"error": {"message": f"Incorrect API key: {given}"}})
        if asked.path == "/v1/models":
            return Said(200, {"object": "list", "data": [{"id": MODEL}, {"id": "other-2"}]})
        if asked.path != "/v1/chat/completions" or asked.body["model"] != MODEL:
            return Said(404, {"error": {"message": "no such model"}})
        results = [one["content"] for one in asked.body["messages"] if one["role"] == "tool"]
        turn = policy(results)
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.call:
            function = {"name": turn.call[0], "arguments": json.dumps(turn.call[1])}
            message["tool_calls"] = [{"id": "call_9", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.call else "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        return Said(200, {"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})

    return answer


def anthropic_shaped(policy: Policy) -> Callable[[Asked], Said]:
    """POST /v1/messages, as strict as the real one in what a conversation must be: roles alternate, each
    tool_use has its tool_result, reasoning comes back signed."""

    def answer(asked: Asked) -> Said:
        if asked.headers.get("x-api-key") != KEY:
            given = asked.headers.get("x-api-key")
            return Said(401, {"type": "error", "error": {"message": f"invalid {given}"}})
        if asked.method == "GET":
            known = asked.path == f"/v1/models/{MODEL}"
            return Said(200, {"id": MODEL}) if known else Said(404, {"type": "error"})
        if "anthropic-version" not in asked.headers or asked.path != "/v1/messages":
            return Said(400, "anthropic-version: header is required")
        problem, results = _read_anthropic(asked.body)
        if problem:
            return Said(400, {"type": "error", "error": {"message": problem}})
        turn = policy(results)
        thinking = {"type": "thinking", "thinking": "hm", "signature": f"s{len(results)}"}
        content: list[dict[str, Any]] = [thinking]
        if turn.text:
            content.append({"type": "text", "text": turn.text})
        if turn.call:
            name, arguments = turn.call
            call_id = f"toolu_{len(results)}"
            content.append({"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)})
        reason = "tool_use" if turn.call else "end_turn"
        usage = {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 10}
        return Said(200, {"role": "assistant", "content": content, "stop_reason": reason, "usage": usage})

    return answer


def _read_anthropic(body: dict[str, Any]) -> tuple[str, list[str]]:
    """What is wrong with a conversation, and the results of its tools."""
    if not body.get("max_tokens"):
        return "max_tokens: Field required", []
    results: list[str] = []
    called: set[str] = set()
    for index, message in enumerate(body["messages"]):
        blocks = message["content"]
        if message["role"] != ("user", "assistant")[index % 2]:
            return "roles must alternate", []
        answered = [block for block in blocks if block["type"] == "tool_result"]
        if {block["tool_use_id"] for block in answered} != called:
            return f"tool_use {sorted(called)} without tool_result", []
        results += [block["content"] for block in answered]
        called = {block["id"] for block in blocks if block["type"] == "tool_use"}
        if message["role"] == "assistant" and "signature" not in blocks[0]:
            return "expected thinking", []
    return "", results


def gemini_shaped(policy: Policy) -> Callable[[Asked], Said]:
    """generateContent; a function call comes back with the signature of its thought."""

    def answer(asked: Asked) -> Said:
        if asked.headers.get("x-goog-api-key") != KEY:
            return Said(403, {"error": {"message": "API key not valid"}})
        if asked.method == "GET":
            known = asked.path == f"/v1beta/models/{MODEL}"
            return Said(200, {"name": f"models/{MODEL}"}) if known else Said(404, {"error": {}})
        if asked.path != f"/v1beta/models/{MODEL}:generateContent":
            return Said(404, {"error": {"message": "not found"}})
        parts = [part for content in asked.body["contents"] for part in content["parts"]]
        if any("functionCall" in part and "thoughtSignature" not in part for part in parts):
            return Said(400, {"error": {"message": "Function call is missing a thought_signature"}})
        answered = [part["functionResponse"] for part in parts if "functionResponse" in part]
        results = [one["response"]["result"] for one in answered]
        turn = policy(results)
        said: list[dict[str, Any]] = [{"text": "hm", "thought": True}]
        if turn.text:
            said.append({"text": turn.text})
        if turn.call:
            call = {"name": turn.call[0], "args": dict(turn.call[1])}
            said.append({"functionCall": call, "thoughtSignature": f"s{len(results)}"})
        candidate = {"content": {"role": "model", "parts": said}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 6, "thoughtsTokenCount": 4}
        return Said(200, {"candidates": [candidate], "usageMetadata": usage})

    return answer


def look_for_tea(results: list[str]) -> Turn:
    """Asks the tool `stock` of the tests' shop for tea, and answers what it said."""
    return Turn(results[-1]) if results else Turn("", ("stock", {"item": "tea"}))
