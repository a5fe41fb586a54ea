"""What the trainer announced about versions, as it keeps it beside their files."""

import policy_files
from blob_store import BlobError, BlobStore
from checkpoint_registry import wire
from checkpoint_registry.domain.models import Checkpoint, PublishedVersion
from identities.objects import PolicyFolder
from policy_files import AnnouncedVersions, Announcement, FalseAnnouncement, KeptFacts
from signed_objects import UnprovenBlob
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished
from upcycle.errors import Unavailable


class KeptAnnouncements:
    """Each method raises Unavailable, also for a fact that cannot be read."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._facts = KeptFacts(store)

    async def prove(self, said: Announcement) -> None:
        """Raises FalseAnnouncement unless the files of the version are stored and are those of the fact."""
        try:
            await said.check_stored(self._store)
        except UnprovenBlob as error:
            raise said.false(str(error)) from error
        except BlobError as error:
            what = f"{said.model}@v{said.version}"
            raise Unavailable(f"the manifest of {what} cannot be read: {error}") from error

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
        except FalseAnnouncement as error:
            raise Unavailable(str(error)) from error

    async def saved(self, folder: PolicyFolder) -> tuple[Checkpoint, bool] | None:
        """The candidate, and whether no gate is to judge it; None where the version was removed."""
        fact = await self._read(CheckpointSaved, folder)
        try:
            return None if fact is None else (wire.candidate_from_wire(fact), fact.keeps_head)
        except FalseAnnouncement as error:
            raise Unavailable(str(error)) from error

    async def _read(self, kind: type[policy_files.Fact], folder: PolicyFolder) -> policy_files.Fact | None:
        try:
            fact = await self._facts.read(kind, folder)
            if fact is not None and (fact.model, fact.version) != folder:
                raise policy_files.CorruptPolicy(f"it is of {fact.model}@v{fact.version}")
            return fact
        except (BlobError, policy_files.CorruptPolicy) as error:
            raise Unavailable(f"what was announced about {folder} cannot be read: {error}") from error
