"""The sweep: what goes wrong with one run, or is slow, is no other run's concern."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.services.scenario_runner.planning import RULES
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, train_spec

from episodes import Purpose
from event_bus import Decision
from identities import events as event_ids
from scenario_runner import loops
from scenario_runner.adapters.bus_outcomes import BusOutcomes
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.peer_facts import GraderFact, SessionFact
from scenario_runner.domain.runs import EpisodeRow, EpisodeState
from scenario_runner.loops import PlannerLoop, SweepLoop
from scenario_runner.usecases.ending import stop_early
from scenario_runner.usecases.overdue import MARGIN_S
from scenario_runner.usecases.planning import PlanRules, plan_more
from scenario_runner.usecases.views import find_run
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.errors import Unavailable


class Others:
    """The bus, ledger and trainer: about training runs they are asked in vain. stands: what was decided."""

    def __init__(self, answer: Any = None, ledger: GraderFact | None = GraderFact()) -> None:  # noqa: B008
        self.answer, self.ledger = answer, ledger
        self.stands: dict[str, Message] = {}

    async def none_queued_before(self, purpose: Purpose, model: str) -> datetime | None:
        if purpose is Purpose.TRAIN:
            await self.answer()
        return None

    async def at_grader(self, run_id: str, episode_ids: Sequence[str] = ()) -> GraderFact | None:
        return self.ledger

    async def session(self, run_id: str) -> SessionFact | None:
        """No trainer answers."""

    async def decide(self, decisions: Sequence[Decision]) -> list[Message | None]:
        """As EventBus: all, or none where something stands about one."""
        if not any(one.event_id in self.stands for one in decisions):
            self.stands |= {one.event_id: one.event for one in decisions}
        return [self.stands.get(one.event_id) for one in decisions]


@pytest.fixture
async def evaluation(sources: SourcesHarness) -> str:
    """Beside a training run, an evaluation whose episodes were opened too long ago."""
    await sources.plan(await sources.submit(train_spec()))
    run_id = await open_evaluation(sources)
    for _ in range(int(eval_spec().episode_deadline_s + MARGIN_S)):
        await sources.planner.do(lambda unit: unit.watched.note_look())
        sources.planner.now += timedelta(seconds=1)
    sources.planner.now += timedelta(seconds=1)
    return run_id


async def open_evaluation(sources: SourcesHarness) -> str:
    """An evaluation whose episodes are open."""
    run_id = await sources.submit(eval_spec())
    await sources.plan(run_id)
    opened = [row.episode_id for row in await sources.episodes(run_id)]
    await sources.planner.do(lambda unit: unit.note_opened(opened))
    return run_id


def sweeps(sources: SourcesHarness, answer: Any) -> SweepLoop:
    return swept_by(sources, Others(answer))


def swept_by(sources: SourcesHarness, others: Any) -> SweepLoop:
    planner = sources.planner
    return SweepLoop(planner.plan, others, others, BusOutcomes(others), RULES, now=lambda: planner.now)


async def first_attempts(sources: SourcesHarness, run_id: str) -> list[EpisodeRow]:
    def read(unit: PlanUnit) -> list[EpisodeRow]:
        groups = sorted({row.group_id for row in unit.results(run_id)})
        return [row for group_id in groups for row in unit.members(group_id) if row.attempt == 0]

    return await sources.planner.do(read)


async def is_swept(sources: SourcesHarness, run_id: str) -> bool:
    """Its episodes timed out and are played again."""
    return all(row.attempt == 1 for row in await sources.episodes(run_id))


async def test_a_bug_in_one_run_leaves_no_other_unswept(sources: SourcesHarness, evaluation: str) -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(Unavailable, match="ZeroDivisionError"):
        await sweeps(sources, broken)._sweep_all()
    assert await is_swept(sources, evaluation)


async def test_nothing_is_decided_without_an_answer_about_which_episodes_were_played(
    sources: SourcesHarness, evaluation: str
) -> None:
    async def unasked() -> None:
        pass

    silent = swept_by(sources, Others(unasked, ledger=None))
    await silent._sweep_all()
    assert not await is_swept(sources, evaluation)
    deadline_s = eval_spec().episode_deadline_s
    for _ in range(0, 10 * deadline_s + 1, 15):
        sources.planner.now += timedelta(seconds=15)
        await silent._sweep_all()
    assert await is_swept(sources, evaluation), "the wait for an answer has a deadline"


async def looks(sources: SourcesHarness, seconds: float) -> None:
    """Every ten seconds, for so long, by a planner that has just started."""
    loop = swept_by(sources, Others(nothing))
    for _ in range(int(seconds / 10)):
        await loop._sweep_all()
        sources.planner.now += timedelta(seconds=10)
    await loop._sweep_all()


async def nothing() -> None:
    pass


async def test_what_was_open_while_the_platform_stood_still_has_its_time_again(
    sources: SourcesHarness,
) -> None:
    run_id = await open_evaluation(sources)
    await looks(sources, 20)
    sources.planner.now += timedelta(hours=8)
    await looks(sources, eval_spec().episode_deadline_s)
    assert all(row.attempt == 0 for row in await sources.episodes(run_id)), "within its time after the start"
    await looks(sources, MARGIN_S + 10)
    assert await is_swept(sources, run_id)
    first = await first_attempts(sources, run_id)
    most_s = eval_spec().episode_deadline_s + MARGIN_S
    assert {row.environment_s for row in first} == {most_s}, "it was not alive for eight hours"


async def test_a_planner_that_restarts_again_and_again_still_ends_what_hangs(sources: SourcesHarness) -> None:
    run_id = await open_evaluation(sources)
    for _ in range(5):
        await looks(sources, eval_spec().episode_deadline_s / 5)
        sources.planner.now += timedelta(seconds=14)
    assert await is_swept(sources, run_id)


async def test_a_planner_whose_clock_is_ahead_keeps_no_other_from_ending_what_hangs(
    sources: SourcesHarness,
) -> None:
    run_id = await open_evaluation(sources)
    for _ in range(0, eval_spec().episode_deadline_s + 20, 5):
        sources.planner.now += timedelta(hours=1)
        await sources.planner.do(lambda unit: unit.watched.note_look())
        sources.planner.now -= timedelta(hours=1, seconds=-5)
        await looks(sources, 0)
    assert await is_swept(sources, run_id)


async def test_the_grace_of_an_ending_run_begins_again_too(sources: SourcesHarness) -> None:
    run_id = await sources.submit(train_spec())
    await sources.plan(run_id)
    await looks(sources, 0)
    await sources.change(run_id, lambda unit, run: stop_early(unit, run, "enough"))
    given_up = f"run.stopping/{run_id}/final"
    sources.planner.now += timedelta(hours=8)
    await looks(sources, RULES.stop_grace_s)
    assert given_up not in await sources.planner.announced()
    await looks(sources, 10)
    assert given_up in await sources.planner.announced()


async def test_a_bug_in_one_run_leaves_no_other_unplanned(
    sources: SourcesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await sources.submit(eval_spec()), await sources.submit(eval_spec())
    planner = PlannerLoop(sources.planner.plan, RULES)

    def broken(unit: PlanUnit, run_id: str, rules: PlanRules) -> int:
        if run_id == first:
            raise ZeroDivisionError
        return plan_more(unit, run_id, rules)

    monkeypatch.setattr(loops, "plan_more", broken)
    with pytest.raises(Unavailable, match=f"planning of {first}: ZeroDivisionError"):
        await planner._plan_all()
    assert not await sources.episodes(first)
    assert await sources.episodes(second)


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


async def test_an_overdue_episode_ends_as_what_stands_about_it_says(
    sources: SourcesHarness, evaluation: str
) -> None:
    """The planner has not read the grade of one and the failure of another: both were decided before it."""
    graded, broken, *silent = [row.episode_id for row in await sources.episodes(evaluation)]
    identity = EpisodeIdentity(episode_id=graded, run_id=evaluation)
    others = Others()
    others.stands = {
        event_ids.episode_outcome(graded): TrajectoryGraded(episode=identity, reward=0.5),
        event_ids.episode_outcome(broken): EpisodeFailed(
            episode=EpisodeIdentity(episode_id=broken, run_id=evaluation), kind="engine_error"
        ),
    }
    run = await sources.run(evaluation)
    await swept_by(sources, others)._sweep(run)
    rows = {row.episode_id: row for row in await first_attempts(sources, evaluation)}
    assert (rows[graded].state, rows[graded].reward) == (EpisodeState.EVALUATED, 0.5)
    assert (rows[broken].state, rows[broken].reason) == (EpisodeState.FAILED, "engine_error")
    assert {(rows[one].state, rows[one].reason) for one in silent} == {(EpisodeState.FAILED, "timeout")}
    said = others.stands[event_ids.episode_outcome(silent[0])]
    assert isinstance(said, EpisodeFailed)
    assert (said.kind, said.reported_by) == ("timeout", "scenario_runner")
    assert said.usage.environment_s == eval_spec().episode_deadline_s + MARGIN_S


async def test_nothing_is_decided_about_what_a_stopping_run_left_ungraded(sources: SourcesHarness) -> None:
    """The position of run.stopping in the stream says which grades count."""
    run_id = await sources.submit(train_spec())
    await sources.plan(run_id)
    opened = [row.episode_id for row in await sources.episodes(run_id)]
    await sources.planner.do(lambda unit: unit.note_opened(opened))
    await sources.planner.do(lambda unit: stop_early(unit, find_run(unit, run_id), "enough"))
    sources.planner.now += timedelta(seconds=train_spec().episode_deadline_s + MARGIN_S + 1)
    others, run = Others(), await sources.run(run_id)
    assert not await swept_by(sources, others)._overdue(run)
    assert others.stands == {}
