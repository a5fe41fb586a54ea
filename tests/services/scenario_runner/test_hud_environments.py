"""HUD's own SDK, in an environment of its own, against ours: its environments here, ours with its client."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hud import HUD
from tests.libs.upcycle.test_served_sessions import served
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import finished, play_to_grade, register, run_spec, submit
from tests.services.scenario_runner.support import sampling as sampler

from scenario_runner.adapters.tcp_host import TcpHost
from scenario_runner.domain.environments import EpisodeFault, EpisodeTimeouts, EpisodeToPlay, TcpEnvironment
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1 import taskset_pb2

pytestmark = [pytest.mark.study, pytest.mark.timeout(1900)]

TIMEOUTS = EpisodeTimeouts(start_s=60, tool_s=60, grade_s=60, tool_result_bytes=4096)

THEIRS = """
import asyncio
import json
import socket
from fastmcp import FastMCP
from hud import Environment
from hud.capabilities import Capability
from hud.graders import EvaluationResult, SubScore

shelf = FastMCP("shelf")
env = Environment("shelf")


@shelf.tool
def add(a: int, b: int) -> str:
    if a < 0:
        raise ValueError("no negative numbers here")
    return json.dumps({"sum": a + b})


@env.initialize
async def up():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env.serving = asyncio.create_task(
        shelf.run_async(transport="http", host="127.0.0.1", port=port, show_banner=False)
    )
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.05)
    env.add_capability(Capability.mcp(name="shelf", url=f"http://127.0.0.1:{port}/mcp"))


@env.template()
async def sum(a: int, b: int):
    answer = yield f"{a}+{b}?"
    yield 1.0 if answer == str(a + b) else 0.25


@env.template()
async def generous():
    yield "anything"
    parts = [SubScore(name="bonus", weight=1.7, value=1.0), SubScore(name="rude", weight=-0.2, value=1.0)]
    yield EvaluationResult(reward=1.5, subscores=parts, my_note="kept to itself")


@env.template()
async def judge_down():
    yield "anything"
    yield EvaluationResult(reward=0.0, isError=True, content="judge timed out")
"""

OURS = """
import asyncio
import sqlite3
from upcycle import Environment

env = Environment("books")
shelf = sqlite3.connect(":memory:")
shelf.execute("create table book (pages int)")


@env.tool()
def pages() -> int:
    return shelf.execute("select sum(pages) from book").fetchone()[0]


@env.tool()
def tear(number: int) -> str:
    if number < 0:
        raise ValueError("nothing to tear")
    shelf.execute("insert into book values (?)", [-number])
    return "torn"


@env.scenario()
async def count(number: int):
    shelf.execute("insert into book values (?)", [number])
    await asyncio.sleep(0.2)  # others of the group insert meanwhile, each into a book of its own
    answer = yield f"How many pages has the book of {number}?"
    yield 1.0 if answer == str(number) else 0.0
"""

THEIR_CLIENT = '''
import asyncio
import json
import sys
from hud import Runtime, Taskset
from hud.agents.base import Agent
from hud.eval import Task


class Counts(Agent):
    """Calls tools over MCP, as HUD's own agents do."""

    async def __call__(self, run):
        mcp = await run.client.open("mcp")
        names = sorted(tool.name for tool in await mcp.list_tools())
        refused = await mcp.call_tool("tear", {"number": -1})
        result = await mcp.call_tool("pages", {})
        said.append([names, refused.isError, refused.content[0].text])
        run.trace.content = result.content[0].text


async def main(url):
    tasks = [Task(env="books", id="count", args={"number": number}) for number in (7, 300)]
    for task in tasks:
        task.slug = f"count-{task.args['number']}"
    job = await Taskset("books", tasks).run(Counts(), runtime=Runtime(url), group=3, max_concurrent=6)
    print(json.dumps({"rewards": [run.reward for run in job.runs], "said": said}))


