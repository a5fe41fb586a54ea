"""Decisions against a real server: the first of all authors stands, without a window, and is read as a
fact.
"""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import propagate, trace
from tests.conftest import NatsFactory
from tests.libs.event_bus.support import FAST, eyes_on
from tests.local_servers import NatsServer
from tests.support.waiting import until

from event_bus import BusSettings, Decision, EventBus, UnknownEvent
from event_bus.codec import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, encode, headers_for, headers_size
from event_bus.provision import provision
from event_bus.topology import DECISIONS, EVENTS, MAX_EVENT_BYTES
from identities import events
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed, RunStopping
from upcycle.api.training.v1.events_pb2 import GroupSettled, StepCompleted
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

MODEL = "a.b"
KINDS = (TrajectoryGraded, EpisodeFailed, GroupSettled, StepCompleted, RunStopping)


@pytest.fixture
async def server(nats_server: NatsFactory) -> NatsServer:
    made = nats_server()
    await provision(made.url)
    return made


class Running:
    """Several processes' buses on one server."""

    def __init__(self, server: NatsServer, count: int) -> None:
        settings = BusSettings(url=server.url)
        self.buses = [EventBus(settings, client_name=f"t{one}", timings=FAST) for one in range(count)]

    async def __aenter__(self) -> list[EventBus]:
        for bus in self.buses:
            await bus.start()
        return self.buses

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(bus.stop() for bus in self.buses))


def graded(episode: str = "e1", reward: float = 1.0) -> Decision:
    event = TrajectoryGraded(episode=EpisodeIdentity(episode_id=episode), reward=reward)
    return Decision(event, MODEL, events.episode_outcome(episode))


def failed(episode: str = "e1", kind: str = "timeout") -> Decision:
    event = EpisodeFailed(episode=EpisodeIdentity(episode_id=episode), kind=kind)
    return Decision(event, MODEL, events.episode_outcome(episode))


def settled(group: str, outcome: str, author: str) -> Decision:
    return Decision(GroupSettled(group_id=group, outcome=outcome), MODEL, events.group_settled(group), author)


def a_step(*groups: str, step: int = 1) -> list[Decision]:
    done = StepCompleted(run_id="r", step=step, version=step)
    words = [settled(group, "trained", "trainer") for group in groups]
    return [*words, Decision(done, MODEL, events.step_completed("r", step))]


async def facts(bus: EventBus, count: int, *, timeout_s: float = 20.0) -> list[Any]:
    """The first facts of these types in the stream of facts, once there are `count`."""

    async def read() -> list[Any]:
        return [one.message for one in await bus.stored(KINDS, after_sequence=0, model=MODEL)]

    async def enough() -> bool:
        return len(await read()) >= count

    await until(enough, f"{count} facts", timeout_s=timeout_s)
    return await read()


async def forget_ids(server: NatsServer) -> None:
    """As after the duplicate window: the stream remembers no event id."""
    async with eyes_on(server) as eyes:
        for stream in (DECISIONS, EVENTS):
            config = (await eyes.jetstream.stream_info(stream)).config
            await eyes.jetstream.update_stream(config, duplicate_window=0.1)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def test_the_first_outcome_of_an_episode_stands_after_the_duplicate_window(server: NatsServer) -> None:
    async with Running(server, 2) as (grader, planner):
        assert await grader.decide([graded()]) == [graded().event]
        await forget_ids(server)
        assert await planner.decide([failed()]) == [graded().event]
        ack = await planner.publish(failed().event, model=MODEL, event_id=failed().event_id)
        assert (ack.stream, ack.sequence, ack.duplicate) == (DECISIONS, 1, True)
        assert await grader.decide([graded(reward=0.5)]) == [graded().event]
        await planner.publish(RunStopping(run_id="r"), model=MODEL, event_id="run.stopping/r")
        *copies, last = await facts(grader, 3)
        assert last == RunStopping(run_id="r")
        assert copies == [graded().event] * len(copies)


