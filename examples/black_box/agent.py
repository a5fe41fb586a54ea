"""An agent that knows nothing of Upcycle: the openai client, a tool of its own, a loop of its own.

upcycle eval examples/black_box/tasks.py incident --agent "cmd: python examples/black_box/agent.py" --group 2
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

MAX_TURNS = 4
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "search_logs",
            "description": "Earlier log lines of a service.",
            "parameters": {"type": "object", "properties": {"service": {"type": "string"}}},
        },
    }
]


def search_logs(service: str = "", **_: Any) -> str:
    """This agent's own tool."""
    return f"{service}: no earlier lines"


def main() -> None:
    """Reads a question, asks until there is an answer, prints it."""
    client = OpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY are set for it
    messages: list[Any] = [{"role": "user", "content": sys.stdin.read()}]
    for _ in range(MAX_TURNS):
        reply = client.chat.completions.create(
            model=os.environ["UPCYCLE_MODEL"], messages=messages, tools=TOOLS, max_tokens=48
        )
        said = reply.choices[0].message
        if not said.tool_calls:
            break
        messages.append({"role": "assistant", "content": said.content, "tool_calls": said.tool_calls})
        for call in said.tool_calls:
            if call.type == "function":
                result = search_logs(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(said.content or "")


if __name__ == "__main__":
    main()
