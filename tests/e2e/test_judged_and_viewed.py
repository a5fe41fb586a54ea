"""An evaluation whose answers a model judges, as a user runs it and reads it again."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from tests.e2e.test_seed_listings import UPCYCLE, printed
from tests.platform_recipes import MODEL, REPOSITORY, addresses
from tests.support.model_servers import KEY, ModelServerDouble

from local_stack.stack import Stack

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(300)]

ENVIRONMENT: Final = f"""
import sys

sys.path.insert(0, {str(REPOSITORY)!r})
from examples.incident import env as incident
from examples.incident.world import World, draw_incident
from upcycle import Environment, Rubric
from upcycle.judge_grader import LLMJudgeGrader

env = Environment("judged-incident")
for tool in (incident.list_issues, incident.get_stack_trace, incident.search_logs, incident.recent_deploys):
    env.tool()(tool)
JUDGE = LLMJudgeGrader(["names a service", ("blames a person", -1.0)], question="what is at fault?")


@env.scenario("judged")
async def judged(seed: int):
    incident._worlds.append(World(draw_incident("train", seed)))
    answer = yield incident.prompt(incident._worlds[-1].incident.alerting)
    yield await Rubric([JUDGE.weighing(1.0)]).judged(answer)
"""
TASKS: Final = """
from env import judged
from upcycle import Taskset

cases = [judged.task(slug=f"case-{seed}", seed=seed) for seed in range(3)]
TASKS = Taskset("judged-tasks", cases, "unassigned")
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the stack's runner may load it."""
    made = REPOSITORY / ".upcycle" / "test_judged_and_viewed"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    (made / "env.py").write_text(ENVIRONMENT)
    (made / "tasks.py").write_text(TASKS)
    return made


async def said(stack: Stack, folder: Path, *arguments: str) -> str:
    status, text = await printed(addresses(stack), folder, UPCYCLE, *arguments)
    assert status == 0, text
    return text


async def test_a_judged_evaluation_is_reported_shown_and_viewed(
    stack: Stack, judge: ModelServerDouble, folder: Path
) -> None:
    before = len(judge.turns)
    sampled = ("--group", "2", "--max-tokens-per-turn", "64")
    text = await said(stack, folder, "eval", "tasks.py", MODEL, *sampled, "--json")
    lines: dict[str, Any] = {one["kind"]: one for one in map(json.loads, _json_lines(text))}
    done = lines["done"]
    run_id, episodes = done["run_id"], done["evaluation"]["episodes"]
    assert done["coverage"]["num_graded"] == 6
    answered = [one for one in episodes if one["reward"] == 1.0]
    assert answered, "the policy gave no answer that could be judged"
    assert {one["reward"] for one in episodes} <= {0.0, 1.0}  # an empty answer is 0 without a question
    assert len(judge.turns) - before == len(answered)
    assert done["report"]["subscores"]["judge"] == len(answered) / 6

    shown = await said(stack, folder, "trajectories", "show", answered[0]["trajectory_id"], "--no-tokens")
    assert "judge 1.000 × 1" in shown
    assert "reason 1" in shown
    await said(stack, folder, "view", run_id, "-o", "run.html")
    page = (folder / "run.html").read_text()
    for text in (run_id, "case-0", "wise-1", "reason 2", "list_issues"):
        assert text in page
    assert KEY not in page + shown


def _json_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("{")]
