"""The reference player: reads the head of each sheet, then writes what is asked. Its formulas are those of
the task's gold answer; they follow from the prompt and from the cells that it reads."""

import re
from collections.abc import Sequence
from typing import Any

from env import completed

from upcycle import Task

_SHEETS = re.compile(r"^(\w+): A1:([A-Z]+)\d+$", re.MULTILINE)


def reply(task: Task, messages: Sequence[dict[str, Any]]) -> str | dict[str, Any]:
    """The next turn: one call, or the answer."""
    reads = [
        ("read_cells", {"sheet": sheet, "area": f"A1:{last}2"})
        for sheet, last in _SHEETS.findall(messages[0]["content"])
    ]
    gold = completed(**task.args)
    calls = [*reads, *gold.calls]
    done = sum(message["role"] == "tool" for message in messages)
    if done == len(calls):
        return gold.answer
    name, arguments = calls[done]
    return {"tool_calls": [{"name": name, "arguments": arguments}]}
