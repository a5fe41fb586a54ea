"""The planner's decisions about episodes, on the bus."""

from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.message import Message
from opentelemetry import context, propagate

from event_bus import Decision
from event_bus.errors import UnknownEvent
from identities import events as event_ids
from scenario_runner.domain.facts import Failed, Graded
from scenario_runner.domain.runs import RunRecord
from scenario_runner.wire import received
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.events_pb2 import TrajectoryGraded

_TOGETHER: Final = 100


class Bus(Protocol):
    """The part of EventBus that is used here."""

    async def decide(self, decisions: Sequence[Decision]) -> Sequence[Message | None]:
        """Publishes all or none; returns the stored decision for each."""


class BusOutcomes:
    """Decides how episodes ended; the first decision about one wins, and who comes later follows it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def decide(self, run: RunRecord, failures: Sequence[EpisodeFailed]) -> list[Graded | Failed]:
        """Returns the stored decision about each of these episodes: their failure, or an earlier one. Raises
        Unavailable."""
        token = context.attach(propagate.extract(dict(run.trace)))
        try:
            facts = []
            for at in range(0, len(failures), _TOGETHER):
                facts += await self._together(run, failures[at : at + _TOGETHER])
            return facts
        finally:
            context.detach(token)

    async def _together(self, run: RunRecord, failures: Sequence[EpisodeFailed]) -> list[Graded | Failed]:
        facts, model = [], run.spec.policy.model
        undecided = [
            Decision(one, model, event_ids.episode_outcome(one.episode.episode_id)) for one in failures
        ]
        while undecided:  # where one is decided, all others are refused with it
            stand = await self._bus.decide(undecided)
            facts += [_fact(found) for found in stand if found is not None]
            undecided = [one for one, found in zip(undecided, stand, strict=True) if found is None]
        return facts


def _fact(stored: Message) -> Graded | Failed:
    match stored:
        case TrajectoryGraded():
            return received.graded(stored)
        case EpisodeFailed():
            return received.failed(stored)
    raise UnknownEvent(f"{type(stored).__name__} decides nothing about an episode")
