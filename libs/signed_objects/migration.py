"""Signs what lies in a store and no trusted key has signed: what was written before there were keys, and what
is signed with a key that is given up. Only an operator does this, with the operator's key.

It cannot know who wrote an object. It reads each one as its reader would, so that nothing is signed which
contradicts itself or lies in another place than it says; a person looks at the rest.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from blob_store import BlobStore
from identities import objects
from signed_objects.contents import fault_in
from signed_objects.keys import SigningKey, TrustedKeys
from signed_objects.proof import Doubt, doubt
from signed_objects.signature import place, sign
from upcycle.errors import UpcycleError

_AT_ONCE: Final = 16


class NotSigned(UpcycleError, ValueError):
    """Objects cannot be signed as asked; none was."""

    kind = "not_signed"


@dataclass(frozen=True, slots=True)
class Unproven:
    """An object that its readers refuse. broken: why it must not be signed; empty where nothing is seen."""

    key: str
    data: bytes
    doubt: Doubt
    has_signature: bool
    broken: str


async def unproven(
    store: BlobStore, trusted: TrustedKeys, *, given_up: Collection[str] = ()
) -> tuple[int, list[Unproven]]:
    """How many signed objects there are, and those that are not proven, by key. given_up: ids of keys whose
    signatures do not count."""
    counting = TrustedKeys(
        {one: key for one, key in trusted.keys.items() if one not in given_up}, trusted.names, trusted.kinds
    )
    keys = [key for key in await store.list("") if objects.is_signed(key)]
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(key: str) -> Unproven | None:
        async with limit:
            if (data := await store.read(key)) is None:
                return None  # it was removed meanwhile
            stored = await store.read(place(key, data))
        found = doubt(counting, key, data, stored)
        if found is None:
            return None
        return Unproven(key, data, found, stored is not None, fault_in(key, data))

    found = await asyncio.gather(*map(one, keys))
    return len(keys), [each for each in found if each is not None]


async def sign_all(store: BlobStore, operator: SigningKey, found: Sequence[Unproven]) -> None:
    """Sign each of them. Raises NotSigned, before the first, where one is broken."""
    if broken := [one for one in found if one.broken]:
        raise NotSigned(
            f"{len(broken)} objects are not what their place says, and none was signed; the first: "
            f"{broken[0].key}: {broken[0].broken}",
            "remove them, or put back what was there from a backup",
        )
    for one in found:
        await store.put(place(one.key, one.data), sign(operator, one.key, one.data).to_bytes())
