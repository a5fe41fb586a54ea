"""Episodes that failed: the error, the fact that one has no reward, the failure that counts as 0."""

import re
from datetime import datetime
from typing import Final

from episodes.endings import ATTRIBUTABLE, EpisodeFailure
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity, Usage
from upcycle.api.taskset.v1.events_pb2 import EpisodeFailed
from upcycle.api.trajectory.v1.trajectory_pb2 import PolicyFailure
from upcycle.moments import timestamp

_MAX_DETAIL_CHARS: Final = 2000
_MAX_TRACEBACK_CHARS: Final = 8000
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

    @property
    def is_attributable(self) -> bool:
        """The policy caused it, provided that it had sampled a token."""
        return self.kind in ATTRIBUTABLE


def episode_failed(
    episode: EpisodeIdentity,
    kind: str,
    detail: str,
    *,
    reported_by: str,
    at: datetime,
    usage: Usage | None = None,
) -> EpisodeFailed:
    """Fact episode.failed. It decides the same as trajectory.graded: the first of the two wins."""
    return EpisodeFailed(
        episode=episode,
        kind=_UNREADABLE.sub("\ufffd", kind),
        detail=_UNREADABLE.sub("\ufffd", detail[:_MAX_DETAIL_CHARS]),
        reported_by=reported_by,
        failed_at=timestamp(at),
        usage=usage,
    )


def policy_failure(kind: str, detail: str) -> PolicyFailure:
    """Why an episode counts as 0: the failure, the rule that attributes it, and what is known of it. kind: an
    attributable EpisodeFailure."""
    rule = ATTRIBUTABLE[EpisodeFailure(kind)]
    text = _UNREADABLE.sub("\ufffd", detail[-_MAX_TRACEBACK_CHARS:])
    return PolicyFailure(kind=kind, rule=rule, detail=text)
