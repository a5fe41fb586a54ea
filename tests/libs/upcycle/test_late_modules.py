"""What a library imports when it first works is there before the first episode is forked."""

import sys
from pathlib import Path

import pytest

from upcycle.playing.runtime_hosts import opened_hosts
from upcycle.task_rows import EnvironmentRef, Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fork loop is for Linux")

LOADED = """
import sys
{line}
from upcycle import Environment

env = Environment("shop")

@env.tool()
def loaded() -> bool:
    return "jsonschema.validators" in sys.modules

@env.scenario()
async def ask():
    yield "?"
    yield 1.0
"""


@pytest.mark.parametrize(("line", "said"), [("import mcp", "true"), ("", "false")])
async def test_what_checks_results_of_mcp_servers_is_imported_once(
    tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "env.py").write_text(LOADED.format(line=line))
    where = EnvironmentRef("shop", path=str(tmp_path / "env.py"))
    async with opened_hosts(where, None) as hosts:
        host = await hosts.new(Task(where, "ask"))
        async with host.channel() as channel:
            await channel.hello()
            await channel.start("ask", {})
            called = await channel.call_tool("loaded", {})
        await host.end()
    assert called.text == said
