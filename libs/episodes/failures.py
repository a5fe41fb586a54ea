"""An episode that can have no reward: the error, and the fact that says so."""

import re
from datetime import datetime
from typing import Final

from upcycle.api.common.v1.common_pb2 import EpisodeIdentity, Usage
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.moments import timestamp

_MAX_DETAIL_CHARS: Final = 2000
_UNREADABLE: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class EpisodeBroken(Exception):
    """This episode cannot be played or graded. `kind` travels in `episode.failed`: an EpisodeFailure, or the
    word that the environment sent."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


def episode_failed(
    episode: EpisodeIdentity,
    kind: str,
    detail: str,
    *,
    reported_by: str,
    at: datetime,
    usage: Usage | None = None,
) -> EpisodeFailed:
    """Fact episode.failed. It shares its id with trajectory.graded: the stream keeps the first of the two."""
    return EpisodeFailed(
        episode=episode,
        kind=_UNREADABLE.sub("\ufffd", kind),
        detail=_UNREADABLE.sub("\ufffd", detail[:_MAX_DETAIL_CHARS]),
        reported_by=reported_by,
        failed_at=timestamp(at),
        usage=usage,
    )
