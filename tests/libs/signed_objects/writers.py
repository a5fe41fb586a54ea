"""Keys and stores for tests: each writer has a key, and all readers trust all of them."""

import json
from collections.abc import Iterable
from pathlib import Path

from blob_store import BlobStore
from identities import objects
from service_kit.groups import SigningSettings
from signed_objects import SignedStore, signed_store
from signed_objects.keys import key_file, load_or_make, trusted_file
from signed_objects.signature import place


class Keys:
    """The keys of one platform, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids = load_or_make(folder)

    def settings(self, writer: str | None = None, *, unsigned: str = "refuse") -> SigningSettings:
        key = None if writer is None else key_file(self.folder, writer)
        return SigningSettings.model_validate(
            {"key": key, "trusted": trusted_file(self.folder), "unsigned": unsigned}
        )

    def store(self, raw: BlobStore, writer: str | None = None, *, unsigned: str = "refuse") -> SignedStore:
        """The store of a process: of a writer, else of one that only reads."""
        return signed_store(raw, self.settings(writer, unsigned=unsigned), "test")


def signature_key(key: str, data: bytes) -> str:
    return place(key, data)


async def signer_of(raw: BlobStore, key: str) -> str:
    """Id of the key that an object is signed with."""
    data = await raw.read(key)
    assert data is not None
    stored = await raw.read(place(key, data))
    assert stored is not None, f"{key} has no signature"
    return str(json.loads(stored)["key"])


def signed_keys(keys: Iterable[str]) -> set[str]:
    return {key for key in keys if objects.is_signed(key)}
