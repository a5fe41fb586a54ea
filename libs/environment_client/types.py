"""What a lease is, and what an opened environment shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from upcycle.api.trajectory.v1.trajectory_pb2 import Message


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use one environment process."""

    lease_id: str
    address: str
    """host:port of the replica that holds it."""
    limits_calls: bool = False
    """Whether the replica ends a call after the time that its caller gives; one of 0.3.0 does not."""


@dataclass(frozen=True, slots=True)
class OpenedEnvironment:
    """A running environment that waits for the policy."""

    lease: Lease
    prompt: tuple[Message, ...]
    """What the scenario yielded first."""
    tools: tuple[Mapping[str, Any], ...]
    """Function specs in the form of OpenAI's API."""
    source_digest: str = ""
    """Of the code that answers and judges; "" where it is not known."""
