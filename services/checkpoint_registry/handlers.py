"""The bus edge: records published versions and saved checkpoints, and reads finished evaluation runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import propagate

from checkpoint_registry import wire
from checkpoint_registry.adapters.announced_versions import KeptAnnouncements
from checkpoint_registry.adapters.sql_versions import SqlVersionStore
from checkpoint_registry.domain.errors import PeerRefused, UnknownModel, VersionConflict
from checkpoint_registry.usecases.evidence import GatherEvidence
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.pairing import PlayPairs
from checkpoint_registry.usecases.watching import WatchHeads
from event_bus import Carries, EventRouter, PoisonMessage
from event_bus.topology import CHECKPOINT_REGISTRY
from identities.objects import PolicyFolder
from policy_files import Announcement, FalseAnnouncement
from upcycle.api.common.v1 import common_pb2
from upcycle.api.taskset.v1.events_pb2 import RunFinished
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished


@dataclass(frozen=True, slots=True)
class EvidenceReaders:
    """Who reads a finished evaluation: the pairs of the gate, the watch over heads, else the gate's other
    evidence."""

    pairs: PlayPairs
    watch: WatchHeads
    others: GatherEvidence

    async def collect(self, run_id: str) -> None:
        """Store the results where they belong. Safe to repeat."""
        if not await self.pairs.collect(run_id) and not await self.watch.collect(run_id):
            await self.others.collect(run_id)


def registry_router(
    gate: RunGate,
    readers: EvidenceReaders,
    versions: SqlVersionStore,
    files: KeptAnnouncements,
    wake_gate: Callable[[list[str]], None],
) -> EventRouter:
    """Safe to redeliver: a version is keyed by its number, a checkpoint by its id, evidence by its run. A new
    version is recorded only where its files are as the fact says."""
    router = EventRouter()
    subscriber = router.subscriber(CHECKPOINT_REGISTRY)

    @subscriber(filter=Carries(PolicyPublished))
    async def on_policy_published(event: PolicyPublished) -> None:
        """Record the version."""
        with _refusals_are_poison():
            published = wire.version_from_wire(event)
            await _prove(wire.announcement(event), versions, files)
            await versions.record(published)

    @subscriber(filter=Carries(CheckpointSaved))
    async def on_checkpoint_saved(event: CheckpointSaved) -> None:
        """Record a candidate for the gate, then wake the gate."""
        with _refusals_are_poison():
            candidate = wire.candidate_from_wire(event)
            await _prove(wire.announcement(event), versions, files)
            await gate.record(candidate, _traceparent(), keeps_head=event.keeps_head)
        wake_gate([event.model])

    @subscriber(filter=Carries(RunFinished))
    async def on_run_finished(event: RunFinished) -> None:
        """Store the results of an evaluation, then wake the gate. Training runs carry no evaluation."""
        if event.purpose != common_pb2.PURPOSE_EVAL:
            return
        with _refusals_are_poison():
            await readers.collect(event.run_id)
        wake_gate([event.model])

    return router


async def _prove(said: Announcement, versions: SqlVersionStore, files: KeptAnnouncements) -> None:
    """One that is recorded was proven, and its files may have been removed since."""
    if await versions.unpublished([PolicyFolder(said.model, said.version)]):
        await files.prove(said)


@contextmanager
def _refusals_are_poison() -> Iterator[None]:
    try:
        yield
    except (FalseAnnouncement, UnknownModel, VersionConflict, PeerRefused) as error:
        raise PoisonMessage(str(error)) from error


def _traceparent() -> str:
    """The span in which the event is handled: what the gate does later belongs below it."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")
