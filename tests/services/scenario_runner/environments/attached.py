"""Attaches a server that is a program of ours. Imports nothing of the tests: the fleet does not have them."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from upcycle import Environment

PROGRAM = Path(__file__).parents[3] / "libs" / "upcycle" / "mcp_raw.py"

env = Environment("attached")
env.connect_mcp_config({"odd": {"command": sys.executable, "args": [str(PROGRAM)]}})


@env.scenario()
async def play() -> AsyncGenerator[Any, Any]:
    answer = yield "Go."
    yield 1.0 if answer else 0.0
