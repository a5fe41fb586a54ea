"""`upcycle dev`: the tools over MCP, an edit picked up, an error shown while the last version is served."""

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from tests.seeds.table import LASTING
from tests.support.mcp_results import text_of
from tests.support.waiting import until

from upcycle.cli.dev import chosen_source
from upcycle.environment.loading import load_environment, why_not_loaded
from upcycle.errors import UnknownName
from upcycle.playing.in_process import play_tasks
from upcycle.task_rows import EnvironmentRef, Task

pytestmark = pytest.mark.timeout(400)
UPCYCLE = str(Path(sys.executable).parent / "upcycle")
ENV = """
import os
from prices import PRICES
from upcycle import Environment

env = Environment("shop")
basket = []


@env.tool()
def put(item: str) -> int:
    basket.append(PRICES[item])
    return sum(basket)


@env.tool()
def process() -> str:
    print("asked for its process")
    return f"{os.getpid()} {os.getppid()}"


@env.scenario()
async def buy(item: str):
    answer = yield f"What does {item} cost?"
    yield 1.0 if answer == str(PRICES[item]) else 0.0
"""
MORE = """

@env.tool()
def empty() -> str:
    basket.clear()
    return "empty"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "env.py").write_text(ENV)
    (tmp_path / "prices.py").write_text("PRICES = {'tea': 3}\n")
    return tmp_path


class Dev:
    """The command, and what it has written so far."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [UPCYCLE, *arguments],
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CI": "1"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.lines.extend(iter(self._process.stderr.readline, ""))

    @property
    def text(self) -> str:
        return "".join(self.lines)

    async def says(self, pattern: str) -> str:
        found = await until(lambda: re.search(pattern, self.text), repr(pattern), timeout_s=100)
        return str(found[1] if found.re.groups else found[0])

    async def url(self) -> str:
        return await self.says(r"(http://127\.0\.0\.1:\d+/mcp)")

    async def ends(self, signal_number: int = signal.SIGINT) -> int:
        self._process.send_signal(signal_number)
        return await asyncio.to_thread(self._process.wait, 60)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reader.join(10)


@contextmanager
def developing(folder: Path, *arguments: str) -> Iterator[Dev]:
    dev = Dev(folder, *(arguments or ("dev", "env.py", "--port", "0")))
    try:
        yield dev
    finally:
        dev.kill()


def alive(pids: str) -> list[str]:
    return [pid for pid in pids.split() if os.path.exists(f"/proc/{pid}")]


