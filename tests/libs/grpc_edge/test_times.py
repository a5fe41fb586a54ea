"""Times that no clock has are refused by the name of their field."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from grpc_edge.times import has_times, wrong_time
from upcycle.api.audit.v1 import service_pb2 as audit
from upcycle.api.taskset.v1 import service_pb2 as pb


@pytest.mark.parametrize(
    ("seconds", "nanos", "is_time"),
    [
        (0, 0, True),
        (253402300799, 999_999_999, True),
        (253402300800, 0, False),
        (-(2**63), 0, False),
        (1, -1, False),
    ],
)
def test_a_time_is_within_the_years_1_to_9999(seconds: int, nanos: int, is_time: bool) -> None:
    request = audit.ListEntriesRequest(since=Timestamp(seconds=seconds, nanos=nanos))
    said = wrong_time(request)
    assert (said is None) is is_time
    assert is_time or f"ListEntriesRequest.since is no time: {seconds} s" in str(said)


def test_messages_without_times_are_not_searched() -> None:
    assert not has_times(pb.GetRunRequest.DESCRIPTOR)
    assert has_times(pb.GetRunResponse.DESCRIPTOR)
