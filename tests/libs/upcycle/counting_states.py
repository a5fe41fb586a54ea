"""An environment with a state, for tests."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment

env = Environment("counting-states")
notes: dict[str, Any] = {"title": "a list of what was written", "lines": []}


@env.state()
async def everything() -> dict[str, Any]:
    """What was written so far."""
    if "slow" in notes["lines"]:
        await asyncio.sleep(3600)
    if "odd" in notes["lines"]:
        return {"odd": {1, 2}}
    if "raise" in notes["lines"]:
        return {"first": notes["missing"]}
    return notes


@env.tool()
def write(line: str, times: int = 1) -> str:
    """Add a line."""
    notes["lines"] = [line * times] if line.startswith("only ") else [*notes["lines"], line * times]
    return "written"


@env.scenario()
async def writing() -> AsyncGenerator[Any, Any]:
    """Pays where a state had two lines."""
    answer = yield "Write two lines."
    states = answer.trajectory.states
    yield {"score": float(len(states[-1]["lines"]) == 2 if states[-1] else 0), "info": {"states": states}}


@env.scenario()
async def broken() -> AsyncGenerator[Any, Any]:
    """Its state cannot be read at the prompt."""
    notes["lines"] = ["raise"]
    yield "?"
    yield 1.0


tasks = [writing.task(slug="writing"), broken.task(slug="broken")]
