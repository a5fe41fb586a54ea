"""Evaluations that train, on real processes: a finished one as the first batches of a run, running ones that
feed a standing run through kill -9, and sources that are refused by name."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest
import pytest_asyncio
from tests.e2e.feeding import (
    GROUP,
    HELD,
    NUM_TASKS,
    PROMPTS,
    RUN_LIMIT_S,
    TASKS,
    evaluated,
    final_checkpoint,
    ledger,
    most_mixed,
    refused,
    register,
    report,
    step_at_least,
    steps_of,
    trainable,
    trained,
    training_on,
)
from tests.e2e.test_loop import assert_conserved, balanced
from tests.platform_recipes import (
    EXAMPLE,
    HELD_OUT_TASKSET,
    MODEL,
    TRAIN_TASKSET,
    addresses,
    evaluation,
    small_stack,
)
from tests.support.waiting import until

from event_bus import EventBus
from local_stack.stack import Stack
from upcycle.api.common.v1.common_pb2 import SPLIT_HELD_OUT
from upcycle.api.registry.v1.service_pb2 import ForkModelRequest
from upcycle.api.taskset.v1 import service_pb2 as pb
from upcycle.api.taskset.v1.taskset_pb2 import EPISODE_STATUS_GRADED, RUN_STATE_COMPLETED, Run
from upcycle.cli.tasksets import load_tasksets
from upcycle.platform import Platform
from upcycle.run_client import follow_run, submit_run
from upcycle.tasks import Task, Taskset

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow, pytest.mark.timeout(400)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A platform of its own: head is the base, and no other run trains the model."""
    async with small_stack(tmp_path_factory.mktemp("sources")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def platform(stack: Stack) -> AsyncIterator[Platform]:
    """A client; the incident tasksets, and slices of them that are played in seconds, are registered."""
    whole = load_tasksets(EXAMPLE / "tasks.py")
    async with Platform(addresses(stack)) as client:
        for taskset in whole.values():
            await register(client, taskset)
        await register(client, Taskset(TASKS, whole[TRAIN_TASKSET].tasks[:NUM_TASKS], "train"))
        await register(client, Taskset(HELD, whole[HELD_OUT_TASKSET].tasks[:2], "held_out"))
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bus(stack: Stack) -> AsyncIterator[EventBus]:
    """Reads the facts."""
    started = EventBus(stack.bus, client_name="e2e")
    await started.start()
    yield started
    await started.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def measured(platform: Platform) -> Run:
    """A finished evaluation of head on the train-split tasks, in groups of eight."""
    return await evaluated(platform, TASKS, group=GROUP)


async def assert_no_sampling_until(platform: Platform, bus: EventBus, run_id: str, source: str) -> None:
    """At the moment of the first step: nothing was requested, and the step is whole groups of the source."""
    await until(lambda: _has_step(bus, run_id), "the first step", timeout_s=RUN_LIMIT_S)
    assert (await ledger(platform, run_id)).requested == 0
    step = (await steps_of(bus, run_id))[1]
    assert len(step.trajectory_ids) == PROMPTS * GROUP

    async def is_in_the_ledger() -> bool:
        return (await ledger(platform, source)).by_state["trained"] >= PROMPTS * GROUP

    await until(is_in_the_ledger, "the ledger to have the first step", timeout_s=60.0)
    rows = [one for one in await trained(platform, source) if one.ledger.step == 1]
    assert {one.episode.trajectory_id for one in rows} == set(step.trajectory_ids)
    assert {one.ledger.trained_by_run for one in rows} == {run_id}
    assert set(Counter(one.episode.group_id for one in rows).values()) == {GROUP}


async def _has_step(bus: EventBus, run_id: str) -> bool:
    return bool(await steps_of(bus, run_id))


async def test_a_finished_evaluation_is_the_first_batches_of_a_run(
    platform: Platform, bus: EventBus, measured: Run
) -> None:
    source, steps = measured.run_id, 2
    before = await report(platform, source)
    run = await submit_run(platform, training_on(source, steps=steps))
    await assert_no_sampling_until(platform, bus, run.run_id, source)
    done = await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)
    assert (done.state, done.step) == (RUN_STATE_COMPLETED, steps), done.failure

    groups = steps * PROMPTS

    async def is_settled() -> bool:
        return (await ledger(platform, source)).by_state["trained"] == groups * GROUP

    await until(is_settled, "the ledger to have the last step", timeout_s=60.0)
    reported = await balanced(platform, source)
    assert_conserved(reported)
    assert dict(reported.by_state) == {"trained": groups * GROUP, "evaluated": (NUM_TASKS - groups) * GROUP}
    own = await balanced(platform, run.run_id)
    assert (own.requested, own.conflicts, own.trained_twice) == (0, 0, 0)

    after = await report(platform, source)
    assert after.run.counts == before.run.counts
    assert (after.run.success_rate, after.run.reward_mean) == (
        before.run.success_rate,
        before.run.reward_mean,
    )
    assert list(after.results) == list(before.results)
    (drawn,) = done.sources
    assert (drawn.run_id, drawn.groups, drawn.trained, drawn.offered) == (source, NUM_TASKS, groups, 0)
    assert dict((await final_checkpoint(platform, run.run_id, steps)).sources) == {source: groups}


