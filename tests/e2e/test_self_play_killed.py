"""A run that plays against itself under kill -9, on the whole platform: each proposal is played once and paid
once, by those that solved it, and nothing is lost or trained twice."""

import shutil
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio
from tests.e2e.feeding import RUN_LIMIT_S, steps_of
from tests.e2e.test_loop import assert_conserved, balanced
from tests.e2e.test_self_play import TASKS
from tests.platform_recipes import MODEL, REPOSITORY, addresses, small_stack, small_training
from tests.support.waiting import until

from event_bus import EventBus
from local_stack.services import sql_folder
from local_stack.stack import Stack
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.events_pb2 import GroupOffered
from upcycle.api.taskset.v1.taskset_pb2 import RUN_STATE_COMPLETED, OfferedTrajectory, Run, RunSpec
from upcycle.cli.tasksets import load_tasksets
from upcycle.platform import Platform
from upcycle.run_client import follow_run, is_over, submit_run
from upcycle.run_config.self_play import NO_PROPOSAL_REWARD, proposer_reward
from upcycle.wire import taskset_to_wire

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.study,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ALPHA: Final = 0.8
GROUP: Final = 4
PROMPTS: Final = 4
VICTIMS: Final = (
    "scenario_runner",
    "reward_grader",
    "trajectory_store",
    "rollout_sampler",
    "grpo_trainer",
    "scenario_runner",
)
READY_S: Final = 180.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform of its own: the test reads the planner's tables."""
    async with small_stack(tmp_path_factory.mktemp("self-play")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client, and the proposer's tasks are registered."""
    folder = REPOSITORY / ".upcycle" / "test_self_play_killed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "hidden.py").write_text(TASKS)
    async with Platform(addresses(stack)) as client:
        for taskset in load_tasksets(folder / "hidden.py").values():
            request = pb.RegisterTasksetRequest(taskset=taskset_to_wire(taskset))
            await client.tasksets.RegisterTaskset(request, timeout=60)
        yield client


def self_play() -> RunSpec:
    """A run that goes on until it is stopped."""
    spec = small_training(steps=500, gate=False)
    spec.training.checkpoint_every_steps = 500
    spec.taskset, spec.group_size = "hidden", GROUP
    spec.sampling.max_tokens_per_turn = 32
    spec.training.prompts_per_step, spec.training.max_staleness = PROMPTS, 1
    spec.training.self_play, spec.training.self_play_alpha = "hide:find", ALPHA
    spec.training.advantage = "hierarchical"
    return spec


@dataclass(frozen=True, slots=True)
class Proposal:
    """A row of the planner. num_groups: that played it; num_tried: their episodes; num_graded, num_solved: of
    those."""

    proposed_by: str
    state: str
    digest: str
    num_groups: int
    num_tried: int
    num_graded: int
    num_solved: int
    proposer_group: str


def proposals(stack: Stack, run_id: str) -> list[Proposal]:
    """All of a run, from its episodes and not from the planner's own counts."""
    asked = """
        SELECT t.proposed_by, t.state, t.digest, COUNT(DISTINCT e.group_id), COUNT(e.episode_id),
               COUNT(e.graded_at), COALESCE(SUM(e.success), 0), p.group_id
        FROM new_task t JOIN episode p ON p.episode_id = t.proposed_by
        LEFT JOIN episode e ON e.run_id = t.run_id AND e.new_task = t.number
        WHERE t.run_id = ? GROUP BY t.number ORDER BY t.number"""
    return [Proposal(*row) for row in planners(stack, asked, run_id)]  # type: ignore[arg-type]


def planners(stack: Stack, asked: str, *values: str) -> list[tuple[object, ...]]:
    """Rows of the planner's database."""
    file = sql_folder(stack.settings.data_dir.absolute()) / "scenario_runner.sqlite"
    with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30) as database:
        return list(database.execute(asked, values))


async def run_of(platform: Platform, run_id: str) -> Run:
    return (await platform.tasksets.GetRun(pb.GetRunRequest(run_id=run_id), timeout=10)).run


