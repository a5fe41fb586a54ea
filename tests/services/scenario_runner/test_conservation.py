"""Whatever happens to a run, in whatever order, conservation holds and it can be brought to its end."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.services.scenario_runner.planning import (
    PlannerHarness,
    check_conservation,
    eval_spec,
    open_database,
    train_spec,
)

from episodes import Purpose
from scenario_runner.domain.facts import Advanced, Fact, Failed
from scenario_runner.domain.runs import EpisodeState, RunState

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
    planner = PlannerHarness(await open_database(f"sqlite:///{folder / 'plan.sqlite'}"))
    try:
        await planner.begin(train_spec(steps=5) if purpose is Purpose.TRAIN else eval_spec(), num_tasks=4)
        for action, pick in actions:
            await _act(planner, action, pick)
            await check_conservation(planner)
        await _drain(planner)
    finally:
        await planner.database.stop()


async def _act(planner: PlannerHarness, action: str, pick: int) -> None:
    if action == "plan":
        await planner.plan_all()
        waiting = [row for row in await planner.episodes() if row.is_unsettled]
        assert waiting or (await planner.run()).state is not RunState.RUNNING
    elif action == "time_out":
        await _time_out(planner)
    elif action == "tick":
        planner.now += timedelta(seconds=pick % 200)
    elif action == "sweep":
        await planner.sweep(queue_is_idle=bool(pick % 2))
    elif action in LIFE:
        await _steer(planner, action)
    elif action == "stray":
        unknown = Failed("x-e000-a0", "run-other", "engine_error", "")
        await planner.apply(planner.graded(f"{planner.run_id}-g99999-e000-a0"), unknown)
    else:
        await _act_on_an_episode(planner, action, pick)


async def _time_out(planner: PlannerHarness) -> None:
    """Everything that was dispatched is opened, and hangs."""
    waiting = [row.episode_id for row in await planner.episodes() if row.state is EpisodeState.PLANNED]
    await planner.do(lambda unit: unit.note_opened(waiting))
    planner.now += timedelta(seconds=121)
    await planner.sweep()


async def _steer(planner: PlannerHarness, action: str) -> None:
    if action in ("pause", "resume"):
        await {"pause": planner.pause, "resume": planner.resume}[action]()
    elif action in ("give_up", "fall_silent"):
        await planner.give_up(is_delivered=action == "give_up")
    elif (await planner.run()).spec.purpose is Purpose.TRAIN:
        await planner.stop(is_delivered=action == "stop")


async def _act_on_an_episode(planner: PlannerHarness, action: str, pick: int) -> None:
    episodes = await planner.episodes()
    if action in ("settle", "exclude"):
        graded = [row for row in episodes if row.state is EpisodeState.GRADED]
        if graded:
            group = graded[pick % len(graded)].group_id
            members = [row.episode_id for row in graded if row.group_id == group]
            await planner.apply(
                planner.settled(group, members, "trained" if action == "settle" else "excluded")
            )
            await planner.apply(Advanced(planner.run_id, pick % 3, pick % 3))
        return
    candidates = [row for row in episodes if action == "late" or row.state is EpisodeState.PLANNED]
    if not candidates:
        return
    chosen = candidates[pick % len(candidates)].episode_id
    if action == "open":
        await planner.do(lambda unit: unit.note_opened([chosen]))
        return
    facts: list[Fact] = [planner.graded(chosen, 0.5), planner.failed(chosen)]
    wanted = {"grade": facts[:1], "fail": facts[1:], "late": facts if pick % 2 else facts[::-1]}
    await planner.apply(*wanted[action])


async def _drain(planner: PlannerHarness) -> None:
    """From wherever it is, the run can be brought to its end."""
    await planner.resume()
    if (await planner.run()).spec.purpose is Purpose.TRAIN:
        await planner.apply(Advanced(planner.run_id, 5, 5))
        planner.now += timedelta(seconds=60)
        await planner.sweep()
    for _ in range(100):
        run = await planner.run()
        if run.state not in (RunState.RUNNING, RunState.DRAINING):
            break
        await planner.plan_all()
        waiting = [row.episode_id for row in await planner.episodes() if row.is_unsettled]
        await planner.apply(*(planner.graded(episode_id) for episode_id in waiting))
        await planner.sweep()
    await check_conservation(planner)
    assert (await planner.run()).state in (RunState.COMPLETED, RunState.FAILED)
