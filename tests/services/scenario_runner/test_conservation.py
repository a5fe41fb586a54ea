"""Whatever happens to a run, in whatever order, conservation holds and it can be brought to its end."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.scenario_runner.planning_world import (
    World,
    check_conservation,
    eval_spec,
    open_database,
    train_spec,
)

from scenario_runner.domain.facts import Advanced, Fact, Failed
from scenario_runner.domain.runs import EpisodeState, RunState
from upcycle.run_config import Purpose

LIFE = ("pause", "resume", "pause", "resume", "stop", "halt", "give_up", "fall_silent")
SLOW = ("tick", "open", "time_out", "time_out", "time_out")
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["grade", "fail", "settle", "exclude", "plan", "sweep", "late", *SLOW, "stray", *LIFE]
        ),
        st.integers(0, 10_000),
    ),
    max_size=40,
)


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.EVAL])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_conservation_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, purpose: Purpose, actions: list[tuple[str, int]]
) -> None:
    asyncio.run(_play(tmp_path_factory.mktemp("plan"), purpose, actions))


async def _play(folder: Path, purpose: Purpose, actions: list[tuple[str, int]]) -> None:
    world = World(await open_database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        await world.begin(train_spec(steps=5) if purpose is Purpose.TRAIN else eval_spec(), num_tasks=4)
        for action, pick in actions:
            await _act(world, action, pick)
            await check_conservation(world)
        await _drain(world)
    finally:
        await world.database.stop()


async def _act(world: World, action: str, pick: int) -> None:
    if action == "plan":
        await world.plan_all()
        waiting = [row for row in await world.episodes() if row.is_unsettled]
        assert waiting or (await world.run()).state is not RunState.RUNNING
    elif action == "time_out":
        await _time_out(world)
    elif action == "tick":
        world.now += timedelta(seconds=pick % 200)
    elif action == "sweep":
        await world.sweep(queue_is_idle=bool(pick % 2))
    elif action in LIFE:
        await _steer(world, action)
    elif action == "stray":
        unknown = Failed("x-e000-a0", "run-other", "engine_error", "")
        await world.hear(world.graded(f"{world.run_id}-g99999-e000-a0"), unknown)
    else:
        await _act_on_an_episode(world, action, pick)


async def _time_out(world: World) -> None:
    """Everything that was dispatched is opened, and hangs."""
    waiting = [row.episode_id for row in await world.episodes() if row.state is EpisodeState.PLANNED]
    await world.do(lambda unit: unit.note_opened(waiting))
    world.now += timedelta(seconds=121)
    await world.sweep()


async def _steer(world: World, action: str) -> None:
    if action in ("pause", "resume"):
        await {"pause": world.pause, "resume": world.resume}[action]()
    elif action in ("give_up", "fall_silent"):
        await world.give_up(heard=action == "give_up")
    elif (await world.run()).spec.purpose is Purpose.TRAIN:
        await world.stop(heard=action == "stop")


async def _act_on_an_episode(world: World, action: str, pick: int) -> None:
    episodes = await world.episodes()
    if action in ("settle", "exclude"):
        graded = [row for row in episodes if row.state is EpisodeState.GRADED]
        if graded:
            group = graded[pick % len(graded)].group_id
            members = [row.episode_id for row in graded if row.group_id == group]
            await world.hear(world.settled(group, members, "trained" if action == "settle" else "excluded"))
            await world.hear(Advanced(world.run_id, pick % 3, pick % 3))
        return
    candidates = [row for row in episodes if action == "late" or row.state is EpisodeState.PLANNED]
    if not candidates:
        return
    chosen = candidates[pick % len(candidates)].episode_id
    if action == "open":
        await world.do(lambda unit: unit.note_opened([chosen]))
        return
    facts: list[Fact] = [world.graded(chosen, 0.5), world.failed(chosen)]
    wanted = {"grade": facts[:1], "fail": facts[1:], "late": facts if pick % 2 else facts[::-1]}
    await world.hear(*wanted[action])


async def _drain(world: World) -> None:
    """From wherever it is, the run can be brought to its end."""
    await world.resume()
    if (await world.run()).spec.purpose is Purpose.TRAIN:
        await world.hear(Advanced(world.run_id, 5, 5))
        world.now += timedelta(seconds=60)
        await world.sweep()
    for _ in range(100):
        run = await world.run()
        if run.state not in (RunState.RUNNING, RunState.DRAINING):
            break
        await world.plan_all()
        waiting = [row.episode_id for row in await world.episodes() if row.is_unsettled]
        await world.hear(*(world.graded(episode_id) for episode_id in waiting))
        await world.sweep()
    await check_conservation(world)
    assert (await world.run()).state in (RunState.COMPLETED, RunState.FAILED)
