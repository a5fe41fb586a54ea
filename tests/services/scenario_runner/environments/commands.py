"""An environment whose rubric runs commands over what the agent left behind."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from upcycle import Environment
from upcycle.graders import BashGrader, Rubric

env = Environment("commands")
HIDDEN_TEST = 'test "$(cat)" = done && python3 -c "from fixed import add; assert add(2, 3) == 5"'


@env.tool()
def write(content: str) -> str:
    """Writes the module that the hidden test imports."""
    Path("fixed.py").write_text(content)
    return "written"


@env.scenario("fix")
async def fix() -> AsyncGenerator[Any, Any]:
    answer = yield "Make add(2, 3) be 5, then say done."
    yield Rubric([BashGrader(HIDDEN_TEST, cwd=".")]).grade(answer)


@env.scenario("command")
async def command(line: str, timeout_s: float = 20.0) -> AsyncGenerator[Any, Any]:
    answer = yield "What does it print?"
    yield Rubric([BashGrader(line, timeout_s=timeout_s)]).grade(answer)
