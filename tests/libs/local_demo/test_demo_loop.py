"""The demo's evaluations and its training run, as the planner is asked for them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.libs.upcycle_cli.planner import Planner, evaluation, serving, training

from local_demo.head_watch import WatchedHead
from local_demo.loop import Demo, RunDidNotComplete
from local_demo.plan import (
    FIRST_TASKSET,
    PRACTICE_TASKSET,
    TRAIN_TASKSET,
    DemoPlan,
    find_repository,
    load_recipe,
)
from local_stack.supervisor import AlreadyRunning, lock_folder
from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.registry.v1.events_pb2 import CheckpointPromoted, CheckpointRolledBack
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.platform import Platform
from upcycle.task_documents import tasksets_in
from upcycle.tasks import Taskset


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[tuple[Demo, Planner]]:
    """A demo whose platform is a planner, at which every run is complete at once."""
    repository = find_repository(Path(__file__).parent)
    recipe = load_recipe(repository)
    plan = DemoPlan("embedded", tmp_path, repository, seed=7, stay=False, recipe=recipe)
    planner = Planner()  # type: ignore[abstract]
    planner.watched = [training("run-new", state=ts.RUN_STATE_COMPLETED)]
    async with serving(planner) as addresses, Platform(addresses) as platform:
        found = Demo(plan, Console(quiet=True))
        found.platform = platform
        yield found, planner


def test_the_example_is_found_from_a_folder_outside_the_checkout(tmp_path: Path) -> None:
    assert find_repository(tmp_path) == Path(__file__).parents[3]


async def test_a_second_demo_in_the_folder_leaves_the_files_of_the_first(
    demo: tuple[Demo, Planner], tmp_path: Path
) -> None:
    with lock_folder(tmp_path):
        (tmp_path / "report.json").write_text("{}")
        with pytest.raises(AlreadyRunning, match=str(tmp_path)):
            await demo[0].__aenter__()
    assert (tmp_path / "report.json").exists()


async def test_an_evaluation_is_the_first_batch_and_another_feeds_the_run(demo: tuple[Demo, Planner]) -> None:
    running, planner = demo
    running.state.step = 1
    await running._first_batch()
    await running._train_beside_a_user(evaluation("run-first"))
    first, *others = (request.spec for request in planner.submitted)
    assert (first.taskset, first.group_size, first.trainable) == (FIRST_TASKSET, 8, False)
    assert first.policy.channel == common.CHANNEL_HEAD
    (run,) = [spec for spec in others if spec.purpose == common.PURPOSE_TRAIN]
    (beside,) = [spec for spec in others if spec.purpose == common.PURPOSE_EVAL]
    assert (run.taskset, list(run.source_runs), run.no_sampling) == (PRACTICE_TASKSET, ["run-first"], False)
    asked = (run.training.steps, run.training.prompts_per_step, run.training.max_staleness, run.group_size)
    assert asked == (14, 24, 1, 8)
    assert (beside.taskset, beside.trainable, beside.group_size) == (PRACTICE_TASKSET, True, 8)
    assert beside.policy.channel == common.CHANNEL_LATEST
    assert {spec.sampling.seed for spec in (first, run, beside)} == {7}


async def test_the_line_of_the_readme_submits_the_demos_run_but_for_sources_seeds_and_revision(
    demo: tuple[Demo, Planner],
) -> None:
    running, planner = demo
    await running._train("run-first")
    peers = running.platform.addresses.peers
    environment = os.environ | {f"UPCYCLE_PEERS_{peer.upper()}": address for peer, address in peers.items()}
    line = "train --config examples/incident/demo.toml --detach"
    child = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "upcycle", *line.split(), env=environment, cwd=running.plan.repository
    )
    async with asyncio.timeout(100):
        assert await child.wait() == 0
    demos, typed = (request.spec for request in planner.submitted)
    assert (list(demos.source_runs), demos.training.seed, demos.sampling.seed) == (["run-first"], 7, 7)
    assert typed.taskset == f"{PRACTICE_TASKSET}@3"
    typed.taskset, typed.training.seed, typed.sampling.seed = PRACTICE_TASKSET, 7, 7
    del demos.source_runs[:]
    assert typed == demos


async def test_the_user_waits_for_the_first_step_and_leaves_with_a_run_that_failed(
    demo: tuple[Demo, Planner],
) -> None:
    running, planner = demo
    planner.watched = [training("run-new", state=ts.RUN_STATE_FAILED, failure="diverged")]
    with pytest.raises(RunDidNotComplete, match="diverged"):
        await running._train_beside_a_user(evaluation("run-first"))
    assert [request.spec.purpose for request in planner.submitted] == [common.PURPOSE_TRAIN]
    assert "demo-user" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_run_that_ended_early_for_a_reason_is_complete(demo: tuple[Demo, Planner]) -> None:
    running, planner = demo
    early = training("run-new", state=ts.RUN_STATE_COMPLETED, failure="ended at step 1: the sources are used")
    planner.watched = [early]
    assert await running._finish(early, 10) == early


def test_what_the_demo_practises_on_are_train_tasks(demo: tuple[Demo, Planner]) -> None:
    found = tasksets_in(Taskset, demo[0].plan.tasks_file)
    digests = {
        name: {task.digest for task in found[name]}
        for name in (TRAIN_TASKSET, PRACTICE_TASKSET, FIRST_TASKSET)
    }
    assert digests[FIRST_TASKSET] < digests[PRACTICE_TASKSET] < digests[TRAIN_TASKSET]
    assert {found[name].split for name in digests} == {"train"}
    recipe = demo[0].plan.recipe
    # A first batch, though some have no spread.
    assert len(digests[FIRST_TASKSET]) > recipe.training.prompts_per_step


async def test_the_demo_waits_until_the_watch_of_its_last_head_is_over(demo: tuple[Demo, Planner]) -> None:
    running, planner = demo
    await running._head_watched()  # nothing was promoted, so nothing is watched
    running.state.promotions += [CheckpointPromoted(version=7), CheckpointPromoted(version=14)]
    planner.runs = [watch("a", 14), watch("b", 7), watch("c", 7)]
    waiting = asyncio.create_task(running._head_watched())
    await asyncio.sleep(2.5)
    assert not waiting.done()
    planner.runs.append(watch("d", 14))
    await asyncio.wait_for(waiting, 30)
    assert running._watched(planner.runs) == WatchedHead(14, 100)


async def test_a_head_that_went_back_is_watched_no_more(demo: tuple[Demo, Planner]) -> None:
    running, planner = demo
    planner.runs = [watch("a", 7)]
    running.state.promotions.append(CheckpointPromoted(version=7))
    running.state.rollbacks.append(CheckpointRolledBack(version=0, reason="v7 did worse"))
    await asyncio.wait_for(running._head_watched(), 30)
    assert running._watched(planner.runs) == WatchedHead(7, 50, "v7 did worse")


def watch(run_id: str, version: int) -> ts.Run:
    """A run of 50 pairs that is complete."""
    run = evaluation(run_id)
    run.spec.label = f"watch incident@v{version} against v{version - 7}"
    run.counts.settled = 100
    return run
