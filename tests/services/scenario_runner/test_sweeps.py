"""The sweep: what goes wrong with one run, or is slow, is no other run's concern."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.services.scenario_runner.planning import RULES
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, train_spec

from episodes import Purpose
from scenario_runner.domain.peer_facts import GraderFact
from scenario_runner.loops import SweepLoop
from upcycle.errors import Unavailable


class Others:
    """The bus, ledger and trainer: about training runs they are asked in vain."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def is_idle(self, purpose: Purpose, model: str) -> bool:
        if purpose is Purpose.TRAIN:
            await self.answer()
        return False

    async def at_grader(self, run_id: str) -> GraderFact:
        return GraderFact()


@pytest.fixture
async def evaluation(sources: SourcesHarness) -> str:
    """Beside a training run, an evaluation whose episodes were opened too long ago."""
    await sources.plan(await sources.submit(train_spec()))
    run_id = await sources.submit(eval_spec())
    await sources.plan(run_id)
    opened = [row.episode_id for row in await sources.episodes(run_id)]
    await sources.planner.do(lambda unit: unit.note_opened(opened))
    sources.planner.now += timedelta(seconds=eval_spec().episode_deadline_s + 1)
    return run_id


def sweeps(sources: SourcesHarness, answer: Any) -> SweepLoop:
    others: Any = Others(answer)
    return SweepLoop(sources.planner.plan, others, others, RULES, now=lambda: sources.planner.now)


async def is_swept(sources: SourcesHarness, run_id: str) -> bool:
    """Its episodes timed out and are played again."""
    return all(row.attempt == 1 for row in await sources.episodes(run_id))


async def test_a_bug_in_one_run_leaves_no_other_unswept(sources: SourcesHarness, evaluation: str) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await sweeps(sources, broken)._sweep_all()
    assert await is_swept(sources, evaluation)


async def test_a_run_that_waits_for_an_answer_holds_up_no_other(
    sources: SourcesHarness, evaluation: str
) -> None:
    is_asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        is_asked.set()
        await go_on.wait()

    sweeping = asyncio.create_task(sweeps(sources, slow)._sweep_all())
    await is_asked.wait()
    while not await is_swept(sources, evaluation):
        await asyncio.sleep(0)
    assert not sweeping.done()
    go_on.set()
    await sweeping
