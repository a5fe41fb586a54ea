"""Stored trajectory bodies: protobuf in one zstd frame, at a key that follows from the episode."""

from trajectory_body.codec import MAX_PLAIN_BYTES, MalformedBody, body_key, pack, unpack
from trajectory_body.messages import tool_calls, turn_messages

__all__ = ["MAX_PLAIN_BYTES", "MalformedBody", "body_key", "pack", "tool_calls", "turn_messages", "unpack"]
