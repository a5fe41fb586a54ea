"""One judge that is away or slow holds up no grade that does not ask it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pydantic import SecretStr
from tests.conftest import NatsFactory
from tests.services.reward_grader.conftest import Testbed
from tests.support.judges import completion
from tests.support.model_servers import KEY, Asked, Said, serving
from tests.support.waiting import until

from environment_client import EnvironmentClient
from episodes import EpisodeBroken
from event_bus.connection import plain_client
from event_bus.provision import provision
from event_bus.topology import EVENTS, REWARD_GRADER, UPCYCLE
from reward_grader.adapters.judge_places import AWAY_S, MAX_PAUSE_S, NotAsked
from reward_grader.adapters.judges import JudgeServers
from reward_grader.app import build_judges
from reward_grader.domain import Judge, JudgeLimits
from reward_grader.settings import RewardGraderSettings
from reward_grader.usecases import JudgedGrades
from reward_grader.wire import task_from_wire
from service_kit.groups import BusSettings
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded
from upcycle.errors import Unavailable
from upcycle.judge_calls import JudgeQuestion

QUESTION = JudgeQuestion("", "You grade.", "What of this?")
MANY = 600
"""More records than were out of the durable at once before, which is what then held up all others."""


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Takes every connection and says nothing."""
    ended = asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        ended.set()
        server.close()


def asking(url: str, **changes: Any) -> dict[str, Any]:
    """Settings of a grader whose default judge is there."""
    settings = {"judge_url": url, "judge_model": "wise-1", "judge_key": SecretStr(KEY)}
    return {**settings, "grade_timeout_s": 60.0, "gone_after_s": 120.0, **changes}


async def test_a_judge_that_never_answers_holds_up_no_run_that_does_not_ask_it(bed: Testbed) -> None:
    async with silent_server() as url:
        await bed.grader(**asking(url))
        first = await bed.record(0)
        bed.environments.judged.add(first.lease_id)
        for number in range(MANY):
            record = await bed.record(number, body=b"not read")
            bed.environments.judged.add(record.lease_id)
            await bed.publish(record)
        others = [await bed.record(number, body=b"not read") for number in range(MANY, MANY + 10)]
        for record in others:
            await bed.publish(record)
        facts = await bed.outcomes(10)
    assert {fact.episode.episode_id for fact in facts} == {one.episode.episode_id for one in others}
    assert all(isinstance(fact, TrajectoryGraded) for fact in facts)


async def test_a_question_that_waits_for_a_place_is_asked_however_old_its_record_is(bed: Testbed) -> None:
    """The judge is there, so no record is missing for the length of its queue."""
    goes_on = threading.Event()

    def think(_: Asked) -> Said:
        goes_on.wait(60)
        return completion("fine")

    with serving(think) as judge:
        await bed.grader(**asking(f"{judge.url}/v1", slots=2, judge_gone_after_s=0.01))
        for number in range(3):
            record = await bed.record(number)
            bed.environments.judged.add(record.lease_id)
            await bed.publish(record)
        try:
            await until(lambda: len(judge.turns) == 1, "the first question")
            await asyncio.sleep(2.5)  # the others come again after a second
            assert (len(judge.turns), bed.events) == (1, [])
        finally:
            goes_on.set()
        facts = await bed.outcomes(3)
    assert [type(fact) for fact in facts] == [TrajectoryGraded] * 3


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def judged_by(answer: Callable[[Asked], Said], **limits: Any) -> AsyncIterator[Any]:
    """(judges, requests, clock)."""
    clock = Clock()
    with serving(answer) as server:
        judge = Judge("", f"{server.url}/v1", "wise-1", KEY)
        judges = JudgeServers([judge], JudgeLimits(60.0, **limits), pauses_s=(), now=clock)
        yield judges, server.asked, clock
        await judges.stop()


async def test_a_judge_that_failed_is_away_for_a_while_and_then_asked_by_one() -> None:
    said = [Said(503, "down"), Said(503, "down"), completion("fine")]
    async with judged_by(lambda _: said.pop(0)) as (judges, asked, clock):
        for num_asked in (1, 2):
            with pytest.raises(Unavailable, match="wise-1, which answers 503: down"):
                await judges.ask(QUESTION)
            assert len(asked) == num_asked
            clock.now += AWAY_S - 1
            with pytest.raises(NotAsked, match="wise-1, which answers 503: down") as raised:
                await judges.ask(QUESTION)
            assert raised.value.away_s == (AWAY_S - 1 if num_asked == 1 else 2 * AWAY_S - 1)
            assert len(asked) == num_asked
            clock.now += 1
        assert (await judges.ask(QUESTION)).text == "fine"
        said.append(completion("fine"))
        assert (await judges.ask(QUESTION)).text == "fine"


