"""The seeds' listings and command lines on one platform, as tests/seeds/table.py says."""

import ast
import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import torch
from tests.platform_recipes import EXAMPLE, HELD_OUT_TASKSET, MODEL, REPOSITORY, addresses
from tests.seeds.table import ALONE, ELSEWHERE, LASTING, LISTINGS, PYTHON, SHELL, Row, Status

from local_stack.stack import Stack
from upcycle import Answer, Environment, Taskset, TrainingClient, create_agent
from upcycle.api.registry.v1.service_pb2 import ForkModelRequest
from upcycle.eval import Job
from upcycle.platform import Addresses, Platform
from upcycle.rpc import RemoteNotFound
from upcycle.run_config.refusing import RunConfigInvalid

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]

UPCYCLE: Final = str(Path(sys.executable).parent / "upcycle")
WORKS: Final = (Status.RUNS, Status.STAND_IN)
USAGE: Final = 2
TASKS: Final = """
from env import investigate_issue
from upcycle import Taskset

TASKS = Taskset("seed-tasks", [investigate_issue.task(query="500s", expected_finding="pool")], "unassigned")
"""
# What `python -m asyncio` does with a listing that awaits at its top level.
RUN_LISTING: Final = """
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
done = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(done):
    asyncio.run(done)
"""


def listing(name: str) -> str:
    """The text of a listing as its row's reader fills it in."""
    row = next(row for row in PYTHON if row.line == name)
    text = (LISTINGS / name).read_text()
    for printed, meant in row.given:
        text = text.replace(printed, meant)
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def where(stack: Stack, platform: Platform) -> AsyncIterator[Addresses]:
    """How a client finds the platform, on which `Qwen/Qwen3.5-4B` and `arith-rl` are forks."""
    for source, name in ((MODEL, "Qwen/Qwen3.5-4B"), ("Qwen/Qwen3.5-4B", "arith-rl")):
        await platform.registry.ForkModel(ForkModelRequest(source_model=source, model=name), timeout=60)
    yield addresses(stack)


@pytest.fixture(scope="module")
def folder() -> Path:
    """env.py and tasks.py of the listings, where the stack's runner may load them."""
    made = REPOSITORY / ".upcycle" / "test_seed_listings"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    (made / "env.py").write_text(listing("env.txt") + listing("scenario.txt"))
    (made / "tasks.py").write_text(TASKS)
    return made


