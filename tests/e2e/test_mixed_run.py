"""A training run on two environments with guidance, as a user runs it and reads it again."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from tests.e2e.test_judged_and_viewed import said
from tests.platform_recipes import MODEL, REPOSITORY

from local_stack.stack import Stack
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.training.v1.service_pb2 import GetSessionRequest
from upcycle.platform import Platform

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.study,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

TASKS: Final = """
import sys

sys.path.insert(0, {repository!r})
from examples.incident import env as incident
from examples.incident.world import World, draw_incident
from upcycle import Environment, Taskset

env = Environment("{name}")
for tool in (incident.list_issues, incident.get_stack_trace, incident.search_logs, incident.recent_deploys):
    env.tool()(tool)


@env.scenario("{name}")
async def play(seed: int):
    incident._worlds.append(World(draw_incident("train", seed)))
    answer = yield incident.prompt(incident._worlds[-1].incident.alerting)
    yield {reward}


@play.guidance
def hint(failed, seed: int) -> str:
    return "look again"


TASKS = Taskset("{name}", [play.task(slug=f"case-{{seed}}", seed=seed) for seed in range({first}, {first} + 6)], "train")
"""  # noqa: E501 - a file
SPREAD: Final = "(len(answer) + len(answer.trajectory.tool_calls)) % 5 / 4"


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the stack's runner may load it: one environment pays by chance, the other never."""
    made = REPOSITORY / ".upcycle" / "test_mixed_run"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    for name, reward, first in (("chance", SPREAD, 0), ("never", "0.0", 50)):
        text = TASKS.format(repository=str(REPOSITORY), name=name, reward=reward, first=first)
        (made / f"{name}.py").write_text(text)
    return made


async def trained(stack: Stack, folder: Path) -> str:
    """What the command printed."""
    small = ("--steps", "2", "--prompts", "4", "--group", "4", "--max-tokens-per-turn", "48", "--seed", "3")
    guided = ("--guidance", "on_failure", "--guidance-max-share", "0.5")
    asked = ("--taskset", "chance.py", "--mix", "never.py:share=0.5", *guided, *small)
    return await said(stack, folder, "train", MODEL, *asked)


async def test_a_run_on_two_environments_trains_and_says_what_each_gave(
    stack: Stack, platform: Platform, folder: Path
) -> None:
    text = await trained(stack, folder)
    listed = (await platform.tasksets.ListRuns(pb.ListRunsRequest(limit=1, model=MODEL))).runs
    run_id = listed[0].run_id
    done = await platform.tasksets.GetRun(pb.GetRunRequest(run_id=run_id, include_results=True))
    own, other = done.run.mix
    assert (done.run.step, own.taskset, other.taskset) == (2, "chance", "never")
    assert own.trained == 8, "two steps of four groups, all of them from the one that pays"
    assert (other.trained, other.reward_mean) == (0, 0.0)
    assert own.guided_groups + other.guided_groups == done.run.guided_groups
    assert other.guided_groups > own.guided_groups, "by chance a whole group of the one that pays fails, too"
    assert own.groups + other.groups == done.run.groups
    assert abs(own.groups - other.groups) <= 5, "a guided group comes when one failed, whatever the shares"
    assert own.source_digest == done.run.source_digest != other.source_digest
    guided = f"({other.guided_groups} guided)"
    for line in ("chance (0.5 of the groups): ", "never (0.5 of the groups): ", guided):
        assert line in text

    played = Counter(row.taskset for row in done.results)
    assert set(played) == {"chance", "never"}
    assert "never" in {row.taskset for row in done.results if row.guided_after}

    await assert_steps_say_what_each_gave(platform, run_id)
    of_all = f"{done.run.guided_groups} of {done.run.groups}"
    await assert_it_is_read_again(stack, folder, run_id, guided=of_all)


async def assert_steps_say_what_each_gave(platform: Platform, run_id: str) -> None:
    session = await platform.training.GetSession(GetSessionRequest(run_id=run_id, num_steps=10))
    for point in session.steps:
        values = point.metrics.values
        assert (values["groups:chance"], values["groups:never"]) == (4.0, 0.0)
        assert values["reward_mean:chance"] == pytest.approx(values["reward_mean"])


async def assert_it_is_read_again(stack: Stack, folder: Path, run_id: str, *, guided: str) -> None:
    shown = await said(stack, folder, "runs", "list", run_id)
    assert f"guided: {guided} groups" in shown
    assert "never (0.5 of the groups): " in shown
    listed = await said(stack, folder, "trajectories", "list", "--run", run_id, "--limit", "200")
    assert "taskset" in listed.splitlines()[0]
    exported = await said(stack, folder, "trajectories", "export", "--run", run_id, "--form", "trajectories")
    lines: list[Any] = [json.loads(line) for line in exported.splitlines() if line.startswith("{")]
    assert {line["task"]["taskset"] for line in lines} == {"chance", "never"}
    assert "never" in {line["task"]["taskset"] for line in lines if "guided_after" in line}
    await said(stack, folder, "view", run_id, "-o", "page.html")
    page = (folder / "page.html").read_text()
    for text in ("never: case-", "chance: case-", "never (0.5 of the groups): ", "guided groups", guided):
        assert text in page
