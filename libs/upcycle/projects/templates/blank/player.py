"""The reference player: asks for the stock, subtracts, answers. It reads what an agent reads, no more."""

from collections.abc import Sequence
from typing import Any

from upcycle import Task


def reply(task: Task, messages: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """The next turn: a tool call, or the answer."""
    sold, item, *_ = messages[0]["content"].split()
    if messages[-1]["role"] == "user":
        return {"tool_calls": [{"name": "stock", "arguments": {"item": item}}]}
    return str(int(messages[-1]["content"]) - int(sold))
