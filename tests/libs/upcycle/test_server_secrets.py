"""Secrets of MCP servers where no platform is: from the user's profile, and cut out of all that is said."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.libs.upcycle.mcp_episodes import play

from upcycle import Environment, Taskset
from upcycle.environment.loading import load_environment
from upcycle.environment.server_secrets import (
    HiddenValues,
    SecretMissing,
    SecretRefused,
    check_references,
    checked_name,
    checked_value,
    filled,
    named_secrets,
)
from upcycle.errors import DefinitionError
from upcycle.playing.forking import ForkServer
from upcycle.playing.hosting import MAX_OUTPUT_BYTES, ForkedHost, KeptOutput, SameProcessHost
from upcycle.task_rows import EnvironmentRef

CANARY = 'canary-7e41"c09'
PROGRAM = str(Path(__file__).with_name("mcp_keyed.py"))
KEYED = {"command": sys.executable, "args": [PROGRAM], "env": {"KEYED_TOKEN": "${secret:TOKEN}"}}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile with the secret."""
    path = tmp_path / "profile.toml"
    path.write_text(f"[secrets]\nTOKEN = {json.dumps(CANARY)}\n")
    path.chmod(0o600)
    monkeypatch.setenv("UPCYCLE_PROFILE", str(path))
    return path


