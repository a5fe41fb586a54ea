"""What the planner needs of old runs, and what no run may begin to draw from."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.source_runs import SourcesHarness, eval_spec, settled, train_spec
from tests.services.scenario_runner.support import arith, register, run_spec, submit

from retention import MIN_AGE, Reference
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.adapters.sql_source_groups import SourceGroups
from scenario_runner.domain.runs import Refused, RunState
from scenario_runner.usecases.ending import end_run
from scenario_runner.usecases.references import FindReferences
from scenario_runner.usecases.task_claims import ClaimTasks
from service_kit.errors import InvalidRequest
from upcycle.api.retention.v1 import service_pb2 as pb
from upcycle.api.retention.v1.service_pb2_grpc import ReferenceServiceStub, RetentionServiceStub
from upcycle.rpc import RemoteRefused, connect, remote_errors


@pytest.fixture
def nats_url(own_nats_url: str) -> str:
    """What the planner gave up in other tests would make it refuse."""
    return own_nats_url


async def test_open_runs_and_what_they_draw_from_are_needed_and_others_not(sources: SourcesHarness) -> None:
    await sources.register()
    drawn, free = await sources.evaluation(), await sources.evaluation()
    going_on = await sources.submit(eval_spec())
    training = await sources.submit(train_spec(drawn))
    find = FindReferences(sources.planner.plan)
    runs = [drawn, free, going_on, training, "run-unknown", "interactive-m"]
    just_ended = await find([free], True)
    assert just_ended == [Reference(free, "run ended less than a day ago")]
    sources.planner.now += MIN_AGE
    needed = [
        Reference(going_on, "run is not over"),
        Reference(training, "run is not over"),
        Reference(drawn, "a run draws from it"),
        Reference("run-unknown", "unknown to the planner"),
    ]
    for release in (False, True, True):
        assert await find(runs, release) == needed
    await sources.change(training, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled"))
    offers = await sources.offers(training)
    await sources.planner.apply(
        *(settled(training, one.group_id, "released", "run_over", source=drawn) for one in offers)
    )
    await sources.sweep(training)
    assert (await sources.run(training)).state is RunState.CANCELLED
    assert await find([drawn, training], False) == [
        Reference(training, "run ended less than a day ago"),
        Reference(drawn, "a run draws from it"),
    ]
    sources.planner.now += MIN_AGE + timedelta(microseconds=1)
    assert await find([drawn, training], False) == []


async def test_no_run_begins_to_draw_from_a_released_one(sources: SourcesHarness) -> None:
    await sources.register()
    released, asked = await sources.evaluation(), await sources.evaluation()
    find = FindReferences(sources.planner.plan)
    sources.planner.now += 2 * MIN_AGE
    await find([asked], False)
    await find([released], True)
    with pytest.raises(Refused, match=f"source run {released} was released to retention"):
        await sources.submit(train_spec(released))
    assert await sources.submit(train_spec(asked))


async def test_a_run_that_draws_and_a_release_at_once_never_both_succeed(sources: SourcesHarness) -> None:
    """Whichever transaction is first, the other one sees it."""
    await sources.register()
    find = FindReferences(sources.planner.plan)
    for _ in range(3):
        source = await sources.evaluation()
        sources.planner.now += 2 * MIN_AGE
        submitted, found = await asyncio.gather(
            sources.submit(train_spec(source)), find([source], True), return_exceptions=True
        )
        assert not isinstance(found, BaseException)
        assert isinstance(submitted, Refused) == (found == []), (submitted, found)
        if isinstance(submitted, str):
            await sources.change(
                submitted, lambda unit, run: end_run(unit, run, RunState.CANCELLED, "run_cancelled")
            )
            await sources.sweep(submitted)


async def test_what_an_interactive_session_trains_on_is_needed_for_a_day(sources: SourcesHarness) -> None:
    """Its checkpoint names its sources, and may be a while away."""
    await sources.register()
    drawn, released = await sources.evaluation(), await sources.evaluation()
    find, claim = FindReferences(sources.planner.plan), ClaimTasks(sources.planner.plan)
    sources.planner.now += 2 * MIN_AGE
    await find([released], True)
    with pytest.raises(InvalidRequest, match=f"source run {released} was released to retention"):
        await claim([], "interactive training of m", [drawn, released])
    assert await find([drawn], False) == []
    await claim([], "interactive training of m", [drawn, "run-unknown"])
    held = [Reference(drawn, "interactive training drew from it less than a day ago")]
    assert await find([drawn], True) == held
    sources.planner.now += MIN_AGE
    assert await find([drawn], True) == held
    sources.planner.now += timedelta(microseconds=1)
    assert await find([drawn], True) == []


@pytest.mark.parametrize("waits", ["release", "gradient"])
async def test_a_gradient_that_is_taken_and_a_release_at_once_never_both_succeed(
    sources: SourcesHarness, sql_url: str, monkeypatch: pytest.MonkeyPatch, waits: str
) -> None:
    """They have different turns. waits: which of the two has read, and is slow to commit."""
    if not sql_url.startswith("postgresql"):
        pytest.skip("SQLite has one writer")
    await sources.register()
    source = await sources.evaluation()
    sources.planner.now += 2 * MIN_AGE
    find, claim = FindReferences(sources.planner.plan), ClaimTasks(sources.planner.plan)
    has_read, go_on = threading.Event(), threading.Event()

    def slowed(of: type, name: str) -> None:
        read = getattr(of, name)

        def slow(self: Any, *args: Any) -> Any:
            found = read(self, *args)
            has_read.set()
            assert go_on.wait(60)
            return found

        monkeypatch.setattr(of, name, slow)

    slowed(*((SourceGroups, "drawn_from") if waits == "release" else (PlanUnit, "splits")))
    works = [lambda: find([source], True), lambda: claim([], "interactive training of m", [source])]
    first, second = works if waits == "release" else reversed(works)
    slow = asyncio.create_task(first())
    assert await asyncio.to_thread(has_read.wait, 60)
    other = asyncio.create_task(second())
    await asyncio.wait({other}, timeout=1.0)  # it ends, or waits for the row of the run
    go_on.set()
    found, taken = await asyncio.gather(*((slow, other) if waits == "release" else (other, slow)))
    assert found == [Reference(source, "interactive training drew from it less than a day ago")]
    assert taken == 0


async def test_a_planner_that_lost_its_database_needs_every_run(sources: SourcesHarness) -> None:
    """A row of a run is kept for ever, so one that is not there was planned by another database."""
    find = FindReferences(sources.planner.plan)
    found = await find(["run-b", "interactive-m", "run-a"], True)
    assert found == [Reference(name, "unknown to the planner") for name in ("run-a", "run-b")]


async def test_the_running_service_answers(runner: Runner) -> None:
    """Over gRPC: the trajectory store asks about an open run, and an operator for what is old."""
    await register(runner, arith())
    run_id = (await submit(runner, run_spec())).run_id
    async with connect(runner.address) as channel:
        references, retention = ReferenceServiceStub(channel), RetentionServiceStub(channel)
        asked = pb.ListReferencesRequest(run_ids=[run_id, "run-none"], release=True)
        answer = await references.ListReferences(asked)
        assert [(one.run_id, one.why) for one in answer.references] == [
            (run_id, "run is not over"),
            ("run-none", "unknown to the planner"),
        ]
        swept = await retention.SweepRetention(pb.SweepRetentionRequest(what="runs", older_than_s=86400))
        assert (swept.policy, swept.number, swept.next) == ("older than 1 day", 0, "")
        for wrong in (
            pb.SweepRetentionRequest(what="bodies"),
            pb.SweepRetentionRequest(what="runs", older_than_s=-1, apply=True),
        ):
            with pytest.raises(RemoteRefused, match=r"what is 'bodies'|older_than_s is -1"), remote_errors():
                await retention.SweepRetention(wrong)
        too_many = pb.ListReferencesRequest(run_ids=["r"] * 2001)
        with pytest.raises(RemoteRefused, match="run_ids has 2001 entries, limit 2000"), remote_errors():
            await references.ListReferences(too_many)
