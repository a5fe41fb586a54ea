"""What a fact says about a version, and whether it is so: a false one must not become the newest."""

import re
from dataclasses import dataclass
from typing import Final

from blob_store import BlobRef, BlobStore
from identities import objects
from identities.errors import InvalidIdentity
from policy_files.errors import FalseAnnouncement, InvalidManifest
from policy_files.manifest import manifest_from_bytes

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Announcement:
    """As much of a fact as tells a version from another. fact: its type, for messages."""

    fact: str
    model: str
    version: int
    digest: str
    manifest: BlobRef

    def check(self) -> None:
        """Raises FalseAnnouncement where the fact contradicts itself, whatever is stored."""
        if self.version < 1:
            raise self.false(f"version is {self.version}; trained versions count from 1")
        for what, digest in (("digest", self.digest), ("the manifest's sha256", self.manifest.sha256)):
            if not _SHA256.fullmatch(digest):
                raise self.false(f"{what} is {digest[:80]!r}, expected 64 hexadecimal digits")
        try:
            key = objects.policy_manifest(self.model, self.version)
        except InvalidIdentity as error:
            raise self.false(str(error)) from error
        if self.manifest.key != key:
            raise self.false(f"its manifest is said to be at {self.manifest.key[:200]!r}, expected {key!r}")

    async def check_stored(self, store: BlobStore) -> None:
        """Raises FalseAnnouncement unless the version's manifest is stored and says the same; and the store's
        errors. A manifest is stored before its version is announced."""
        self.check()
        key = self.manifest.key
        if (data := await store.read(key)) is None:
            raise self.false(f"no manifest is stored at {key!r}")
        try:
            stored = manifest_from_bytes(data)
        except InvalidManifest as error:
            raise self.false(f"what is stored at {key!r} is none of its manifests: {error}") from error
        if (stored.model, stored.version, stored.digest) != (self.model, self.version, self.digest):
            raise self.false(
                f"it says digest {self.digest}; the manifest at {key!r} is of "
                f"{stored.model}@v{stored.version} with {stored.digest}"
            )

    def false(self, why: str) -> FalseAnnouncement:
        """The error for this fact."""
        return FalseAnnouncement(f"{self.fact} {self.model}@v{self.version}: {why}; nothing was recorded")
