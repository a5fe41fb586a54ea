"""The identity of an episode crosses the wire whole, or is refused by the name of its field."""

import pytest

from episodes import EpisodeIdentity, MalformedIdentity, Purpose, Split, identity_from_wire, identity_to_wire
from upcycle.api.common.v1 import common_pb2

IDENTITY = EpisodeIdentity(
    episode_id="e1",
    run_id="run-1",
    group_id="run-1-g00000",
    member=3,
    group_size=4,
    model="incident",
    purpose=Purpose.TRAIN,
    split=Split.TRAIN,
    task_slug="disk",
    task_digest="d" * 64,
    family="storage",
    tenant="acme",
    guided_after="run-1-g00001-e000-a0",
    taskset="disks@2",
    labels=("env:prod", "flow:refund"),
)


def test_every_field_crosses_the_wire() -> None:
    message = identity_to_wire(IDENTITY)
    assert len(message.ListFields()) == len(message.DESCRIPTOR.fields)
    assert message.trajectory_id == "traj-e1"
    assert identity_from_wire(message) == IDENTITY


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("episode_id", "", "no episode_id"),
        ("tenant", "", "no tenant"),
        ("trajectory_id", "traj-e2", "of episode e1 it is 'traj-e1'"),
        ("member", 4, "member is 4 of a group of 4"),
        ("member", -1, "member is -1"),
        ("purpose", common_pb2.PURPOSE_UNSPECIFIED, "purpose 0"),
        (
            "purpose",
            common_pb2.PURPOSE_EVAL,
            "episode e1 of an evaluation is guided, after run-1-g00001-e000-a0: guidance is for training",
        ),
        ("split", common_pb2.SPLIT_UNSPECIFIED, "split 0"),
    ],
)
def test_an_identity_that_cannot_be_is_refused_by_name(field: str, value: object, says: str) -> None:
    message = identity_to_wire(IDENTITY)
    setattr(message, field, value)
    with pytest.raises(MalformedIdentity, match=says):
        identity_from_wire(message)
