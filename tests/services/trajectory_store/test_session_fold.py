"""The ledger's rules for the recorded sessions of clients."""

from itertools import permutations

from tests.services.trajectory_store import events
from tests.services.trajectory_store.events import EVAL
from tests.services.trajectory_store.test_ledger_fold import only

from episodes import EpisodeIdentity, Purpose, Split, identity_to_wire
from upcycle.api.common.v1 import common_pb2
from upcycle.api.trajectory.v1 import events_pb2 as pb


def test_a_recorded_session_is_counted_from_its_first_call_and_its_grade_names_group_and_split() -> None:
    episode = EpisodeIdentity(
        episode_id="session-1",
        run_id="sessions-key",
        group_id="session-1",
        member=0,
        group_size=1,
        model="incident",
        purpose=Purpose.EVAL,
        split=Split.UNASSIGNED,
        task_slug="session",
        task_digest="d",
        family="default",
        labels=("env:prod", "flow:refund"),
    )
    opened = pb.RecordedSessionOpened(episode=identity_to_wire(episode))
    recorded, graded = events.recorded(1), events.graded(1, purpose=EVAL)
    expired = pb.RecordedSessionExpired(episode=opened.episode, reason="ungraded")
    recorded.episode.CopyFrom(opened.episode)
    graded.episode.CopyFrom(opened.episode)
    graded.episode.group_id, graded.episode.split = "sessions-key-g", common_pb2.SPLIT_TRAIN
    for path in permutations([opened, recorded, graded]):
        row = only(*path)
        assert isinstance(row.identity, EpisodeIdentity)
        assert (row.label, row.identity.group_id, row.identity.split) == (
            "evaluated",
            "sessions-key-g",
            Split.TRAIN,
        )
        assert row.identity.labels == ("env:prod", "flow:refund")
    assert only(opened).label == "requested"
    assert only(opened, recorded, expired).label == "excluded(ungraded)"


def test_labels_stay_where_a_gateway_of_the_version_before_names_none() -> None:
    opened = pb.RecordedSessionOpened(episode=events.identity(1, run="sessions-key00001", purpose=EVAL))
    opened.episode.labels.append("flow:refund")
    graded = events.graded(1, run="sessions-key00001", purpose=EVAL)
    assert not graded.episode.labels
    for path in permutations([opened, graded, events.recorded(1, run="sessions-key00001", purpose=EVAL)]):
        row = only(*path)
        assert isinstance(row.identity, EpisodeIdentity)
        assert row.identity.labels == ("flow:refund",)
