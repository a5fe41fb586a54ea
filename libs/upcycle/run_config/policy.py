"""Which weights a run plays."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator
from pydantic.dataclasses import dataclass

from upcycle.run_config.breaking import keep_rules
from upcycle.run_config.gate import CONFIG, Whole
from upcycle.run_config.limits import Limit, Text
from upcycle.run_config.names import Channel
from upcycle.run_config.rules import POLICY_RULES


@dataclass(frozen=True, slots=True, config=CONFIG)
class PolicyChoice:
    """Which weights play: a channel of a model, or exactly one version."""

    model: Annotated[str, Text(1)]
    """slug of the model."""
    channel: Channel | None = Channel.LATEST
    """`latest` (newest published) or `head` (promoted); a pinned version takes its place. A training run
    follows `latest`."""
    pinned_version: Annotated[Whole, Limit(0, 2**62)] | None = None
    """exactly this policy version instead of a channel."""

    @model_validator(mode="after")
    def _check(self) -> PolicyChoice:
        if self.pinned_version is not None:
            object.__setattr__(self, "channel", None)
        keep_rules(self, POLICY_RULES)
        return self
