"""An evaluation of echo tasks by ours and by three peers, each in an environment of its own, in one run.

All ask the same chat server, which answers at once, and keep as many episodes going. They differ in what an
episode is kept apart by, so each row names it: only rows with the same isolation can be compared as such.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, number
from benchmarks.hud import HUD
from benchmarks.options import Options
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.process_cost import Cost, cost_of
from benchmarks.stacks import REPOSITORY, BenchmarkFailed
from service_kit.leash import leashed

_TASKS, _PROCESS_TASKS, _CONCURRENT = 1000, 40, 16
"""Of a peer that starts an interpreter for each episode only _PROCESS_TASKS are played."""
_LIMIT_S: Final = 3600.0
_MODEL: Final = "echo"
INSPECT: Final = PeerEnvironment("inspect", "0.3.285", ("inspect-ai==0.3.285", "openai"), {}, _LIMIT_S)
VERIFIERS: Final = PeerEnvironment("verifiers", "0.1.14", ("verifiers==0.1.14",), {}, _LIMIT_S)
_ONE_PROCESS: Final = "no isolation: all episodes in one process"
_OURS: Final = """
from upcycle import Environment, Taskset

env = Environment("echo")


@env.scenario("echo")
async def echo(number: int):
    answer = yield f"say {number}"
    yield 1.0 if answer == str(number) else 0.0


tasks = Taskset("echo", [echo.task(slug=f"e-{number}", number=number) for number in range(COUNT)], "held_out")
"""


@dataclass(frozen=True, slots=True)
class Contender:
    """A program that plays the tasks and prints `reward_mean` in its last line, as JSON. command: of the
    server's origin and the number of tasks."""

    name: str
    isolation: str
    tasks: int
    command: Callable[[str, int], tuple[str, ...]]
    peer: PeerEnvironment | None = None


def contenders(options: Options, scratch: Path) -> list[Contender]:
    """Ours first."""
    many, few = options.sized(_TASKS, 20), options.sized(_PROCESS_TASKS, 2)

    def peer(environment: PeerEnvironment, program: str, *more: str) -> Callable[[str, int], tuple[str, ...]]:
        path = str(Path(__file__).parent / "peers" / program)
        python = str(environment.python)
        return lambda url, count: (python, path, url, str(count), str(_CONCURRENT), *more)

    return [
        Contender("upcycle eval", "a forked process for each episode", many, _ours(scratch)),
        Contender("inspect-ai 0.3.285", _ONE_PROCESS, many, peer(INSPECT, "inspect_echo.py"), INSPECT),
        Contender("verifiers 0.1.14", _ONE_PROCESS, many, peer(VERIFIERS, "verifiers_echo.py"), VERIFIERS),
        Contender("HUD 0.6.21 LocalRuntime", _ONE_PROCESS, many, peer(HUD, "hud_echo.py", "local"), HUD),
        Contender(
            "HUD 0.6.21 SubprocessRuntime", "an interpreter for each episode", few,
            peer(HUD, "hud_echo.py", "subprocess"), HUD,
        ),
    ]  # fmt: skip


async def measure(options: Options) -> list[Figure]:
    """One after the other, each once."""
    figures = []
    async with _chat_server() as url:
        for one in contenders(options, options.scratch):
            if one.peer is not None:
                await one.peer.prepare()
            known = dict(one.peer.variables) if one.peer else {}
            env = {**known, "OPENAI_API_KEY": "none", "UPCYCLE_AGENT_KEY": "none"}
            cost = await cost_of(one.command(url, one.tasks), options.scratch, env, _LIMIT_S)
            figures.append(figure_of(one, cost))
    return figures


def figure_of(one: Contender, cost: Cost) -> Figure:
    """Its row. Raises BenchmarkFailed where not every episode was right."""
    said = json.loads(cost.printed.splitlines()[-1])
    if said["reward_mean"] != 1.0:
        raise BenchmarkFailed(f"{one.name}: not every episode was right: {said}")
    note = (
        f"{one.isolation}; processor time {number(cost.cpu_s)} s, "
        f"{number(cost.cpu_s * 1e3 / one.tasks)} ms a task; memory {number(cost.peak_mib)} MiB"
    )
    name = f"{one.tasks:,} echo tasks, {_CONCURRENT} at once: {one.name}"
    return Figure(name, "s", (cost.wall_s,), note=note)


def _ours(scratch: Path) -> Callable[[str, int], tuple[str, ...]]:
    """`upcycle eval` as a person types it, without the platform."""

    def command(url: str, count: int) -> tuple[str, ...]:
        path = scratch / "echo_tasks.py"
        path.write_text(_OURS.replace("COUNT", str(count)), encoding="utf-8")
        program = str(Path(sys.executable).parent / "upcycle")
        agent = ("--agent", f"openai:{url}/v1#{_MODEL}")
        return (program, "eval", str(path), *agent, "--max-concurrent", str(_CONCURRENT), "--json")

    return command


@asynccontextmanager
async def _chat_server() -> AsyncIterator[str]:
    """Its origin."""
    argv, pipe = leashed((sys.executable, "-m", "benchmarks.instant_chat")), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, cwd=REPOSITORY)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        async with asyncio.timeout(60):
            said = json.loads(await process.stdout.readline())
        yield f"http://127.0.0.1:{said['port']}"
    finally:
        process.stdin.close()
        await process.wait()
