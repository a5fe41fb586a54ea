"""Canary releases: which conversations are answered by the checkpoint that is released. Pure.

A conversation is its session, else its API key and its beginning, and always falls on the same side while a
version is released; a larger share only adds to those that meet it. No state is kept, so replicas agree.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from model_gateway.domain.calls import VERSION_HEADER, CompletionCall

_RANGE: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Canary:
    """A version beside head, its share of the conversations, and the share of the requests that it answers
    unseen where head answers them."""

    version: int
    share: float
    shadow_share: float = 0.0

    def meets(self, model: str, conversation: str) -> bool:
        """Whether the version answers in this conversation."""
        return _point(f"{model}@v{self.version}\0{conversation}") < self.share

    def shadows(self, request_id: str) -> bool:
        """Whether the version is sent a request that head answers."""
        return _point(request_id) < self.shadow_share


def _point(name: str) -> float:
    """Between 0 and 1, the same for the same name and for different ones as good as drawn."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / _RANGE


def names_a_version(call: CompletionCall, headers: Mapping[str, str]) -> bool:
    """Whether a request says which version answers, be it head: a canary release leaves it alone."""
    return call.target.version is not None or "@" in str(call.body.get("model")) or VERSION_HEADER in headers


def conversation_of(session_id: str | None, key_id: str, body: Mapping[str, Any]) -> str:
    """The session; without one the key and how the conversation begins: its messages up to the first of a
    user, or its prompt."""
    if session_id is not None:
        return f"session {session_id}"
    return f"key {key_id} {hashlib.sha256(orjson.dumps(_beginning(body))).hexdigest()}"


def _beginning(body: Mapping[str, Any]) -> Any:
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body.get("prompt") or body.get("token_ids")
    for number, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return messages[: number + 1]
    return messages[:1]
