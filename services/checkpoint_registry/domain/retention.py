"""Which published versions can be removed. Pure."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version whose files are in the object store. is_whole: its manifest is there; where it is not, its
    publication never ended."""

    model: str
    version: int
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version as its manifest has it. created_at: None where there is no manifest. checkpoint_id: of the
    checkpoint that it is, empty for one in between."""

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


def beyond_newest(listed: Collection[ListedVersion], policy: RetentionPolicy) -> list[int]:
    """Versions of one model that are older than the newest that stay, oldest first.

    A version whose publication never ended may be under way, so it is looked at only here, too.
    """
    newest = sorted(one.version for one in listed if one.is_whole)[-policy.keep_newest :]
    return sorted(one.version for one in listed if newest and one.version < newest[0])


def may_go(stored: StoredVersion, policy: RetentionPolicy, now: datetime) -> bool:
    """Of a version that nothing needs: checkpoints stay even if the registry has not recorded them yet."""
    if stored.checkpoint_id:
        return False
    return stored.created_at is None or now - stored.created_at >= policy.min_age
