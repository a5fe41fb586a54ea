"""Servers built on MCP SDK 1.x and 2.x, each in an environment of its own, as programs and over HTTP."""

import asyncio
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.stacks import BenchmarkFailed
from tests.libs.upcycle.mcp_episodes import Calls, play

pytestmark = [pytest.mark.study, pytest.mark.timeout(600)]

ODD = str(Path(__file__).with_name("mcp_odd.py"))
FORECAST = ("forecast", {"city": "Kiel"})
SDKS = {
    name: PeerEnvironment(name, version, (f"mcp=={version}",), {}, 60.0)
    for name, version in (("mcp-1", "1.30.0"), ("mcp-2", "2.3.0"))
}


@pytest.fixture(scope="module", params=SDKS)
def sdk(request: pytest.FixtureRequest) -> PeerEnvironment:
    found = SDKS[request.param]
    try:
        asyncio.run(found.prepare())
    except (BenchmarkFailed, OSError) as error:
        pytest.skip(f"no environment with mcp {found.version}: {error}")
    return found


@pytest.fixture(params=["stdio", "http"])
def server(sdk: PeerEnvironment, request: pytest.FixtureRequest) -> Iterator[Mapping[str, Any]]:
    """The entry for connect_mcp_config."""
    command = [str(sdk.python), ODD]
    if request.param == "stdio":
        yield {"command": command[0], "args": command[1:]}
        return
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen([*command, "http"], stdout=pipe, stderr=nothing, text=True)
    try:
        assert process.stdout is not None
        yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}
    finally:
        process.kill()
        process.communicate(timeout=30)


async def test_its_tools_are_called_and_what_they_raise_is_read(server: Mapping[str, Any]) -> None:
    episode, read, blame = await play(server, [FORECAST, ("broken", {}), FORECAST])
    assert (read[0], read[2], blame.failure) == ("rain in Kiel", "rain in Kiel", "")
    assert read[1].startswith("Error executing tool broken")
    assert episode.turns[1].outcomes[0].is_error


async def test_one_that_dies_in_a_call_is_lost(server: Mapping[str, Any]) -> None:
    _, read, blame = await play(server, [FORECAST, ("die", {}), FORECAST])
    assert (read, blame.failure, blame.policy_failure) == (["rain in Kiel"], "external_failure", "")
    assert "MCP server 'odd' is gone" in blame.detail


async def test_one_that_answers_nothing_any_more_is_not_the_policys_failure(
    server: Mapping[str, Any],
) -> None:
    """Telling it that a call was given up must not keep the environment busy."""
    episode, read, blame = await play(server, [("freeze", {}), FORECAST], tool_s=2.0)
    assert read == ["freeze: no result within 2 s", "forecast: no result within 2 s"]
    assert (episode.failure, blame.policy_failure) == (None, "")


async def test_a_result_of_50_mb_fails_its_call_alone(server: Mapping[str, Any]) -> None:
    calls: Calls = [("large", {"num_bytes": 50_000_000}), ("large", {"num_bytes": 2_000_000}), FORECAST]
    episode, read, blame = await play(server, calls)
    assert (blame.failure, blame.policy_failure, read[2]) == ("", "", "rain in Kiel")
    large, small = (turn.outcomes[0] for turn in episode.turns[:2])
    # An answer in one JSON document, as 2.x gives over HTTP, is read whole, and cut.
    assert large.is_error or large.content.endswith("more characters were cut]")
    assert (small.is_error, small.content[:3]) == (False, "xxx")
