"""The smallest episode there is, the same as the peer's in peers/hud_env.py: what remains is the platform."""

from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment, Task, Taskset

NAME = "bench-echo"
env = Environment("bench")


@env.scenario("echo")
async def echo(number: int) -> AsyncGenerator[Any, Any]:
    """Answer with the number."""
    answer = yield f"say {number}"
    yield 1.0 if answer == str(number) else 0.0


def taskset(count: int) -> Taskset:
    """`count` different tasks."""
    return Taskset(f"{NAME}-{count}", [_task(number) for number in range(count)], "held_out")


def _task(number: int) -> Task:
    return echo.task(slug=f"echo-{number}", number=number)