async def printed(where: Addresses, folder: Path, *command: str) -> tuple[int, str]:
    """Exit status and output of a command in the folder, with the platform's addresses."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env={
            **os.environ,
            **{f"UPCYCLE_PEERS_{peer.upper()}": at for peer, at in where.peers.items()},
            "UPCYCLE_OPERATOR_KEY": where.platform_key() or "",
            "UPCYCLE_API_KEY": where.gateway_key(),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(200):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    "row",
    [row for row in SHELL if row.status in (*WORKS, Status.REFUSED) and row.line not in (*LASTING, *ALONE)],
    ids=lambda row: row.line,
)
async def test_a_command_line_of_the_seeds(where: Addresses, folder: Path, row: Row) -> None:
    arguments = shlex.split(row.typed())[1:]
    status, said = await printed(where, folder, UPCYCLE, *arguments)
    assert status == (USAGE if row.status is Status.REFUSED else 0), said
    assert row.refusal in said
    assert "Traceback" not in said


def declared(name: str, **blanks: Any) -> Environment:
    """The environment that listings declare, one after another in one module."""
    names: dict[str, Any] = {"__file__": "env.py", **blanks}
    for one in name.split("+"):
        exec(listing(one), names)  # noqa: S102 - our own resource
    found = names["env"]
    assert isinstance(found, Environment)
    return found


async def reward(env: Environment, scenario: str, answer: str, **arguments: Any) -> float:
    """What a scenario pays for an answer."""
    play = env.scenarios[scenario].play(arguments)
    await play.start()
    return (await play.grade(Answer(answer))).score


async def env_txt(where: Addresses, folder: Path) -> None:
    os.environ["SENTRY_AUTH_TOKEN"] = "token"
    try:
        assert declared("env.txt").attaches_tools
    finally:
        del os.environ["SENTRY_AUTH_TOKEN"]
    assert not declared("env.txt").attaches_tools


async def scenario_txt(where: Addresses, folder: Path) -> None:
    env = declared("env.txt+scenario.txt")
    asked = {"query": "500s", "expected_finding": "connection pool exhaustion"}
    assert await reward(env, "investigate", "it is connection pool exhaustion", **asked) == 1.0
    assert await reward(env, "investigate", "a bad deploy", **asked) == 0.0
    assert await reward(env, "investigate", "connection pool exhaustion", query="500s") == 0.0


async def evaluate_txt(where: Addresses, folder: Path) -> None:
    script = folder / "evaluate.py"
    script.write_text(listing("evaluate.txt"))
    status, said = await printed(where, folder, sys.executable, "-c", RUN_LISTING, str(script))
    assert (status, said.splitlines()[-1:]) == (0, ["Reward: 0.0"])


async def template_txt(where: Addresses, folder: Path) -> None:
    env = declared("template.txt", evaluate_spreadsheet_result=lambda answer: answer == "12")
    assert await reward(env, "spreadsheet_task", "12") == 1.0
    assert await reward(env, "spreadsheet_task", "13") == 0.0


async def job_txt(where: Addresses, folder: Path) -> None:
    script = folder / "job.py"
    script.write_text(listing("job.txt") + "print(session.group, session.runs)\n")
    assert await printed(where, folder, sys.executable, str(script)) == (0, "8 []\n")


async def rollout_txt(where: Addresses, folder: Path) -> None:
    names: dict[str, Any] = {"torch": torch}
    exec(listing("rollout.txt"), names)  # noqa: S102 - our own resource
    runs, rewards = await names["HUDRollout"](MODEL).rollout()
    assert (runs, rewards.shape) == ([], (0,))


async def losses_txt(where: Addresses, folder: Path) -> None:
    names: dict[str, Any] = {"trainer": TrainingClient(MODEL, runtime=where)}
    source = f"found = {listing('losses.txt')}"
    code = compile(source, "losses.txt", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, names)  # noqa: S307 - our own resource
    assert {"importance_sampling", "ppo", "cispo", "dro", "cross_entropy"} <= set(names["found"])


CHECKS: Final[dict[str, Callable[[Addresses, Path], Awaitable[None]]]] = {
    f"{check.__name__.removesuffix('_txt')}.txt": check
    for check in (env_txt, scenario_txt, evaluate_txt, template_txt, job_txt, rollout_txt, losses_txt)
}


@pytest.mark.parametrize(
    "name", [row.line for row in PYTHON if row.status in WORKS and row.line not in ELSEWHERE]
)
async def test_a_python_listing_of_the_seeds(where: Addresses, folder: Path, name: str) -> None:
    await CHECKS[name](where, folder)


async def test_a_taskset_comes_back_from_the_platform(where: Addresses) -> None:
    mine = Taskset.from_file(EXAMPLE / "tasks.py", HELD_OUT_TASKSET)
    assert (await Taskset.from_api(HELD_OUT_TASKSET, runtime=where)).digest == mine.digest
    with pytest.raises(RemoteNotFound):
        await Taskset.from_api("unknown", runtime=where)


async def test_a_taskset_runs_in_groups_a_few_episodes_at_a_time(where: Addresses) -> None:
    few = Taskset("few", list(Taskset.from_file(EXAMPLE / "tasks.py", HELD_OUT_TASKSET))[:2], "held_out")
    agent = create_agent(MODEL, max_turns=2, max_tokens_per_turn=16)
    job = await Job.start(MODEL, group=8)
    runs = await few.run(agent, runtime=where, group=2, max_concurrent=2, job=job)
    assert (len(runs), job.runs) == (4, runs)
    with pytest.raises(RunConfigInvalid, match="must be >= group"):
        await few.run(agent, runtime=where, group=2, max_concurrent=1)
