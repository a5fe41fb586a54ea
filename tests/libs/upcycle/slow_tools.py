"""An environment with tools that take long, for the tests of their limits."""

import asyncio
from collections.abc import AsyncGenerator

from upcycle import Environment

env = Environment("slow-tools")


@env.tool(timeout_s=3600)
async def build(seconds: float) -> str:
    """May take an hour."""
    await asyncio.sleep(seconds)
    return "built"


@env.tool(timeout_s=0.2)
async def peek(seconds: float) -> str:
    """Must answer at once."""
    await asyncio.sleep(seconds)
    return "seen"


@env.tool()
async def wait(seconds: float) -> str:
    """As long as the place where it plays allows."""
    await asyncio.sleep(seconds)
    return "waited"


@env.scenario()
async def job() -> AsyncGenerator[str | float, str]:
    """Three tools."""
    answer = yield "Build it."
    yield float(answer == "built")


tasks = [job.task(slug="job")]
