"""The facts that announce a version, kept beside its files.

The stream of facts may be made anew, or reach a bound, before every reader has read them. Who publishes such
a fact stores it here first, so it is here exactly when it may be announced: never for a step that was void.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf import json_format

from blob_store import BlobStore
from identities import objects
from identities.objects import PolicyFolder
from policy_files.errors import CorruptPolicy
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, PolicyPublished

Fact = TypeVar("Fact", PolicyPublished, CheckpointSaved)

_NAMES: Final[Mapping[type[PolicyPublished] | type[CheckpointSaved], str]] = {
    PolicyPublished: objects.PUBLISHED,
    CheckpointSaved: objects.SAVED,
}


@dataclass(frozen=True, slots=True)
class AnnouncedVersions:
    """Versions whose files are whole, by the fact that announces them."""

    published: frozenset[PolicyFolder]
    saved: frozenset[PolicyFolder]


class KeptFacts:
    """Each method raises the store's errors."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    async def keep(self, fact: PolicyPublished | CheckpointSaved) -> None:
        """Store a fact that is about to be published; the same again changes nothing."""
        key = objects.policy_fact(fact.model, fact.version, _NAMES[type(fact)])
        await self._store.put_if_absent(key, json_format.MessageToJson(fact, indent=None).encode())

    async def announced(self) -> AnnouncedVersions:
        """Of all models."""
        keys = await self._store.list(objects.policies())
        whole = set(filter(None, map(objects.parse_policy_manifest, keys)))
        return AnnouncedVersions(_with(objects.PUBLISHED, keys) & whole, _with(objects.SAVED, keys) & whole)

    async def read(self, kind: type[Fact], folder: PolicyFolder) -> Fact | None:
        """What was announced about a version; None where it is gone by now. Raises CorruptPolicy."""
        key = objects.policy_fact(*folder, _NAMES[kind])
        if (data := await self._store.read(key)) is None:
            return None
        try:
            return json_format.Parse(data, kind(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise CorruptPolicy(f"{key} is no {kind.DESCRIPTOR.full_name}: {error}") from error


def _with(name: str, keys: Collection[str]) -> frozenset[PolicyFolder]:
    return frozenset(filter(None, (objects.parse_policy_fact(key, name) for key in keys)))
