"""A tool's own limit in the fleet: it travels with the tool's description, and each call keeps it."""

from pathlib import Path

from tests.libs.upcycle import slow_tools
from tests.services.scenario_runner.fleets import Fleet

from scenario_runner.domain.environments import PythonEnvironment
from scenario_runner.wire.environments import opened_to_wire

SLOW_TOOLS = PythonEnvironment("slow-tools", str(Path(slow_tools.__file__)))


async def test_a_call_may_take_as_long_as_its_tool_says(fleet: Fleet) -> None:
    with fleet.hasty(tool_s=0.5):
        opened = await fleet.open("job", source=SLOW_TOOLS)
        built = await fleet.call(opened, "build", '{"seconds": 1.6}')  # 0.5 s, and 1 s more for a wedged one
        assert (built.content, built.is_error) == ("built", False)
        waited = await fleet.call(opened, "wait", '{"seconds": 30}')
        assert (waited.content, waited.is_error) == ("wait: no result within 0.5 s", True)
        peeked = await fleet.call(opened, "peek", '{"seconds": 30}')
        assert (peeked.content, peeked.is_error) == ("peek: no result within 0.2 s", True)
    assert (await fleet.grade(opened, "built")).reward == 1.0


async def test_the_limit_is_sent_to_the_sampler(fleet: Fleet) -> None:
    opened = opened_to_wire(await fleet.open("job", source=SLOW_TOOLS), "127.0.0.1:1")
    assert [tool.timeout_s for tool in opened.tools if tool.HasField("timeout_s")] == [3600.0, 0.2]
    assert [tool.name for tool in opened.tools if not tool.HasField("timeout_s")] == ["wait"]
