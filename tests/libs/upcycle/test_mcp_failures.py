"""MCP servers that die, never answer or answer too much: what the agent reads, and whose failure it is."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.mcp_episodes import RAW, play
from tests.libs.upcycle.mcp_raw_http import serving

from upcycle.environment.mcp import McpTools
from upcycle.environment.mcp_program import MAX_RESULT_BYTES
from upcycle.errors import ToolFailed

ODD = str(Path(__file__).with_name("mcp_odd.py"))
FORECAST = ("forecast", {"city": "Kiel"})


@pytest.fixture
def odd_url() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, ODD, "http"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.kill()
        process.communicate(timeout=30)


async def test_all_pages_of_the_list_are_read() -> None:
    episode, read, blame = await play(RAW, [FORECAST])
    names = [one["function"]["name"] for one in episode.tools]
    assert (names, read, blame.failure) == (["forecast", "die", "freeze", "large"], ["rain"], "")


async def test_a_program_that_dies_in_a_call_is_lost_and_not_the_policys() -> None:
    episode, read, blame = await play(RAW, [FORECAST, ("die", {}), FORECAST])
    assert (read, episode.result) == (["rain"], None)
    assert (blame.failure, blame.policy_failure) == ("external_failure", "")
    assert "tool die: die: MCP server 'odd' is gone: Connection closed" in blame.detail


async def test_a_server_at_a_url_that_dies_in_a_call_is_lost_too(odd_url: str) -> None:
    episode, read, blame = await play({"url": odd_url}, [FORECAST, ("die", {}), FORECAST])
    assert (read, episode.result) == (["rain in Kiel"], None)
    assert (blame.failure, blame.policy_failure) == ("external_failure", "")
    assert "tool die: die: MCP server 'odd' is gone" in blame.detail


@pytest.mark.parametrize("goes_first", [True, False])
async def test_of_two_servers_only_the_tools_of_the_one_that_went_fail(
    odd_url: str, caplog: pytest.LogCaptureFixture, *, goes_first: bool
) -> None:
    servers: dict[str, dict[str, Any]] = {"raw": RAW, "odd": {"url": odd_url}}
    config = dict(reversed(servers.items())) if goes_first else servers
    attached = await McpTools.connect(config, taken=frozenset())
    raw, odd = ("raw__", "") if goes_first else ("", "odd__")
    gone = attached.tools[f"{odd}die"]
    for _ in range(2):
        with pytest.raises(ToolFailed, match=f"{odd}die: MCP server 'odd' is gone"):
            await gone.call({})
    assert (await attached.tools[f"{raw}forecast"].call({"city": "Kiel"})).text == "rain"
    await attached.close()
    (said,) = [one for one in caplog.records if one.message == "mcp_server_gone"]
    assert said.__dict__["server"] == "odd"


async def test_a_line_that_is_no_message_is_logged_with_its_server(caplog: pytest.LogCaptureFixture) -> None:
    chatty = {**RAW, "args": ["-c", f"print('hello'); exec(open({RAW['args'][0]!r}).read())"]}
    attached = await McpTools.connect({"chatty": chatty}, taken=frozenset())
    await attached.close()
    assert "MCP server 'chatty' printed 6 bytes that are no message: Invalid JSON" in caplog.text
    assert "hello" not in caplog.text  # a server may print its secret


async def test_a_program_that_answers_nothing_any_more_is_what_the_agent_reads() -> None:
    episode, read, blame = await play(RAW, [("freeze", {}), FORECAST], tool_s=0.5)
    assert read == ["freeze: no result within 0.5 s", "forecast: no result within 0.5 s"]
    assert (episode.failure, blame.policy_failure) == (None, "")


async def test_a_server_at_a_url_that_answers_nothing_any_more_is_not_the_policys_either(
    odd_url: str,
) -> None:
    """Even telling it that a call was given up must not keep the environment busy."""
    episode, read, blame = await play({"url": odd_url}, [("freeze", {}), FORECAST], tool_s=0.5)
    assert read == ["freeze: no result within 0.5 s", "forecast: no result within 0.5 s"]
    assert (episode.failure, blame.policy_failure) == (None, "")


async def test_a_result_of_50_mb_is_refused_by_name_and_the_next_call_goes_on() -> None:
    began_s = time.process_time()
    _, read, blame = await play(RAW, [("large", {"num_bytes": 50_000_000}), FORECAST])
    said = f"its result has 50000083 bytes, limit {MAX_RESULT_BYTES}; ask for less"
    assert read == [f"large of MCP server 'odd': {said}", "rain"]
    assert (blame.failure, blame.policy_failure) == ("", "")
    assert time.process_time() - began_s < 5  # with the square of the length it took minutes


@pytest.mark.parametrize(
    ("way", "size"),
    [
        ("json", r"its result has 500000\d\d bytes"),
        ("json without a length", r"its result has at least \d+ bytes"),
        ("json in gzip", r"its result has at least \d+ bytes"),
        ("stream", "Server-sent event exceeded"),
    ],
)
async def test_an_answer_of_50_mb_at_a_url_is_refused_by_name_and_no_more_is_read(
    way: str, size: str
) -> None:
    with serving(way) as (url, server):
        _, read, blame = await play({"url": url}, [("large", {}), FORECAST])
    assert read[1:] == ["rain"]
    assert re.match(f"large of MCP server 'odd': .*{size}", read[0])
    assert str(MAX_RESULT_BYTES) in read[0]
    assert (blame.failure, blame.policy_failure) == ("", "")
    assert server.num_sent < 2 * MAX_RESULT_BYTES  # the rest stays with the server


async def test_a_result_below_the_limit_is_cut() -> None:
    episode, _, _ = await play(RAW, [("large", {"num_bytes": 8_000_000})])
    (outcome,) = episode.turns[0].outcomes
    assert (outcome.content[:3], outcome.is_error) == ("xxx", False)
    assert outcome.content.endswith("more characters were cut]")


async def test_a_program_that_never_answers_is_named_within_the_start() -> None:
    silent = {**RAW, "args": [*RAW["args"], "silent"]}
    episode, _, blame = await play(silent, [], start_s=1.0)
    assert episode.failure is not None
    assert blame.failure == "environment_broken"
    assert "MCP server 'odd'" in blame.detail
    assert "it did not answer within 0.5 s; run its command in a shell" in blame.detail


async def test_a_url_that_never_answers_or_refuses_is_the_outside_world() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        _, _, blame = await play({"url": url}, [], start_s=2.0)
    assert blame.failure == "external_failure"
    assert (
        f"MCP server 'odd' ({url}): TimeoutError: it did not answer within 1 s; is it running?"
        in blame.detail
    )
    _, _, refused = await play({"url": url}, [])
    assert refused.failure == "external_failure"
    assert "ConnectError" in refused.detail


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"command": "no-such-program"}, "No such file or directory: 'no-such-program'; run its command"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit(4)"]}, "Connection closed; run its"),
    ],
)
async def test_a_program_that_does_not_start_is_the_environments(server: dict[str, Any], said: str) -> None:
    _, _, blame = await play(server, [])
    assert blame.failure == "environment_broken"
    assert said in blame.detail