async def test_a_decision_is_addressed_by_what_it_is_about_and_by_its_author(server: NatsServer) -> None:
    async with Running(server, 1) as (bus,), eyes_on(server) as eyes:
        await bus.decide([graded()])
        offered = events.group_settled("g", offered_to="run-2")
        await bus.decide([Decision(GroupSettled(group_id="g"), MODEL, offered, "planner")])
        await facts(bus, 2)
        decisions, copies = await eyes.stored(DECISIONS), await eyes.stored(EVENTS)
    assert [one.subject for one in decisions] == [
        "up.default.decision.outcome.a%2Eb.e1.graded",
        "up.default.decision.settled.a%2Eb.run-2%2Fg.planner",
    ]
    assert [one.subject for one in copies] == [
        "up.default.evt.trajectory.graded.a%2Eb",
        "up.default.evt.group.settled.a%2Eb",
    ]
    assert [one.headers["Nats-Msg-Id"] for one in copies] == ["episode.outcome/e1", "group.settled/run-2/g"]


async def test_of_many_authors_at_once_one_stands_and_all_follow_it(server: NatsServer) -> None:
    async with Running(server, 4) as buses:
        for number in range(10):
            episode = f"e{number}"
            words = [graded(episode), failed(episode, "sampler"), failed(episode, "grader"), failed(episode)]
            said = await asyncio.gather(*(bus.decide([word]) for bus, word in zip(buses, words, strict=True)))
            assert all(stands == said[0] for stands in said)
            assert said[0][0] in [word.event for word in words]
        found = await facts(buses[0], 10)
    assert len(found) == 10


async def test_a_step_and_its_groups_stand_together_or_not_at_all(server: NatsServer) -> None:
    async with Running(server, 2) as (trainer, planner):
        words = a_step("g1", "g2")
        assert await trainer.decide(words) == [word.event for word in words]
        assert await trainer.decide(words) == [word.event for word in words], "a repeat after a crash"
        excluded = settled("g3", "excluded", "planner")
        await planner.decide([excluded])
        void = a_step("g4", "g3", step=2)
        assert await trainer.decide(void) == [None, excluded.event, None]
        (stands,) = await planner.decide([settled("g1", "excluded", "planner")])
        assert stands == words[0].event
        found = await facts(planner, 4)
    assert found == [*(word.event for word in words), excluded.event]


async def test_a_step_races_the_planner_for_each_of_its_groups(server: NatsServer) -> None:
    """The first of trainer and planner for one group decides all of them: no step is half void."""
    async with Running(server, 2) as (trainer, planner):
        for number in range(1, 13):
            groups = [f"r{number}-g{one}" for one in range(4)]
            words = a_step(*groups, step=number)
            instead = [settled(group, "excluded", "planner") for group in groups]
            steps, *_ = await asyncio.gather(
                trainer.decide(words), *(planner.decide([word]) for word in reversed(instead))
            )
            stand = [await trainer.standing(word) for word in words]
            if all(stand):
                assert stand == steps == [word.event for word in words]
            else:
                assert stand == [*(word.event for word in instead), None]


async def test_the_copies_survive_a_kill_of_the_server_each_once_and_in_order(server: NatsServer) -> None:
    async with Running(server, 1) as (bus,):

        async def decide(number: int) -> None:
            assert await bus.decide([graded(f"e{number:03d}")]) == [graded(f"e{number:03d}").event]

        for number in range(60):
            if number in (20, 40):
                killing = asyncio.create_task(asyncio.to_thread(server.kill))
                await killing
                await asyncio.to_thread(server.start)
            await decide(number)
        found = [one.episode.episode_id for one in await facts(bus, 60)]
    assert found == [f"e{number:03d}" for number in range(60)]


