"""Stored trajectory bodies: protobuf in one zstd frame, and their messages in the form of OpenAI's API."""

from trajectory_body.codec import MAX_PLAIN_BYTES, MalformedBody, pack, unpack
from trajectory_body.messages import body_messages, prompt_message, tool_calls, turn_messages

__all__ = [
    "MAX_PLAIN_BYTES",
    "MalformedBody",
    "body_messages",
    "pack",
    "prompt_message",
    "tool_calls",
    "turn_messages",
    "unpack",
]