async def names_of(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def called(client: Client, name: str, **arguments: Any) -> tuple[bool, str]:
    result = await client.call_tool(name, arguments)
    return result.is_error, text_of(result)


async def test_a_scenario_is_played_over_mcp(folder: Path) -> None:
    with developing(folder) as dev:
        await dev.says(r"version [0-9a-f]{12}, 2 tools, 1 scenario\n")
        async with Client(await dev.url()) as client:
            assert await names_of(client) == {"put", "process", "dev_start", "dev_grade"}
            assert await called(client, "put", item="tea") == (False, "3")
            is_error, text = await called(client, "dev_grade", answer="3")
            assert (is_error, text) == (True, "no task is begun: call dev_start first, with a scenario (buy)")
            started = await called(client, "dev_start", scenario="buy", arguments={"item": "tea"})
            assert started == (False, "What does tea cost?")
            assert await called(client, "put", item="tea") == (False, "3")  # in a fresh process
            is_error, text = await called(client, "put", item="gold")
            assert (is_error, text) == (True, "put: KeyError: 'gold'")
            is_error, graded = await called(client, "dev_grade", answer="3")
            assert (is_error, json.loads(graded)["score"]) == (False, 1.0)
            is_error, text = await called(client, "dev_grade", answer="3")
            assert (is_error, "no task is begun: call dev_start first" in text) == (True, True)
            is_error, text = await called(client, "dev_start", scenario="sell")
            assert (is_error, "has no scenario 'sell'" in text) == (True, True)
            await called(client, "process")
        await dev.says("asked for its process")
        channel = await dev.says(r"an agent plays it with --runtime (tcp://127\.0\.0\.1:\d+)\n")
        task = Task(EnvironmentRef("shop", path=str(folder / "env.py")), "buy", '{"item": "tea"}')
        (episode,) = await asyncio.to_thread(play_tasks, [task], lambda task, said: "3", runtime=channel)
        assert episode.result is not None, episode.failure
        assert episode.result.score == 1.0


async def test_an_edit_is_picked_up_and_ends_the_task_in_progress(folder: Path) -> None:
    with developing(folder, "dev", "env.py", "--port", "0", "-w", "notes") as never:
        assert "no such file or folder: notes" in await never.says("no such .*")
    (folder / "notes").mkdir()
    with developing(folder, "dev", "env.py", "--port", "0", "-w", "notes") as dev:
        await dev.says("2 tools, 1 scenario")
        async with Client(await dev.url()) as client:
            await called(client, "dev_start", scenario="buy", arguments={"item": "tea"})
            (folder / "env.py").write_text(ENV + MORE)
            await dev.says(r"env\.py changed: version [0-9a-f]{12}, 3 tools")
            is_error, text = await called(client, "dev_grade", answer="3")
            assert (is_error, "loaded again, and its task is over" in text) == (True, True)
            assert await called(client, "empty") == (False, "empty")
            (folder / "prices.py").write_text("PRICES = {'tea': 4, 'milk': 1}\n")
            await dev.says(r"prices\.py changed: version")
            await called(client, "dev_start", scenario="buy", arguments={"item": "milk"})
            assert await called(client, "put", item="milk") == (False, "1")
            (folder / "notes" / "hint.txt").write_text("new")
            await dev.says(r"hint\.txt changed: version")


async def test_a_syntax_error_is_shown_and_the_last_good_version_is_served_on(folder: Path) -> None:
    with developing(folder) as dev:
        digest = await dev.says(r"version ([0-9a-f]{12}), 2 tools")
        async with Client(await dev.url()) as client:
            await called(client, "dev_start", scenario="buy", arguments={"item": "tea"})
            (folder / "env.py").write_text(ENV + "def broken(:\n")
            await dev.says(f"not loaded; version {digest} is still served")
            line = len(ENV.splitlines()) + 1
            await dev.says(rf'File ".*env\.py", line {line}\n')
            await dev.says("SyntaxError: invalid syntax")
            assert await called(client, "put", item="tea") == (False, "3")
            is_error, graded = await called(client, "dev_grade", answer="3")
            assert (is_error, json.loads(graded)["score"]) == (False, 1.0)
            (folder / "env.py").write_text(ENV + MORE)
            await dev.says("3 tools")


async def test_what_does_not_load_at_first_is_served_once_it_does(folder: Path) -> None:
    (folder / "env.py").write_text("import nothing_of_that_name\n" + ENV)
    with developing(folder) as dev:
        await dev.says("not loaded; nothing is served yet")
        await dev.says("ModuleNotFoundError: No module named 'nothing_of_that_name'")
        assert "upcycle/" not in dev.text.partition("not loaded")[2]  # the author's lines, and none of ours
        async with Client(await dev.url()) as client:
            with pytest.raises(MCPError, match=r"env\.py does not load"):
                await client.list_tools()
            (folder / "env.py").write_text(ENV)
            await dev.says("2 tools, 1 scenario")
            assert "put" in await names_of(client)


MISTAKES = {
    "none": ("x = 1\n", r"nothing is served yet: env\.py declares no environment; write env = Environment"),
    "name": (ENV, r"yet: env\.py declares no environment 'market'; it has shop\n"),
    "two": (ENV + 'b = Environment("b")\n', r"yet: env\.py declares 2 environments .*: env\.py:shop\n"),
    "scenario": (
        ENV.partition("@env.scenario")[0],
        r"2 tools, 0 scenarios\nit declares no scenario, so dev_",
    ),
    "start": (
        ENV + "\n@env.initialize\nasync def up():\n    os.environ['SHOP_KEY']\n",
        r"1 scenario\nit does not start, and no tool can be called: .*up raised KeyError: 'SHOP_KEY'\n",
    ),
    "taken": (
        ENV.replace("def process", "def dev_start"),
        r"2 tools, 1 scenario\nits own tool dev_start stands in the place of ours: give it another name",
    ),
}


@pytest.mark.parametrize("mistake", sorted(MISTAKES))
async def test_what_keeps_a_scenario_from_being_played_is_a_line(folder: Path, mistake: str) -> None:
    text, said = MISTAKES[mistake]
    (folder / "env.py").write_text(text)
    named = "env.py:market" if mistake == "name" else "env.py"
    with developing(folder, "dev", named, "--port", "0") as dev:
        await dev.says(said)
        if mistake not in ("scenario", "start", "taken"):
            return
        async with Client(await dev.url()) as client:
            assert {"dev_start", "dev_grade"} <= await names_of(client)
            (is_error, begun), (_, unnamed) = [
                await called(client, "dev_start", **given) for given in ({"scenario": "buy"}, {})
            ]
    expected = {
        "scenario": ("has no scenario 'buy'", "it declares no scenario, so dev_start has nothing to begin"),
        "start": ("up raised KeyError: 'SHOP_KEY'", "dev_start needs a scenario: buy"),
        "taken": ("unknown argument 'scenario'", ""),
    }[mistake]
    assert is_error
    assert "Traceback" not in dev.text
    assert (expected[0] in begun, expected[1] in unnamed) == (True, True), (begun, unnamed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_leaves_nothing(folder: Path, number: int) -> None:
    with developing(folder) as dev:
        await dev.says("2 tools")
        url = await dev.url()
        async with Client(url) as client:
            _, text = await called(client, "process")
        assert await dev.ends(number) == 0
        await until(lambda: not alive(text))  # the kernel takes a moment to end what was killed
        with socket.socket() as port:
            port.bind(("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0])))


async def test_a_killed_command_takes_its_environment_with_it(folder: Path) -> None:
    with developing(folder) as dev:
        await dev.says("2 tools")
        async with Client(await dev.url()) as client:
            _, text = await called(client, "process")
    await until(lambda: not alive(text))


async def test_a_taken_port_is_named(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with developing(folder, "dev", "env.py", "--port", str(port)) as dev:
            said = await dev.says(r"upcycle: .*\n")
            assert said == f"upcycle: port {port} of this machine is taken; give another --port\n"
            assert await dev.ends(0) == 2


async def test_the_line_of_the_seeds(folder: Path) -> None:
    (line,) = LASTING
    with developing(folder, *shlex.split(line)[1:], "--port", "0") as dev:
        await dev.says("2 tools, 1 scenario")


def test_what_can_be_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    chosen = [chosen_source(text) for text in ("env.py", "env.py:env", "env:env", str(folder / "env.py"))]
    assert [one.path.name for one in chosen] == ["env.py"] * 4
    assert [one.attribute for one in chosen] == [None, "env", "env", None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shop:env", r"no such file: shop\.py; give the Python file that declares the environment: env\.py"),
        ("env,py", r"no such file: env,py\.py; did you mean env\.py\?"),
        ("price.py", r"no such file: price\.py; did you mean prices\.py\?"),
        (".", r"\. is a folder; give the Python file that declares the environment: env\.py, prices\.py"),
        ("notes", r"notes is a folder; give the Python file that declares the environment$"),
        ("", r"\. is a folder"),
        ("tasks.json", r"tasks\.json is no Python file"),
    ],
)
def test_what_is_no_file_of_an_environment_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "notes").mkdir()
    (folder / "tasks.json").write_text("[]")
    with pytest.raises(UnknownName, match=f"^{said}"):
        chosen_source(text)


def test_an_error_of_the_author_is_shown_with_the_authors_lines(tmp_path: Path) -> None:
    path = tmp_path / "env.py"
    path.write_text("from upcycle import Environment\n\nenv = Environment('')\n")
    with pytest.raises(Exception, match="environment name") as caught:
        load_environment(path)
    shown = why_not_loaded(caught.value)
    assert 'env.py", line 3' in shown
    assert shown.splitlines()[-1] == "environment name '' is not a non-empty string"
    assert "loading.py" not in shown
