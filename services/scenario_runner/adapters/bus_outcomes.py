"""The planner's decisions about episodes, on the bus."""

from collections.abc import Sequence
from typing import Final, Protocol

from google.protobuf.message import Message

from event_bus import Decision, decide_each
from event_bus.errors import UnknownEvent
from event_bus.tracing import trace_of
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
        model, facts = run.spec.policy.model, list[Graded | Failed]()
        decisions = [
            Decision(one, model, event_ids.episode_outcome(one.episode.episode_id)) for one in failures
        ]
        with trace_of(run.trace):
            for at in range(0, len(decisions), _TOGETHER):
                await decide_each(
                    self._bus.decide,
                    decisions[at : at + _TOGETHER],
                    lambda _, stored: facts.append(_fact(stored)),
                )
        return facts


def _fact(stored: Message) -> Graded | Failed:
    match stored:
        case TrajectoryGraded():
            return received.graded(stored)
        case EpisodeFailed():
            return received.failed(stored)
    raise UnknownEvent(f"{type(stored).__name__} decides nothing about an episode")
