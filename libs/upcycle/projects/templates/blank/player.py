"""The reference player: asks for the stock, then counts boxes. It reads what an agent reads."""

from collections.abc import Sequence
from typing import Any

from env import PER_BOX

from upcycle import Task


def reply(task: Task, messages: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """The next turn: a tool call, or the answer."""
    item = messages[0]["content"].split()[2].rstrip(",")
    if messages[-1]["role"] == "user":
        return {"tool_calls": [{"name": "stock", "arguments": {"item": item}}]}
    return str(-(-int(messages[-1]["content"]) // PER_BOX))
