"""The bus edge: saved checkpoints come in, finished evaluation runs become evidence."""

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message
from opentelemetry import propagate

from checkpoint_registry import wire
from checkpoint_registry.domain.errors import (
    CheckpointConflict,
    InvalidRequest,
    PeerRefused,
    PeerUnavailable,
    UnknownModel,
)
from checkpoint_registry.ports import Judge
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from event_bus import Delivery, PoisonMessage
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import RunFinished
from upcycle.api.training.v1.events_pb2 import CheckpointSaved
from upcycle.errors import Unavailable

EVENTS: Sequence[type[Message]] = (CheckpointSaved, RunFinished)
_RETRY_S = 2.0


class RegistryHandlers:
    """Safe to redeliver: a checkpoint is keyed by its id, evidence by its run."""

    def __init__(self, gate: RunGate, evidence: GatherEvidence, judge: Judge) -> None:
        self._gate = gate
        self._evidence = evidence
        self._judge = judge

    async def on_event(self, delivery: Delivery[Any]) -> None:
        """Dispatches by type. An outage around us is no failure of the event."""
        try:
            await self._dispatch(delivery.message)
        except (PeerUnavailable, Unavailable) as error:
            raise Unavailable(str(error), _RETRY_S) from error

    async def _dispatch(self, message: Message) -> None:
        if isinstance(message, CheckpointSaved):
            await self._on_checkpoint_saved(message, _traceparent())
        elif isinstance(message, RunFinished):
            await self._on_run_finished(message)
        else:
            raise PoisonMessage(f"{type(message).__name__} is nothing that the registry consumes")

    async def _on_checkpoint_saved(self, event: CheckpointSaved, traceparent: str) -> None:
        try:
            await self._gate.record(wire.candidate_from_wire(event), traceparent)
        except (InvalidRequest, UnknownModel, CheckpointConflict) as error:
            raise PoisonMessage(str(error)) from error
        self._judge.wake([event.model])

    async def _on_run_finished(self, event: RunFinished) -> None:
        """Evidence first, then whoever waits for it; training runs are none."""
        if event.purpose != common_pb2.PURPOSE_EVAL:
            return
        try:
            await self._evidence.collect(event.run_id)
        except PeerRefused as error:
            raise PoisonMessage(str(error)) from error
        self._judge.wake([event.model])


def _traceparent() -> str:
    """The span in which the event is handled: what the gate does later belongs below it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
