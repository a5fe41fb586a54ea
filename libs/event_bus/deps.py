"""What every consumer of a bus shares."""

from dataclasses import dataclass

from event_bus.attempts import AttemptNotes
from event_bus.delivery import BusTimings
from event_bus.incoming import InFlight
from event_bus.publisher import Publisher


@dataclass(frozen=True, slots=True)
class ConsumerDeps:
    """One per EventBus. publisher: for dead letters; notes: of attempts; in_flight: handlers that run now."""

    publisher: Publisher
    notes: AttemptNotes
    in_flight: InFlight
    timings: BusTimings
