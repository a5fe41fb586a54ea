"""A well-behaved environment: sums."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment

env = Environment("arith", version="1.0.0")
calls: list[int] = []


@env.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    calls.append(1)
    return {"sum": a + b}


@env.tool()
def process() -> dict[str, Any]:
    """Facts about the process that plays the episode."""
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "cwd": os.getcwd(),
        "calls": len(calls),
        "env": dict(os.environ),
    }


@env.scenario("sum")
async def sum_up(a: int, b: int) -> AsyncGenerator[Any, Any]:
    """Ask for a sum."""
    answer = yield [{"role": "system", "content": "You add."}, {"role": "user", "content": f"{a}+{b}?"}]
    right = answer.strip() == str(a + b)
    uses = len(answer.trajectory.tool_calls)
    yield {
        "score": 1.0 if right else 0.25,
        "success": right,
        "subscores": [{"name": "right", "weight": 1.0, "value": float(right), "info": {"uses": uses}}],
        "info": {"calls": len(calls)},
    }
