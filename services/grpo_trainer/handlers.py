"""Bus edge: replays the facts about runs from the sessions' own cursor; nothing is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from event_bus import CursorBeyondStream, Delivery, EventHandlers
from grpo_trainer import wire
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.runs.group_buffer import Fact, GroupShortened, MemberQuarantined, RunOver, RunStopping
from grpo_trainer.runs.reopening import ReadAgain
from grpo_trainer.runs.sessions import RunSessions
from upcycle.api.taskset.v1 import events_pb2 as taskset
from upcycle.api.taskset.v1 import taskset_pb2
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded, TrajectoryQuarantined

log = logging.getLogger(__name__)

RUN_FACTS: Final = EventHandlers[tuple[str, Fact]]()
"""Events about a run: its id, and what the domain makes of them."""


@RUN_FACTS(TrajectoryGraded)
def on_trajectory_graded(event: TrajectoryGraded, delivery: Delivery[Any]) -> tuple[str, Fact]:
    return event.episode.run_id, wire.graded_from_wire(event, delivery.sequence, delivery.headers)


@RUN_FACTS(taskset.GroupShortened)
def on_group_shortened(event: taskset.GroupShortened, delivery: Delivery[Any]) -> tuple[str, Fact]:
    return event.run_id, GroupShortened(event.group_id, event.expected_members, delivery.sequence)


@RUN_FACTS(TrajectoryQuarantined)
def on_trajectory_quarantined(event: TrajectoryQuarantined, delivery: Delivery[Any]) -> tuple[str, Fact]:
    episode = event.episode
    aside = MemberQuarantined(episode.group_id, episode.trajectory_id, event.reason, delivery.sequence)
    return episode.run_id, aside


@RUN_FACTS(taskset.GroupOffered)
def on_group_offered(event: taskset.GroupOffered, delivery: Delivery[Any]) -> tuple[str, Fact]:
    return event.run_id, wire.offer_from_wire(event, delivery.sequence, delivery.headers)


@RUN_FACTS(taskset.RunStopping)
def on_run_stopping(event: taskset.RunStopping, delivery: Delivery[Any]) -> tuple[str, Fact]:
    saves = event.ending in (taskset_pb2.RUN_STATE_UNSPECIFIED, taskset_pb2.RUN_STATE_COMPLETED)
    return event.run_id, RunStopping(delivery.sequence, saves)


@RUN_FACTS(taskset.RunFinished)
def on_run_finished(event: taskset.RunFinished, delivery: Delivery[Any]) -> tuple[str, Fact]:
    return event.run_id, RunOver(delivery.sequence, event.state == taskset_pb2.RUN_STATE_COMPLETED)


EVENTS: Final[tuple[type[Message], ...]] = (taskset.RunSubmitted, *RUN_FACTS.events)
"""What the trainer replays; `FactReader.on_run_submitted` gets the first."""


class Stream(Protocol):
    """The part of EventBus that is used here."""

    def replay(self, events: Sequence[type[Message]], *, after_sequence: int) -> AsyncIterator[Delivery[Any]]:
        """Facts in stream order, endless. Raises CursorBeyondStream."""

    async def stored(
        self,
        events: Sequence[type[Message]],
        *,
        after_sequence: int,
        model: str | None,
        must_fit: bool = False,
    ) -> Sequence[Delivery[Any]]:
        """Facts that the stream holds now, in order. Raises CursorBeyondStream, Unavailable."""


class FactReader:
    """Reads the stream of facts into the sessions."""

    def __init__(self, bus: Stream, sessions: RunSessions) -> None:
        self._bus = bus
        self._sessions = sessions
        self._reading = False

    async def run(self, stop: asyncio.Event) -> None:
        """Resume, then read until `stop`; steps under way end durable."""
        after = await self._sessions.restore()
        reading = asyncio.create_task(self._read(after), name="facts")
        watching = asyncio.create_task(self._sessions.watch(stop), name="sessions")
        try:
            done, _ = await asyncio.wait({reading, watching}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._reading = False
            reading.cancel()
            watching.cancel()
            await self._sessions.stop()

    async def _read(self, after: int) -> None:
        self._reading = True
        try:
            await self._read_from(after)
        except CursorBeyondStream as error:
            # The stream was created again. Settled groups are known by their ids, so reading all is safe.
            log.error("stream_restarted", extra={"error": str(error)})
            self._sessions.stream_restarted()
            self._sessions.lost.found(str(error))
            await self._read_from(0)

    async def _read_from(self, after: int) -> None:
        async for delivery in self._bus.replay(EVENTS, after_sequence=after):
            self.on_fact(delivery)

    def on_fact(self, delivery: Delivery[Any]) -> None:
        """One fact. A repeat is harmless."""
        if isinstance(delivery.message, taskset.RunSubmitted):
            self.on_run_submitted(delivery.message, delivery)
        else:
            self._sessions.put(*RUN_FACTS.handle(delivery))
        self._sessions.handled(delivery.sequence)

    def on_run_submitted(self, event: taskset.RunSubmitted, delivery: Delivery[Any]) -> None:
        """Begin a training run, or say why it is refused."""
        if not wire.is_training(event):
            return
        try:
            spec = wire.spec_from_wire(event)
        except InvalidTrainingSpec as error:
            self._sessions.refuse(event.run_id, event.spec.policy.model, delivery.sequence, error)
            return
        self._sessions.submit(spec, delivery.sequence, wire.trace_headers(delivery.headers))

    def ready(self) -> str | None:
        """None while it reads, no session waits for a service or store, and nothing is lost that it asks the
        planner about."""
        if not self._reading:
            return self._sessions.waiting_for() or "resuming"
        return self._sessions.waiting_for() or self._sessions.lost.waiting_for()


def stored_facts(bus: Stream) -> ReadAgain:
    """Reads the facts about a run that the stream holds."""

    async def read_again(model: str, run_id: str, after: int) -> list[Fact]:
        try:
            stored = await bus.stored(RUN_FACTS.events, after_sequence=after, model=model, must_fit=True)
        except CursorBeyondStream:  # the stream was created again
            stored = await bus.stored(RUN_FACTS.events, after_sequence=0, model=model)
        return [fact for found, fact in map(RUN_FACTS.handle, stored) if found == run_id]

    return read_again