said = []
asyncio.run(main(sys.argv[1]))
'''


@pytest.fixture(scope="module")
def hud_python() -> Path:
    return asyncio.run(HUD.prepare())


@contextmanager
def their_server(python: Path, folder: Path) -> Iterator[str]:
    path = folder / "hud_env.py"
    path.write_text(THEIRS)
    command = [str(python), "-m", "hud.environment.server", str(path), "--host", "127.0.0.1", "--port", "0"]
    environ = {**os.environ, **HUD.variables, "PYTHONPATH": ""}
    with (folder / "hud.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("HUD_SERVE_PORT="):
                yield f"tcp://127.0.0.1:{int(line.partition('=')[2])}"
                return
        raise AssertionError((folder / "hud.log").read_text())
    finally:
        process.kill()
        process.communicate(timeout=60)


def episode(url: str, scenario: str, args: Any) -> EpisodeToPlay:
    return EpisodeToPlay("e", TcpEnvironment("shelf", url), scenario, json.dumps(args), datetime.now(UTC))


async def test_their_environment_is_played_with_its_tools(hud_python: Path, tmp_path: Path) -> None:
    with their_server(hud_python, tmp_path) as url:
        host = TcpHost(TIMEOUTS)
        assert set((await host.describe(TcpEnvironment("shelf", url))).scenarios) == {
            "sum",
            "generous",
            "judge_down",
        }
        # Each call in a task of its own, as the rpcs of the fleet are.
        environment = await asyncio.create_task(host.start(episode(url, "sum", {"a": 1, "b": 2})))
        assert [tool.name for tool in environment.tools] == ["add"]
        called = await asyncio.create_task(environment.call_tool("add", {"a": 1, "b": 2}))
        assert (json.loads(called.content), called.is_error) == ({"sum": 3}, False)
        refused = await asyncio.create_task(environment.call_tool("add", {"a": -1, "b": 2}))
        assert (refused.is_error, "no negative numbers here" in refused.content) == (True, True)
        assert (await asyncio.create_task(environment.grade("3", {"turns": []}))).reward == 1.0
        await asyncio.create_task(environment.close())

        generous = await host.start(episode(url, "generous", {}))
        grade = await generous.grade("x", {})
        assert (grade.reward, grade.success) == (1.5, True)
        assert [one["weight"] for one in grade.subscores] == [1.7, -0.2]
        await generous.close()

        judged = await host.start(episode(url, "judge_down", {}))
        with pytest.raises(EpisodeFault, match="judge timed out") as caught:
            await judged.grade("x", {})
        assert caught.value.failure_kind == "external_failure"
        await judged.close()


async def test_a_run_of_their_environment_on_the_platform(
    runner: Runner, hud_python: Path, tmp_path: Path
) -> None:
    with their_server(hud_python, tmp_path) as url:
        environment = taskset_pb2.EnvironmentSpec(name="shelf", tcp=taskset_pb2.TcpSource(url=url))
        tasks = [
            taskset_pb2.Task(slug=f"t{n}", scenario="sum", args_json=json.dumps({"a": 1, "b": n}))
            for n in range(3)
        ]
        sums = taskset_pb2.Taskset(
            name="sums", split=common_pb2.SPLIT_TRAIN, environment=environment, tasks=tasks
        )
        await register(runner, sums)
        run = await submit(runner, run_spec(group_size=2))
        async with sampler(runner, lambda request: play_to_grade(runner, request)):
            done = await finished(runner, run.run_id)
    assert dict(done.run.counts.by_state) == {"evaluated": 6}
    assert sorted(row.reward for row in done.results) == [0.25] * 3 + [1.0] * 3


async def test_their_client_plays_our_environment_with_its_tools(hud_python: Path, tmp_path: Path) -> None:
    ours, client = tmp_path / "books.py", tmp_path / "client.py"
    ours.write_text(OURS)
    client.write_text(THEIR_CLIENT)
    with served(ours) as (url, _):
        out = await HUD.output((str(hud_python), str(client), url), tmp_path)
    report = json.loads(out.splitlines()[-1])
    assert report["rewards"] == [1.0] * 6
    assert report["said"] == [[["pages", "tear"], True, "tear: ValueError: nothing to tear"]] * 6
