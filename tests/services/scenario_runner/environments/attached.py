"""Attaches a server that is a program of ours."""

from collections.abc import AsyncGenerator
from typing import Any

from tests.libs.upcycle.mcp_episodes import RAW

from upcycle import Environment

env = Environment("attached")
env.connect_mcp_config({"odd": RAW})


@env.scenario()
async def play() -> AsyncGenerator[Any, Any]:
    answer = yield "Go."
    yield 1.0 if answer else 0.0