async def test_a_record_that_was_not_asked_is_missing_once_its_judge_was_away_so_long(bed: Testbed) -> None:
    """One question that fails does not fail the records that waited for its judge, however old they are."""
    record = await bed.record()
    bed.environments.judged.add(record.lease_id)
    task = task_from_wire(record, datetime.now(UTC) - timedelta(hours=1))
    environments = EnvironmentClient()
    async with judged_by(lambda _: Said(503, "down"), gone_after_s=300.0) as (judges, asked, clock):
        grade = JudgedGrades(environments, judges, now=lambda: datetime.now(UTC))
        for num_asked, expected in ((1, NotAsked), (2, EpisodeBroken)):
            with pytest.raises(EpisodeBroken, match=r"which answers 503: down, 3600 s after the record"):
                await grade(task)
            clock.now += 1
            with pytest.raises(expected, match="which answers 503: down"):
                await grade(task)
            assert len(asked) == num_asked
            clock.now += 300
    await environments.stop()


async def test_one_judge_has_so_many_places_and_all_together_have_more() -> None:
    goes_on = threading.Event()

    def think(_: Asked) -> Said:
        goes_on.wait(60)
        return completion("fine")

    with serving(think) as server:
        judges = JudgeServers(
            [Judge(name, f"{server.url}/v1", "wise", "") for name in ("gateway:a", "gateway:b")],
            JudgeLimits(60.0, at_once=2, together=3),
        )
        running = [
            asyncio.create_task(judges.ask(replace(QUESTION, model=name)))
            for name in ("gateway:a", "gateway:a", "gateway:b")
        ]
        try:
            await until(lambda: len(server.asked) == 3, "three questions")
            for name in ("gateway:a", "gateway:b"):
                with pytest.raises(NotAsked, match=r"a place at judge wise") as raised:
                    await judges.ask(replace(QUESTION, model=name))
                assert raised.value.away_s == 0.0
            asked = [await _pause(judges) for _ in range(4000)]
        finally:
            goes_on.set()
        await asyncio.gather(*running)
        assert (await judges.ask(replace(QUESTION, model="gateway:b"))).text == "fine"
        await judges.stop()
    for before, after in pairwise(asked):  # they come back one after the other
        assert before.began + before.pause <= after.ended + after.pause
    assert 1.0 <= asked[0].pause < 5.0
    assert max(refused.pause for refused in asked) == pytest.approx(MAX_PAUSE_S)


class Refused(NamedTuple):
    """One question that found no place: when it was asked, when it was refused, how long it is to pause."""

    began: float
    ended: float
    pause: float


async def _pause(judges: JudgeServers) -> Refused:
    began = time.monotonic()
    with pytest.raises(NotAsked) as raised:
        await judges.ask(replace(QUESTION, model="gateway:a"))
    assert raised.value.retry_after_s is not None
    return Refused(began, time.monotonic(), raised.value.retry_after_s)


@pytest.mark.parametrize(("slots", "places"), [(48, (24, 36)), (8, (4, 6)), (1, (1, 1))])
def test_a_part_of_the_slots_never_waits_for_a_judge(slots: int, places: tuple[int, int]) -> None:
    limits = build_judges(RewardGraderSettings(slots=slots)).limits
    assert (limits.at_once, limits.together) == places


async def test_provisioning_widens_the_durable_of_the_version_before(nats_server: NatsFactory) -> None:
    server = nats_server()
    older = replace(
        UPCYCLE,
        consumers=tuple(
            replace(spec, max_ack_pending=512) if spec is REWARD_GRADER else spec
            for spec in UPCYCLE.consumers
        ),
    )
    await provision(server.url, topology=older)
    done = await provision(server.url)
    assert done.updated == [f"{EVENTS}/{REWARD_GRADER.durable}"]
    client = await plain_client(BusSettings(url=server.url), "test")
    try:
        config = (await client.jetstream().consumer_info(EVENTS, REWARD_GRADER.durable)).config
    finally:
        await client.close()
    assert config is not None
    assert config.max_ack_pending == 20_000
