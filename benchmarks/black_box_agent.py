"""An agent that knows nothing of the platform: a loop and tools of its own, and chat completions.

`python -m benchmarks.black_box_agent JOB CLIENT` reads the prompt from its standard input and prints the
answer. JOB: a JSON file with `tools`, their specs, and `incidents`: split and seed by prompt. CLIENT: `http`,
the standard library alone, or `openai`.
"""

import http.client
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from examples.incident.world import World, draw_incident

MAX_TURNS: Final = 6
MAX_TOKENS: Final = 32
TOOLS: Final = ("list_issues", "get_stack_trace", "search_logs", "recent_deploys")
_LIMIT_S: Final = 120.0

Ask = Callable[[dict[str, Any]], Mapping[str, Any]]
"""From the body of a request to the one choice of its answer."""


def answered(prompt: str, world: World, tools: Sequence[Any], ask: Ask) -> str:
    """The answer; empty where a budget ends the conversation. Greedy, so that two loops can be compared."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    for _ in range(MAX_TURNS):
        choice = ask({"messages": messages, "tools": tools, "max_tokens": MAX_TOKENS, "temperature": 0.0})
        said, calls = choice["message"], choice["message"].get("tool_calls") or []
        if choice["finish_reason"] == "length":
            break
        if not calls:
            return said.get("content") or ""
        messages.append({"role": "assistant", "content": said.get("content") or "", "tool_calls": calls})
        for call in calls:
            result = called(world, call["function"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


def called(world: World, function: Mapping[str, Any]) -> str:
    """What a tool says, or what is wrong with the call."""
    name = function["name"]
    if name not in TOOLS:
        return f"no tool {name!r}"
    try:
        arguments = json.loads(function["arguments"] or "{}")
        if not all(isinstance(value, str) for value in arguments.values()):
            return f"{name}: arguments are texts"
        return str(getattr(world, name)(**arguments))
    except (AttributeError, TypeError, ValueError) as error:
        return f"{name}: {error}"


def _http() -> Ask:
    where = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(where.netloc, timeout=_LIMIT_S)
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}

    def ask(body: dict[str, Any]) -> Mapping[str, Any]:
        asked = json.dumps({**body, "model": os.environ["UPCYCLE_MODEL"]})
        connection.request("POST", f"{where.path}/chat/completions", asked, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise SystemExit(f"the server answered {answer.status}: {text}")
        choice: Mapping[str, Any] = json.loads(text)["choices"][0]
        return choice

    return ask


def _openai() -> Ask:
    from openai import OpenAI

    client: Any = OpenAI()

    def ask(body: dict[str, Any]) -> Mapping[str, Any]:
        reply = client.chat.completions.create(**body, model=os.environ["UPCYCLE_MODEL"])
        choice: Mapping[str, Any] = reply.choices[0].model_dump(exclude_none=True)
        return choice

    return ask


def main() -> None:
    """One episode."""
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    ask = {"http": _http, "openai": _openai}[sys.argv[2]]()
    prompt = sys.stdin.read()
    world = World(draw_incident(*job["incidents"][prompt]))
    print(answered(prompt, world, job["tools"], ask))


if __name__ == "__main__":
    main()
