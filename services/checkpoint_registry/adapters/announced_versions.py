"""What the trainer announced about versions, as it keeps it beside their files."""

import policy_files
from blob_store import BlobError, BlobStore
from checkpoint_registry import wire
from checkpoint_registry.domain.models import Checkpoint, PublishedVersion
from identities.objects import PolicyFolder
from policy_files import AnnouncedVersions, KeptFacts
from service_kit.errors import InvalidRequest
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished
from upcycle.errors import Unavailable


class KeptAnnouncements:
    """Each method raises Unavailable, also for a fact that cannot be read."""

    def __init__(self, store: BlobStore) -> None:
        self._facts = KeptFacts(store)

    async def all(self) -> AnnouncedVersions:
        """Versions that were published, and those that asked to be judged."""
        try:
            return await self._facts.announced()
        except BlobError as error:
            raise Unavailable(f"published versions cannot be listed: {error}") from error

    async def published(self, folder: PolicyFolder) -> PublishedVersion | None:
        """None where the version was removed meanwhile."""
        fact = await self._read(PolicyPublished, folder)
        try:
            return None if fact is None else wire.version_from_wire(fact)
        except InvalidRequest as error:
            raise Unavailable(str(error)) from error

    async def saved(self, folder: PolicyFolder) -> tuple[Checkpoint, bool] | None:
        """The candidate, and whether no gate is to judge it; None where the version was removed."""
        fact = await self._read(CheckpointSaved, folder)
        try:
            return None if fact is None else (wire.candidate_from_wire(fact), fact.keeps_head)
        except InvalidRequest as error:
            raise Unavailable(str(error)) from error

    async def _read(self, kind: type[policy_files.Fact], folder: PolicyFolder) -> policy_files.Fact | None:
        try:
            return await self._facts.read(kind, folder)
        except (BlobError, policy_files.CorruptPolicy) as error:
            raise Unavailable(f"what was announced about {folder} cannot be read: {error}") from error
