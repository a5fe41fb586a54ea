"""What an environment prints travels in `episode.failed` as text that every store can hold."""

from datetime import UTC, datetime

from episodes.failures import episode_failed
from upcycle.api.common.v1.common_pb2 import EpisodeIdentity


def test_control_characters_and_halves_of_characters_do_not_travel() -> None:
    kind, detail = "tool\0broke", "it printed:\n\t\0\x1b[31m\x9fé🙂\ud800"
    at = datetime(2026, 11, 22, tzinfo=UTC)
    fact = episode_failed(EpisodeIdentity(episode_id="e1"), kind, detail, reported_by="sampler", at=at)
    assert fact.kind == "tool\ufffdbroke"
    assert fact.detail == "it printed:\n\t\ufffd\ufffd[31m\ufffdé🙂\ufffd"
