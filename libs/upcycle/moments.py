"""Moments as protobuf messages."""

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp


def timestamp(moment: datetime) -> Timestamp:
    """An aware moment."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
