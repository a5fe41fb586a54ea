"""The state of an engine in its lease, and in which states it serves."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from upcycle.api.registry.v1 import registry_pb2


class EngineState(StrEnum):
    """As its engine supervisor says."""

    STARTING = "starting"
    """No engine answers: it is being started, the first time or again."""
    READY = "ready"
    RELOADING = "reloading"
    FAILED = "failed"
    """A version was refused; the old one is served."""
    STOPPING = "stopping"


SERVING_STATES: Final = (EngineState.READY, EngineState.RELOADING, EngineState.FAILED)
"""Requests may be sent to the engine; best first. A reload keeps them waiting for a moment."""
STATE_NUMBERS: Final = {
    state: registry_pb2.EngineState.Value(f"ENGINE_STATE_{state.name}") for state in EngineState
}
_STATES: Final[Mapping[int, EngineState]] = {number: state for state, number in STATE_NUMBERS.items()}


def state_from_wire(number: int) -> EngineState:
    """One that this version does not know counts as starting: nothing is sent there."""
    return _STATES.get(number, EngineState.STARTING)
