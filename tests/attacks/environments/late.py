"""An environment that reads its files only when it plays."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from upcycle import Environment

env = Environment("late", data=["variables.py"])


@env.scenario("play")
async def play() -> AsyncGenerator[Any, Any]:
    """Its prompt is what it reads."""
    yield (Path(__file__).parent / "variables.py").read_text().partition("\n")[0]
    yield 1.0
