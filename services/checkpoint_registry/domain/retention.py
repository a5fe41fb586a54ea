"""Which published versions can be removed. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version in the object store. created_at: None where its files are there without a manifest, because
    its publication never ended. checkpoint_id: of the checkpoint that it is, empty for one in between."""

    model: str
    version: int
    created_at: datetime | None
    checkpoint_id: str = ""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """keep_newest: versions of a model that stay, the ones that a run goes on from among them. min_age: how
    long every version stays."""

    keep_newest: int
    min_age: timedelta


def unneeded(
    published: Sequence[StoredVersion], needed: Collection[int], policy: RetentionPolicy, now: datetime
) -> list[int]:
    """Versions of one model that may go, oldest first.

    needed: versions in the tree, held by engines, and pinned by runs. What the store says about itself comes
    on top: checkpoints stay even if the registry has not recorded them yet. A version whose publication never
    ended may be under way, so it goes only once it is older than the newest that stay.
    """
    newest = sorted(one.version for one in published if one.created_at is not None)[-policy.keep_newest :]
    if not newest:
        return []
    return sorted(
        one.version
        for one in published
        if one.version not in needed
        and one.version < newest[0]
        and not one.checkpoint_id
        and (one.created_at is None or now - one.created_at >= policy.min_age)
    )