async def test_sources_that_may_not_train_are_refused_by_name(platform: Platform, measured: Run) -> None:
    unknown = await refused(platform, training_on("run-ffffffffffff", steps=1))
    assert "run-ffffffffffff" in unknown
    assert "does not exist" in unknown

    fork = f"{MODEL}-fork"
    await platform.registry.ForkModel(ForkModelRequest(source_model=MODEL, model=fork), timeout=60)
    other = training_on(measured.run_id, steps=1)
    other.policy.model = fork
    text = await refused(platform, other)
    assert measured.run_id in text
    assert repr(MODEL) in text
    assert repr(fork) in text

    held = await evaluated(platform, HELD, group=2)
    text = await refused(platform, training_on(held.run_id, steps=1))
    assert held.run_id in text
    assert "held out" in text


async def test_a_source_that_still_runs_or_is_no_evaluation_is_refused_by_name(
    platform: Platform, measured: Run
) -> None:
    # So many episodes that it cannot be over by the time it is named.
    running = await submit_run(platform, evaluation(taskset=TRAIN_TASKSET, group=GROUP))
    text = await refused(platform, training_on(running.run_id, steps=1))
    await platform.tasksets.CancelRun(pb.CancelRunRequest(run_id=running.run_id), timeout=10)
    assert running.run_id in text
    assert "not finished" in text

    trains = await submit_run(platform, training_on(measured.run_id, steps=1, prompts=1))
    done = await follow_run(platform, trains.run_id, timeout_s=RUN_LIMIT_S)
    assert done.state == RUN_STATE_COMPLETED, done.failure
    text = await refused(platform, training_on(trains.run_id, steps=1))
    assert trains.run_id in text
    assert "training run" in text


async def test_an_evaluation_that_is_trained_whole_is_refused_and_names_who_trained_it(
    platform: Platform, measured: Run
) -> None:
    chosen = most_mixed(await report(platform, measured.run_id), 2)
    tasks: Mapping[str, Task] = {
        task.slug: task for task in load_tasksets(EXAMPLE / "tasks.py")[TRAIN_TASKSET]
    }
    name = "sources-mixed"
    await register(platform, Taskset(name, [tasks[slug] for slug in chosen], "train"))
    source = (await evaluated(platform, name, group=16)).run_id
    spec = training_on(source, steps=1, prompts=2, taskset=name)
    spec.no_sampling = True
    run = await submit_run(platform, spec)
    done = await follow_run(platform, run.run_id, timeout_s=RUN_LIMIT_S)
    assert (done.state, done.step) == (RUN_STATE_COMPLETED, 1), done.failure
    text = await refused(platform, spec)
    assert source in text
    assert f"already trained by {run.run_id}" in text


async def test_trainable_evaluations_of_held_out_tasks_or_of_groups_of_one_are_refused(
    platform: Platform,
) -> None:
    held = evaluation(taskset=HELD, group=2)
    held.trainable = True
    assert "held out" in await refused(platform, held)
    single = trainable(1)
    single.group_size = 1
    assert "group_size" in await refused(platform, single)


async def evaluate_as_client(stack: Stack, seed: int) -> Run:
    """One of several clients: its own connection, from the submission to the end of its evaluation."""
    async with Platform(addresses(stack)) as client:
        run = await submit_run(client, trainable(seed))
        return await follow_run(client, run.run_id, timeout_s=RUN_LIMIT_S)


