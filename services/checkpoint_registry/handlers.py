"""The bus edge: records published versions and saved checkpoints, and reads finished evaluation runs."""

from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import Message
from opentelemetry import propagate

from checkpoint_registry import wire
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.errors import (
    InvalidRequest,
    PeerRefused,
    UnknownModel,
    VersionConflict,
)
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from event_bus import Delivery, PoisonMessage
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import RunFinished
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished

EVENTS: Sequence[type[Message]] = (PolicyPublished, CheckpointSaved, RunFinished)


class RegistryHandlers:
    """Safe to redeliver: a version is keyed by its number, a checkpoint by its id, evidence by its run."""

    def __init__(
        self,
        gate: RunGate,
        evidence: GatherEvidence,
        versions: SqlVersionStore,
        wake_gate: Callable[[list[str]], None],
    ) -> None:
        self._gate = gate
        self._evidence = evidence
        self._versions = versions
        self._wake_gate = wake_gate

    async def on_event(self, delivery: Delivery[Any]) -> None:
        """Dispatches by type."""
        message = delivery.message
        if isinstance(message, PolicyPublished):
            await self._on_policy_published(message)
        elif isinstance(message, CheckpointSaved):
            await self._on_checkpoint_saved(message, _traceparent())
        elif isinstance(message, RunFinished):
            await self._on_run_finished(message)
        else:
            raise PoisonMessage(f"{type(message).__name__} is not consumed by the registry")

    async def _on_policy_published(self, event: PolicyPublished) -> None:
        try:
            await self._versions.publish(wire.version_from_wire(event))
        except (InvalidRequest, UnknownModel, VersionConflict) as error:
            raise PoisonMessage(str(error)) from error

    async def _on_checkpoint_saved(self, event: CheckpointSaved, traceparent: str) -> None:
        try:
            await self._gate.record(wire.candidate_from_wire(event), traceparent)
        except (InvalidRequest, UnknownModel, VersionConflict) as error:
            raise PoisonMessage(str(error)) from error
        self._wake_gate([event.model])

    async def _on_run_finished(self, event: RunFinished) -> None:
        """Store the evaluation results, then wake the gate. Training runs carry no evaluation."""
        if event.purpose != common_pb2.PURPOSE_EVAL:
            return
        try:
            await self._evidence.collect(event.run_id)
        except PeerRefused as error:
            raise PoisonMessage(str(error)) from error
        self._wake_gate([event.model])


def _traceparent() -> str:
    """The span in which the event is handled: what the gate does later belongs below it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
