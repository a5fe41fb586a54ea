"""TrajectoryBody <-> stored bytes. Reading is bounded, and fails with one error only, whatever the bytes."""

import threading
from typing import Final

import zstandard
from google.protobuf.message import DecodeError

from upcycle.api.trajectory.v1.trajectory_pb2 import TrajectoryBody

MAX_PLAIN_BYTES: Final = 256 * 1024 * 1024
"""Largest body after decompression."""
_LEVEL: Final = 3
_OF_THREAD: Final = threading.local()
"""A compressor costs as much to make as to use, and serves one thread."""


class MalformedBody(ValueError):
    """The bytes are not a trajectory body; reading them again will not help."""


def pack(body: TrajectoryBody) -> bytes:
    """Bytes to store; equal bodies give equal bytes."""
    compressor: zstandard.ZstdCompressor | None = getattr(_OF_THREAD, "compressor", None)
    if compressor is None:
        compressor = _OF_THREAD.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    packed: bytes = compressor.compress(body.SerializeToString(deterministic=True))
    return packed


def unpack(data: bytes) -> TrajectoryBody:
    """The body in stored bytes. Raises MalformedBody."""
    try:
        size = zstandard.get_frame_parameters(data).content_size
        # The frame header decides how much is allocated, so it is read before anything else.
        if size > MAX_PLAIN_BYTES:
            raise MalformedBody(f"the body claims {size} bytes, limit {MAX_PLAIN_BYTES}")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_PLAIN_BYTES)
        body = TrajectoryBody.FromString(plain)
    except (zstandard.ZstdError, DecodeError) as error:
        raise MalformedBody(f"{len(data)} bytes are not a trajectory body: {error}") from error
    if not body.episode.trajectory_id or not body.episode.episode_id:
        raise MalformedBody("the body names no trajectory; an empty object is not a record")
    return body