@pytest.mark.study
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_stream_of_decisions_that_is_made_anew_is_copied_from_its_first(
    server: NatsServer, restarts: bool
) -> None:
    """The server remembers which sequence it copied last; a stream that began at 1 again would be skipped."""
    async with Running(server, 1) as (bus,), eyes_on(server) as eyes:
        for number in range(5):
            await bus.decide([graded(f"e{number}")])
        await facts(bus, 5)
        await eyes.jetstream.delete_stream(DECISIONS)
        await provision(server.url)
        for number in range(5, 8):
            await bus.decide([graded(f"e{number}")])
        if restarts:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        found = await facts(bus, 8, timeout_s=60)
    assert [one.episode.episode_id for one in found] == [f"e{number}" for number in range(8)]


async def test_a_decision_of_exactly_the_limit_is_copied(server: NatsServer) -> None:
    """A copy that the stream of facts refused would hold up all that follow."""
    async with Running(server, 1) as (bus,):
        word = failed("e1")
        headers = {
            **headers_for(EpisodeFailed, word.event_id),
            EXPECTED_SEQUENCE: "0",
            EXPECTED_SUBJECT: "up.default.decision.outcome.a%2Eb.e1.*",
        }
        with trace.get_tracer("t").start_as_current_span("publish"):
            propagate.inject(headers)  # where this process traces, a publish carries its context, too
        event = EpisodeFailed()
        event.MergeFromString(word.event.SerializeToString())
        event.kind = "k" * 8
        event.kind = "k" * (8 + MAX_EVENT_BYTES - headers_size(headers) - len(encode(event)))
        await bus.decide([replace(word, event=event)])
        await bus.decide([graded("e2")])
        assert len(await facts(bus, 2)) == 2


async def test_authors_and_ids_that_decide_nothing_are_refused_by_name(server: NatsServer) -> None:
    async with Running(server, 1) as (bus,):
        with pytest.raises(UnknownEvent, match=r"GroupSettled decides, and author '' is none of trainer, pl"):
            await bus.decide([settled("g", "trained", "")])
        with pytest.raises(UnknownEvent, match="author 'sampler' is none of trainer, planner"):
            await bus.decide([settled("g", "trained", "sampler")])
        with pytest.raises(UnknownEvent, match=r"'episode.outcome' says 'episode.outcome', and not what"):
            await bus.publish(graded().event, model=MODEL, event_id="episode.outcome")


@pytest.mark.parametrize("ends", ["decided again", "published by another author"])
async def test_who_decides_too_late_gives_the_facts_another_copy_of_what_stands(
    server: NatsServer, ends: str
) -> None:
    """It may decide only because the stream of facts lost the first copy."""
    theirs, ours = settled("g", "excluded", "planner"), settled("g", "trained", "trainer")
    async with Running(server, 2) as (trainer, planner):
        await planner.decide([theirs])
        assert await facts(trainer, 1) == [theirs.event]
        await forget_ids(server)
        if ends == "decided again":
            assert await planner.decide([theirs, settled("h", "excluded", "planner")]) == [theirs.event, None]
        else:
            await trainer.publish(ours.event, model=MODEL, event_id=ours.event_id, author="trainer")
        assert await facts(trainer, 2) == [theirs.event, theirs.event]


async def test_a_reader_that_lacks_a_decision_gets_another_copy_of_what_stands(server: NatsServer) -> None:
    """The stream of facts lost it. Who repeats it need not know what stands, or be its author."""
    ours, theirs = settled("g", "trained", "trainer"), settled("g", "excluded", "planner")
    async with Running(server, 2) as (trainer, planner):
        assert not await trainer.repeat(ours)  # nothing stands, and nothing is decided by it
        assert await trainer.standing(ours) is None
        await planner.decide([theirs])
        assert await facts(trainer, 1) == [theirs.event]
        await forget_ids(server)
        assert await trainer.repeat(ours)
        assert await facts(trainer, 2) == [theirs.event, theirs.event]
        await forget_ids(server)
        ack = await trainer.publish(
            ours.event, model=MODEL, event_id=ours.event_id, author="trainer", again=True
        )
        assert ack.duplicate
        assert await facts(trainer, 3) == [theirs.event] * 3
        assert await trainer.standing(ours) == theirs.event
