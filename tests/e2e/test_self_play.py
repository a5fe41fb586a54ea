"""A run that plays against itself on the whole platform: both roles train, and the ledger is exact."""

import shutil
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.feeding import ledger
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
from upcycle import Environment, Taskset

env = Environment("hidden")


@env.scenario("hide")
async def hide(seed: int):
    answer = yield f"Hide a number, {seed}."
    yield float(len(answer) % 4 != 0)


@env.scenario("find")
async def find(number: int):
    answer = yield f"Find a number of {number} letters."
    yield float((len(answer) + number) % 2)


@find.proposed_by(hide)
def hidden(proposal, seed: int):
    return {"number": len(proposal)}


TASKS = Taskset("hidden", [hide.task(slug=f"hide-{seed}", seed=seed) for seed in range(6)], "train")
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    """Where the stack's runner may load it."""
    made = REPOSITORY / ".upcycle" / "test_self_play"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    (made / "hidden.py").write_text(TASKS)
    return made


async def test_what_a_run_proposes_is_played_and_both_roles_train(
    stack: Stack, platform: Platform, folder: Path
) -> None:
    small = ("--steps", "4", "--prompts", "4", "--group", "4", "--max-tokens-per-turn", "32", "--seed", "3")
    played = ("--self-play", "hide:find", "--advantage", "hierarchical", "--max-staleness", "1")
    text = await said(stack, folder, "train", MODEL, "--taskset", "hidden.py", *played, *small)
    listed = (await platform.tasksets.ListRuns(pb.ListRunsRequest(limit=1, model=MODEL))).runs
    run = (await platform.tasksets.GetRun(pb.GetRunRequest(run_id=listed[0].run_id))).run
    assert run.step == 4
    assert run.new_tasks.ordered == run.new_tasks.duplicate + run.new_tasks.groups, "each is played once"
    assert run.new_tasks.trained > 0
    (own,) = [source for source in run.sources if source.run_id == run.run_id]
    assert own.trained > 0, "groups of proposers trained, too"
    assert own.trained + run.new_tasks.trained == 16, "four steps of four groups"
    session = (await platform.training.GetSession(GetSessionRequest(run_id=run.run_id))).session
    assert session.step == 4
    kept = await ledger(platform, run.run_id)
    assert kept.requested == kept.settled == run.counts.requested
    assert (kept.conflicts, kept.trained_twice, kept.in_flight) == (0, 0, 0)
    assert kept.by_state["trained"] == 16 * 4
    assert run.run_id in text
