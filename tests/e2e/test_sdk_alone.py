"""The SDK's wheel, alone in an empty environment, evaluates a new environment on a running platform."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.packaging.venvs import build_wheel, clean_environment, environment
from tests.platform_recipes import MODEL, REPOSITORY

from local_stack.stack import Stack

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(900)]

TASKS = '''
from upcycle import Environment, Taskset

env = Environment("greeting")


@env.tool()
def wave(times: int) -> str:
    """Wave."""
    return "waved " * times


@env.scenario("greet")
async def greet(name: str):
    answer = yield f"Greet {name}."
    yield 1.0 if name in answer else 0.25


TASKS = Taskset("greetings", [greet.task(name=name) for name in ("Ada", "Grace", "Edsger")])
'''
EVALUATE = f'''
import asyncio
from upcycle import Taskset, create_agent
from upcycle.eval import Job

async def main():
    job = await Job.start("{MODEL}", group=2)
    agent = create_agent("{MODEL}", max_turns=2, max_tokens_per_turn=16)
    runs = await Taskset.load("tasks.py").run(agent, job=job)
    print(len(runs), len(job.runs), {{run.is_error for run in runs}}, min(run.reward for run in runs) >= 0.25)
    print({{run.trajectory is not None for run in runs}})

asyncio.run(main())
'''


async def test_the_sdk_alone_evaluates_an_environment_on_a_running_platform(
    stack: Stack, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    wheel = build_wheel("upcycle", tmp_path_factory.mktemp("wheel"))
    programs = environment([wheel], request.config.cache.mkdir("sdk"))
    # The runner loads environments from its roots alone, and the stack's root is the repository.
    folder = REPOSITORY / ".upcycle" / "test_sdk_alone"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tasks.py").write_text(TASKS)
    (folder / "evaluate.py").write_text(EVALUATE)
    peers = {f"UPCYCLE_PEERS_{name.upper()}": address for name, address in stack.peers.items()}
    key = {"UPCYCLE_OPERATOR_KEY": stack.operator_key_file.read_text().strip()}

    def said(*command: str | Path) -> str:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**clean_environment(), **peers, **key},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said(programs / "python", "evaluate.py").splitlines() == ["6 6 {False} True", "{True}"]
    lines = said(
        programs / "upcycle", "eval", "tasks.py", MODEL, "--group", "2", "--max-turns", "2", "--json"
    ).splitlines()
    done = json.loads(lines[-1])
    assert (done["kind"], int(done["counts"]["settled"]), done["state"]) == ("done", 6, "RUN_STATE_COMPLETED")
