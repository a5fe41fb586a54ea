"""Moments as protobuf messages, and back."""

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(moment: datetime) -> Timestamp:
    """An aware moment."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def moment_of(stamp: Timestamp) -> datetime:
    """In UTC."""
    return stamp.ToDatetime(UTC)
