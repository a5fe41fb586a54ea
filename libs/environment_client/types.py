"""What a lease is, and what an opened environment shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from upcycle.api.trajectory.v1.trajectory_pb2 import GuidancePart, Message, StateSnapshot
from upcycle.judge_calls import JudgeQuestion, JudgeReply


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
    tool_limits: Mapping[str, float] = field(default_factory=dict)
    """Seconds that a call may take, of the tools that say so themselves."""
    first_state: StateSnapshot | None = None
    """Of the environment at the prompt; None where it declares none."""
    guidance: str = ""
    """The end of the prompt of a guided episode."""
    guidance_parts: tuple[GuidancePart, ...] = ()
    """The parts of that guidance with their kinds; empty where an older fleet does not send them."""


@dataclass(frozen=True, slots=True)
class JudgeAsked:
    """A grade waits for the answer of a judge."""

    question_id: str
    question: JudgeQuestion


_NOTHING: Final = JudgeReply("")


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """To one question. failure: no answer came, and the episode is missing. refusal: no judge of that name is
    asked here."""

    question_id: str
    reply: JudgeReply = _NOTHING
    failure: str = ""
    refusal: str = ""