def test_values_stand_in_env_and_headers_alone() -> None:
    config = {
        "a": {**KEYED, "cwd": "x"},
        "b": {"url": "u", "headers": {"Authorization": "Bearer ${secret:B}"}},
    }
    assert named_secrets(config) == {"TOKEN": "a", "B": "b"}
    given = filled(config, {"TOKEN": "${secret:B}", "B": "b-value"})
    assert given["a"]["env"] == {"KEYED_TOKEN": "${secret:B}"}, "a value is not read as a name"
    assert given["b"]["headers"] == {"Authorization": "Bearer b-value"}
    with pytest.raises(
        SecretMissing, match="MCP server 'b' names secret 'B', which is not set; on a platform"
    ):
        filled(config, {"TOKEN": "1"})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": "x", "args": ["--key=${secret:K}"]}, "args names secret 'K', and others of the machine"),
        ({"url": "http://h/?key=${secret:K}"}, "url names secret 'K'"),
        ({"command": "x", "env": {"K": "${secret:a-b}"}}, "'a-b' is no name of a secret"),
    ],
)
def test_a_secret_where_others_see_it_and_what_is_no_name_are_refused(
    fields: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(DefinitionError, match=said.replace("?", r"\?")):
        check_references("s", fields)


def test_values_that_cannot_be_cut_out_are_refused_without_repeating_them() -> None:
    for value in ("abcde", "x" * 5000, "two\nlines", "schlüssel"):
        with pytest.raises(SecretRefused) as refused:
            checked_value("K", value)
        assert value not in str(refused.value)
    assert checked_value("K", " a token \n") == "a token"
    with pytest.raises(SecretRefused):
        checked_name("A=B")


def test_the_longest_value_is_cut_first_and_json_is_walked() -> None:
    hidden = HiddenValues({"A": "secret", "B": "secret-long", "SHORT": "abc"})
    assert hidden.cut("secret-long secret abc") == "[secret B] [secret A] abc"
    assert hidden.cut_from({"secret": ["x secret", 1, None, {"k": "y"}]}) == {
        "[secret A]": ["x [secret A]", 1, None, {"k": "y"}]
    }


WRITTEN = {
    "as it is": r"""ab/c&d"e\f<'g'>""",
    "by Python": r"""ab/c&d\"e\\f<'g'>""",
    "by PHP": r"""ab\/c&d\"e\\f<'g'>""",
    "by Go": r"""ab/c\u0026d\"e\\f\u003c'g'\u003e""",
    "by .NET": r"""ab/c\u0026d\u0022e\\f\u003C\u0027g\u0027\u003E""",
    "in a text within a text": r"""ab/c\\u0026d\\\"e\\\\f<'g'>""",
    "by repr": r"""ab/c&d"e\\f<\'g\'>""",
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_a_value_is_cut_as_any_writer_of_json_spells_it(text: str) -> None:
    hidden = HiddenValues({"T": WRITTEN["as it is"]})
    assert hidden.cut(f'{{"k": "x {text}"}}') == '{"k": "x [secret T]"}'


@pytest.mark.parametrize("text", ["\\" * 300_000, "q" + "\\" * 300_000, ("q" + "\\" * 9) * 30_000])
def test_a_text_of_backslashes_takes_no_time_to_speak_of(text: str) -> None:
    hidden = HiddenValues({"A": '\\\\"xyzzy', "B": 'q\\"&&&abc'})
    began = time.perf_counter()
    assert hidden.cut(text) == text
    assert time.perf_counter() - began < 5


def test_half_a_value_at_the_edge_of_a_text_that_was_cut_goes_too(tmp_path: Path) -> None:
    hidden = HiddenValues({"T": CANARY, "U": "other-value-77"})
    shown = hidden.cut_part(f"{CANARY[5:]} {CANARY} other-va", lacks_begin=True, lacks_end=True)
    assert shown == "[secret T] [secret T] [secret U]"
    assert hidden.cut_part(CANARY[5:]) == CANARY[5:]
    read_end, write_end = os.pipe()
    kept = KeptOutput(read_end, hidden)
    os.write(write_end, b"x" * (MAX_OUTPUT_BYTES - 8) + CANARY.encode())
    os.close(write_end)
    kept.finish()
    assert "canary" not in kept.text()
    assert kept.text().endswith("x[secret T]\n[7 more bytes were printed]")


@pytest.mark.usefixtures("profile")
async def test_a_limit_of_a_result_leaves_no_half_of_a_value(environment: EnvironmentRef) -> None:
    env = load_environment(environment.path)

    @env.tool()
    def profile() -> str:
        return f"{'x' * 900}{CANARY}{'x' * 900}"

    host = SameProcessHost(env)
    async with host.channel() as channel:
        await channel.start("ask", {})
        for limit in range(960, 980):
            result = await channel.call_tool("profile", {}, max_bytes=limit)
            assert result.truncated
            assert CANARY[:4] not in result.text, limit
    await host.end()


@pytest.mark.usefixtures("profile")
async def test_what_is_no_message_of_the_protocol_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    episode, read, _ = await play(KEYED, [("misshape", {})])
    assert "its answer is none of the protocol" in read[0]
    assert "printed 204 bytes that are no message" in caplog.text
    assert CANARY[:4] not in f"{episode!r} {read} {caplog.text}"


@pytest.mark.usefixtures("profile")
async def test_what_a_server_says_of_its_secret_is_cut_out_of_the_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    episode, read, _ = await play(KEYED, [("tell", {}), ("refuse", {}), ("nothing", {})])
    assert episode.failure is None
    assert read[0] == 'header: Bearer [secret TOKEN] {"quoted": "[secret TOKEN]"}'
    assert "401 for [secret TOKEN]" in read[1]
    assert "canary" not in f"{episode!r} {read} {caplog.text}"


@pytest.mark.usefixtures("profile")
async def test_a_server_that_does_not_start_does_not_show_its_secret() -> None:
    ends = {"command": sys.executable, "args": ["-c", "import os; print(os.environ['K'])"]}
    episode, _, _ = await play({**ends, "env": {"K": "${secret:TOKEN}"}}, [])
    assert "canary" not in repr(episode)


FILE = """
import os, sys
from upcycle import Environment
env = Environment("keyed")
env.connect_mcp_config({"keyed": CONFIG})
@env.tool()
def variables() -> str:
    print(dict(os.environ))
    return str(dict(os.environ))
@env.scenario("ask")
def ask():
    yield "Go."
    yield 1.0
tasks = [ask.task(slug="one")]
"""


@pytest.fixture
def environment(tmp_path: Path) -> EnvironmentRef:
    """In a file."""
    path = tmp_path / "keyed_env.py"
    path.write_text(FILE.replace("CONFIG", repr(KEYED)))
    return EnvironmentRef("keyed", path=str(path))


@pytest.mark.usefixtures("profile")
async def test_a_forked_episode_has_the_server_and_no_variable_with_the_secret(
    environment: EnvironmentRef,
) -> None:
    server = await asyncio.to_thread(ForkServer, environment)
    try:
        task = next(iter(Taskset.load(Path(environment.path))))
        host = await server.new(task)
        async with host.channel() as channel:
            await channel.start("ask", {})
            said = [(await channel.call_tool(name, {})).text for name in ("tell", "variables")]
            specs = await channel.list_tools()
        await host.end()
    finally:
        server.close()
    assert "Bearer [secret TOKEN]" in said[0]
    assert "starting with [secret TOKEN]" in host.output()
    assert "canary" not in f"{said} {specs} {host.output()}"


async def test_a_secret_that_is_not_set_is_named_before_anything_plays(
    environment: EnvironmentRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPCYCLE_PROFILE", "")
    said = "MCP server 'keyed' names secret 'TOKEN'.*upcycle set secret TOKEN"
    with pytest.raises(SecretMissing, match=said):
        await asyncio.to_thread(ForkServer, environment)
    env = Environment("keyed")
    env.connect_mcp_config({"keyed": KEYED})
    with pytest.raises(SecretMissing, match=said):
        ForkedHost(env)
    episode, _, _ = await play(KEYED, [])
    assert "names secret 'TOKEN'" in repr(episode.failure)


class _Redirects(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(307)
        self.send_header("location", self.server.target)  # type: ignore[attr-defined]
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def redirecting() -> Iterator[tuple[str, list[dict[str, str]], list[dict[str, str]]]]:
    """A URL that redirects to another port, and the headers that came to both."""
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), _Redirects) as other,
        ThreadingHTTPServer(("127.0.0.1", 0), _Redirects) as first,
    ):
        for server in (other, first):
            server.seen = []  # type: ignore[attr-defined]
            server.target = f"http://127.0.0.1:{other.server_port}/mcp"  # type: ignore[attr-defined]
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{first.server_port}/mcp", first.seen, other.seen  # type: ignore[attr-defined]
        for server in (other, first):
            server.shutdown()


@pytest.mark.usefixtures("profile")
async def test_a_header_goes_to_the_named_host_and_not_where_that_points(
    redirecting: tuple[str, list[dict[str, str]], list[dict[str, str]]],
) -> None:
    url, first, other = redirecting
    episode, _, _ = await play({"url": url, "headers": {"X-Key": "k ${secret:TOKEN}"}}, [])
    assert first[0]["X-Key"] == f"k {CANARY}"
    assert other == []
    assert "canary" not in repr(episode)
