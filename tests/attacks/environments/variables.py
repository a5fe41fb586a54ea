"""An environment whose tool looks for secrets in the variables of its process, parent and child."""

import os
import subprocess
from collections.abc import AsyncGenerator
from typing import Any

from upcycle import Environment

env = Environment("variables")


@env.tool()
def look() -> str:
    """All that it finds."""
    child = subprocess.run(["/usr/bin/env"], capture_output=True, text=True, check=True).stdout
    texts = [child, *map(str, os.environ.items())]
    for process in ("self", str(os.getppid())):
        try:
            with open(f"/proc/{process}/environ") as file:
                texts.append(file.read())
        except PermissionError:
            continue
    return "\n".join(texts)


@env.scenario("play")
async def play() -> AsyncGenerator[Any, Any]:
    """Look."""
    yield "Look."
    yield 1.0
