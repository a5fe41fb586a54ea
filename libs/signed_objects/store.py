"""A store that signs what leads to weights and training states, and gives out none of it that is not proven.

Which keys are signed is one rule, `identities.objects.is_signed`; every other key passes. The signature is
stored before its object, so an object that is there has one.
"""

import logging
from pathlib import Path

from blob_store import BlobRef, BlobStat, BlobStore
from identities import objects
from service_kit.groups import SigningSettings
from service_kit.settings import SettingsError
from signed_objects.errors import BeyondScope, SigningKeyRefused, UnprovenBlob
from signed_objects.keys import SigningKey, TrustedKeys
from signed_objects.proof import doubt
from signed_objects.signature import place, sign

log = logging.getLogger(__name__)


class SignedStore:
    """A BlobStore around another one. Where keys are trusted, reading raises UnprovenBlob, and writing
    BeyondScope for what this process's key may not sign."""

    def __init__(
        self,
        store: BlobStore,
        *,
        signer: SigningKey | None = None,
        trusted: TrustedKeys | None = None,
        accepts_unsigned: bool = False,
    ) -> None:
        """signer: None: nothing is signed. trusted: None: nothing is proven. accepts_unsigned: what no
        trusted key has signed passes, with a warning; a false signature of a trusted key never does."""
        self._store = store
        self._signer = signer
        self._trusted = trusted
        self._accepts_unsigned = accepts_unsigned

    async def put(self, key: str, data: bytes) -> BlobRef:
        """See BlobStore."""
        await self._sign(key, data)
        return await self._store.put(key, data)

    async def put_if_absent(self, key: str, data: bytes) -> BlobRef | None:
        """See BlobStore. The signature of what lost stays beside the other object, and proves nothing."""
        await self._sign(key, data)
        return await self._store.put_if_absent(key, data)

    async def put_file(self, key: str, path: Path, *, sha256: str | None = None) -> BlobRef:
        """See BlobStore."""
        _refuse_file(key)
        return await self._store.put_file(key, path, sha256=sha256)

    async def get(self, ref: BlobRef) -> bytes:
        """See BlobStore."""
        data = await self._store.get(ref)
        await self._prove(ref.key, data)
        return data

    async def get_file(self, ref: BlobRef, path: Path) -> None:
        """See BlobStore."""
        _refuse_file(ref.key)
        await self._store.get_file(ref, path)

    async def read(self, key: str) -> bytes | None:
        """See BlobStore."""
        data = await self._store.read(key)
        if data is not None:
            await self._prove(key, data)
        return data

    async def stat(self, key: str) -> BlobStat | None:
        """See BlobStore."""
        return await self._store.stat(key)

    async def list(self, prefix: str) -> tuple[str, ...]:
        """See BlobStore."""
        return await self._store.list(prefix)

    async def delete(self, key: str) -> None:
        """See BlobStore. Who lists a folder deletes its signatures, too."""
        await self._store.delete(key)

    async def _sign(self, key: str, data: bytes) -> None:
        if self._signer is not None and objects.is_signed(key):
            if self._trusted is not None and (why := self._trusted.refusal(self._signer.id, key)):
                raise BeyondScope(f"{key} is not stored: this process signs with {why}")
            await self._store.put(place(key, data), sign(self._signer, key, data).to_bytes())

    async def _prove(self, key: str, data: bytes) -> None:
        if self._trusted is None or not objects.is_signed(key):
            return
        stored = await self._store.read(place(key, data))
        if (why := doubt(self._trusted, key, data, stored)) is None:
            return
        if self._accepts_unsigned and not why.is_false:
            log.warning("unsigned_object_accepted", extra={"key": key, "why": why.text})
            return
        raise UnprovenBlob(f"{key} is not used: {why.text}; {why.way_out}")


def signed_store(store: BlobStore, settings: SigningSettings, program: str) -> SignedStore:
    """The store of a process with these settings. Raises SettingsError, as a process refuses to start."""
    try:
        signer = None if settings.key is None else SigningKey.read(settings.key)
        trusted = None if settings.trusted is None else TrustedKeys.read(settings.trusted)
    except SigningKeyRefused as error:
        raise SettingsError(program, [str(error)]) from error
    if signer is not None and trusted is not None and signer.id not in trusted.keys:
        raise SettingsError(
            program,
            [
                f"the key {signer.id} of UPCYCLE_SIGNING_KEY={settings.key} is not among those of "
                f"UPCYCLE_SIGNING_TRUSTED={settings.trusted}: this process would refuse what it wrote; "
                "add its public half"
            ],
        )
    return SignedStore(store, signer=signer, trusted=trusted, accepts_unsigned=settings.unsigned == "accept")


def _refuse_file(key: str) -> None:
    """Signed objects are small, and are read and written as bytes: as files they would pass unproven."""
    if objects.is_signed(key):
        raise ValueError(f"{key} is signed: read and write it as bytes, not as a file")