async def goes_on(platform: Platform, clients: Sequence[asyncio.Task[Run]]) -> None:
    """Wait until another episode was graded, unless the evaluations are over."""

    async def count() -> int:
        by_state = (await ledger(platform, "")).by_state
        return by_state["evaluated"] + by_state["trained"]

    before = await count()

    async def is_further() -> bool:
        return all(client.done() for client in clients) or await count() > before

    await until(is_further, "an episode that is graded after the kill", timeout_s=60.0)


async def fed_through_kills(stack: Stack, platform: Platform, run_id: str) -> Sequence[Run]:
    """Three clients evaluate at once while trainer, planner and sampler are killed; their finished runs."""
    clients = [asyncio.create_task(evaluate_as_client(stack, seed)) for seed in (11, 12, 13)]
    try:
        await step_at_least(platform, run_id, 1)
        assert not all(client.done() for client in clients), "nothing is left to be disturbed"
        for victim in ("grpo_trainer", "scenario_runner", "rollout_sampler"):
            await stack.kill(victim)
            await stack.wait_ready(victim, timeout_s=180)  # a busy machine takes long to import torch
            await goes_on(platform, clients)
        return await asyncio.gather(*clients)
    finally:
        for client in clients:
            client.cancel()


async def assert_own_report(platform: Platform, run: Run) -> None:
    """An evaluation tells what it measured, whatever was trained on it."""
    assert run.state == RUN_STATE_COMPLETED, run.failure
    reported = await report(platform, run.run_id)
    graded = [result for result in reported.results if result.status == EPISODE_STATUS_GRADED]
    assert reported.run.counts.by_state["evaluated"] == len(graded) > 0
    assert not reported.run.counts.by_state["trained"]
    rate = sum(result.success for result in graded) / len(graded)
    assert reported.run.success_rate == pytest.approx(rate)
    assert len({result.task_slug for result in graded}) == NUM_TASKS


async def test_a_standing_run_is_fed_by_three_clients_through_kill_9(
    stack: Stack, platform: Platform, bus: EventBus
) -> None:
    spec = training_on(steps=0)
    spec.no_sampling = True
    run_id = (await submit_run(platform, spec)).run_id
    held = await evaluated(platform, HELD, group=GROUP)
    evaluations = await fed_through_kills(stack, platform, run_id)
    await step_at_least(platform, run_id, 3)
    await platform.tasksets.StopRun(pb.StopRunRequest(run_id=run_id, reason="enough"), timeout=10)
    done = await follow_run(platform, run_id, timeout_s=RUN_LIMIT_S)
    assert (done.state, done.failure) == (RUN_STATE_COMPLETED, "")

    steps = await steps_of(bus, run_id)
    claimed = [trajectory_id for step in steps.values() for trajectory_id in step.trajectory_ids]
    assert sorted(steps) == list(range(1, done.step + 1))
    assert len(claimed) == len(set(claimed)) == done.step * PROMPTS * GROUP

    async def is_in_the_ledger() -> bool:
        rows = [await trained(platform, one.run_id) for one in evaluations]
        return sum(map(len, rows)) == len(claimed)

    await until(is_in_the_ledger, "the ledger to have every step", timeout_s=60.0)
    for one in evaluations:
        assert_conserved(await balanced(platform, one.run_id))
        await assert_own_report(platform, one)
    await assert_platform_is_clean(platform, run_id, held.run_id)
    sources = dict((await final_checkpoint(platform, run_id, done.step)).sources)
    assert sources == {one.run_id: one.trained for one in done.sources if one.trained}
    assert sum(sources.values()) == done.step * PROMPTS
    assert not any(one.offered for one in done.sources)


async def assert_platform_is_clean(platform: Platform, run_id: str, held_run_id: str) -> None:
    """The standing run sampled nothing, nothing trained twice anywhere, and no held-out task trained."""
    assert (await ledger(platform, run_id)).requested == 0
    whole = await ledger(platform, "")
    assert (whole.conflicts, whole.trained_twice) == (0, 0)
    assert {one.episode.split for one in await trained(platform)}.isdisjoint({SPLIT_HELD_OUT})
    held = await balanced(platform, held_run_id)
    assert held.by_state["evaluated"] == 2 * GROUP
    assert not held.by_state["trained"]
