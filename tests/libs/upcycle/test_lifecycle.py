"""`@env.initialize` and `@env.shutdown`: once in each episode's process, around its scenario."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from upcycle import Environment
from upcycle.environment.channel import ChannelError, ControlChannel
from upcycle.environment.lifecycle import SHUTDOWN_S
from upcycle.environment.session_forks import SessionForks
from upcycle.errors import DefinitionError, ScenarioError
from upcycle.playing.hosting import ForkedHost, SameProcessHost


class Shop:
    """Writes each moment of its life into a file. fails: the moment that raises."""

    def __init__(self, log: Path, fails: str) -> None:
        self._log, self._fails = log, fails

    def note(self, moment: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{moment} ")
        if moment == self._fails:
            raise RuntimeError(f"it was {moment}")


def environment(log: Path, *, fails: str = "") -> Environment:
    """Two functions at each end, one of them async."""
    env, shop = Environment("shop"), Shop(log, fails)

    @env.initialize
    async def connect() -> None:
        await asyncio.sleep(0)
        shop.note("connect")

    env.initialize(lambda: shop.note("fill"))
    env.shutdown(lambda: shop.note("disconnect"))

    @env.shutdown
    async def flush() -> None:
        await asyncio.sleep(0)
        shop.note("flush")

    @env.scenario()
    async def ask() -> Any:
        shop.note("prompt")
        yield "?"
        shop.note("grade")
        yield 1.0

    return env


async def played(channel: ControlChannel) -> float:
    await channel.start("ask", {})
    await channel.list_tools()
    return float((await channel.grade("x"))["score"])


@pytest.mark.parametrize("host", [ForkedHost, SameProcessHost])
async def test_they_run_once_around_an_episode(tmp_path: Path, host: Any) -> None:
    log = tmp_path / "log"
    where = host(environment(log))
    try:
        async with where.channel() as channel:
            assert await played(channel) == 1.0
    finally:
        await where.end()
    assert log.read_text().split() == ["connect", "fill", "prompt", "grade", "flush", "disconnect"]


async def test_each_served_session_has_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    forks = SessionForks.start(environment(log))
    try:
        for _ in range(2):
            process = await forks.fork()
            assert await played(process.channel) == 1.0
            await forks.end(process)
    finally:
        forks.stop()
    assert log.read_text().split() == 2 * ["connect", "fill", "prompt", "grade", "flush", "disconnect"]


async def test_an_episode_that_ends_before_its_grade_shuts_down_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    where = ForkedHost(environment(log))
    async with where.channel() as channel:
        await channel.start("ask", {})
    await where.end()
    assert log.read_text().split() == ["connect", "fill", "prompt", "flush", "disconnect"]


@pytest.mark.parametrize(
    ("fails", "says", "happened"),
    [
        ("connect", "@env.initialize: connect raised RuntimeError: it was connect", ["connect"]),
        ("prompt", "RuntimeError: it was prompt", ["connect", "fill", "prompt", "flush", "disconnect"]),
    ],
)
async def test_a_failure_before_the_prompt_is_the_scenarios_error(
    tmp_path: Path, fails: str, says: str, happened: list[str]
) -> None:
    log = tmp_path / "log"
    where = ForkedHost(environment(log, fails=fails))
    try:
        async with where.channel() as channel:
            with pytest.raises(ChannelError) as caught:
                await channel.start("ask", {})
    finally:
        await where.end()
    assert caught.value.error_kind == ScenarioError.kind
    assert says in str(caught.value)
    assert "test_lifecycle.py" in caught.value.traceback
    assert log.read_text().split() == happened


async def test_a_shutdown_that_raises_changes_no_reward_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    where = ForkedHost(environment(log, fails="flush"))
    try:
        async with where.channel() as channel:
            assert await played(channel) == 1.0
    finally:
        await where.end()
    assert log.read_text().split()[-2:] == ["flush", "disconnect"]
    assert "RuntimeError: it was flush" in capfd.readouterr().err  # of a test, logs go there


async def test_a_shutdown_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("upcycle.environment.channel.client.SHUTDOWN_S", 0.3)
    env = environment(tmp_path / "log")

    @env.shutdown
    async def wait() -> None:
        await asyncio.sleep(10 * SHUTDOWN_S)

    where = ForkedHost(env)
    async with where.channel() as channel:
        assert await played(channel) == 1.0
    await where.end()
    assert "disconnect" not in (tmp_path / "log").read_text()


def test_what_cannot_run_is_refused_when_it_is_declared() -> None:
    env = Environment("shop")
    with pytest.raises(DefinitionError, match=r"@env\.initialize: connect takes arguments"):

        @env.initialize
        def connect(url: str) -> None: ...

    with pytest.raises(DefinitionError, match=r"write @env\.shutdown above a function"):
        env.shutdown(None)  # type: ignore[type-var]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says who started whom")
def test_a_server_in_a_session_of_its_own_ends_with_the_episode_of_upcycle_play() -> None:
    env = Environment("shop")

    @env.tool()
    def serve() -> int:
        return subprocess.Popen(["sleep", "300"], start_new_session=True).pid

    @env.scenario()
    async def ask() -> Any:
        yield "?"
        yield 1.0

    host = ForkedHost(env)

    async def played() -> int:
        async with host.channel() as channel:
            await channel.hello()
            await channel.start("ask", {})
            pid = int((await channel.call_tool("serve", {})).text)
            os.kill(pid, 0)  # it is there
        await host.end()
        return pid

    status = Path(f"/proc/{asyncio.run(played())}/status")
    assert not status.exists() or "zombie" in status.read_text()