async def goes_on(platform: Platform, run_id: str) -> None:
    """Until another step was taken, and a proposal is being played."""
    before = await run_of(platform, run_id)

    async def is_so() -> bool:
        now = await run_of(platform, run_id)
        assert not is_over(now), now.failure
        return now.step > before.step and now.new_tasks.playing > 0

    await until(is_so, f"a step after {before.step}, and a proposal that is played", timeout_s=RUN_LIMIT_S)


def ordered_by(played: Sequence[Proposal]) -> list[str]:
    """The episodes whose answers were ordered as tasks."""
    return sorted(one.proposed_by for one in played)


def proposed(stack: Stack, run_id: str) -> list[str]:
    """The episodes whose answers are proposals."""
    asked = "SELECT episode_id FROM episode WHERE run_id = ? AND new_task IS NULL AND success"
    return sorted(str(one) for (one,) in planners(stack, asked, run_id))


@asynccontextmanager
async def facts(stack: Stack) -> AsyncIterator[EventBus]:
    """Reads them."""
    bus = EventBus(stack.bus, client_name="e2e")
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


async def offers_of(bus: EventBus, run_id: str) -> dict[str, Sequence[OfferedTrajectory]]:
    """By group, what was offered to the trainer. An offer that is announced again says the same."""
    found: dict[str, Sequence[OfferedTrajectory]] = {}
    for delivery in await bus.stored([GroupOffered], after_sequence=0, model=MODEL):
        offer: GroupOffered = delivery.message
        if offer.run_id == run_id:
            assert list(found.setdefault(offer.group_id, offer.members)) == list(offer.members)
    return found


def assert_paid(offers: dict[str, Sequence[OfferedTrajectory]], played: Sequence[Proposal]) -> None:
    """Each proposal by the share that solved it; of equal ones of a group, by the group of the first."""
    measured = {(one.proposer_group, one.digest): one for one in played if one.num_groups}
    key = {one.proposed_by: (one.proposer_group, one.digest) for one in played}
    for members in offers.values():
        for member in members:
            assert (member.episode_id in key) == member.success, member
            expected = NO_PROPOSAL_REWARD
            if member.success:
                by = measured[key[member.episode_id]]
                expected = proposer_reward(by.num_solved / by.num_graded, ALPHA)
            assert member.reward == pytest.approx(expected), member


async def test_self_play_survives_kill_9_and_each_proposal_is_played_and_paid_once(
    stack: Stack, platform: Platform
) -> None:
    run_id = (await submit_run(platform, self_play())).run_id
    for victim in VICTIMS:
        await goes_on(platform, run_id)
        await stack.kill(victim)
        await stack.wait_ready(victim, timeout_s=READY_S)
    await goes_on(platform, run_id)
    await platform.tasksets.StopRun(pb.StopRunRequest(run_id=run_id), timeout=10)
    done = await follow_run(platform, run_id, timeout_s=RUN_LIMIT_S)
    assert done.state == RUN_STATE_COMPLETED, done.failure
    assert done.step >= len(VICTIMS), "it trained between the kills"

    kept = await balanced(platform, run_id)
    assert_conserved(kept)
    assert kept.requested == done.counts.requested
    async with facts(stack) as bus:
        steps, offers = await steps_of(bus, run_id), await offers_of(bus, run_id)
    trained = [one for step in steps.values() for one in step.trajectory_ids]
    assert sorted(steps) == list(range(1, done.step + 1))
    assert kept.by_state["trained"] == len(trained) == len(set(trained)), "each trained once"

    played = proposals(stack, run_id)
    assert ordered_by(played) == proposed(stack, run_id), "each was ordered once"
    assert {one.num_groups for one in played} <= {0, 1}, "no second group plays one"
    measured = [one for one in played if one.state == "retired"]
    assert measured
    assert {one.num_groups for one in measured} == {1}
    assert offers
    assert_paid(offers, played)
