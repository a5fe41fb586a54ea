"""The trainer's facts on the bus, each under an id that follows from its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from blob_store import BlobRef
from event_bus import Delivery
from event_bus.errors import EventTooLarge, UnknownEvent
from grpo_trainer import wire
from grpo_trainer.domain.errors import Unpublishable
from grpo_trainer.domain.failures import Failure
from grpo_trainer.domain.published import PublishedEndings, PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import Settlement
from upcycle.api.taskset.v1.events_pb2 import RunStopping
from upcycle.api.training.v1.events_pb2 import GroupSettled

ENDINGS: Final = (GroupSettled, RunStopping)
"""What the trainer looks up in the stream before it publishes a step."""


class Bus(Protocol):
    """The part of EventBus that is used here."""

    async def publish(self, event: Message, *, model: str, event_id: str) -> object:
        """Returns when the fact is durable."""

    async def stored(
        self, events: Sequence[type[Message]], *, after_sequence: int, model: str | None
    ) -> Sequence[Delivery[Any]]:
        """Facts that the stream holds now, in order."""


class BusFacts:
    """The trainer's events; each method returns when its event is stored, and may be repeated."""

    def __init__(
        self, bus: Bus, *, now: Callable[[], datetime], check: Callable[[str], object] = lambda _: None
    ) -> None:
        """check: raises Unavailable unless this process surely holds the model."""
        self._bus = bus
        self._now = now
        self._check = check

    async def _publish(self, model: str, fact: tuple[Message, str], *, is_checked: bool = True) -> None:
        event, event_id = fact
        if is_checked:
            self._check(model)
        await self._bus.publish(event, model=model, event_id=event_id)

    async def publish_settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """The end of a group."""
        await self._publish(spec.model, wire.group_settled(spec, settlement, self._now()))

    async def endings_since(self, spec: TrainingSpec, sequence: int) -> PublishedEndings:
        """What the stream holds after `sequence` about the end of the run and of its groups."""
        found = await self._bus.stored(ENDINGS, after_sequence=sequence, model=spec.model)
        facts = [delivery.message for delivery in found if delivery.message.run_id == spec.run_id]
        outcomes: dict[str, str] = {}
        for fact in facts:
            if isinstance(fact, GroupSettled):
                outcomes.setdefault(fact.group_id, fact.outcome)
        final_stop = any(isinstance(fact, RunStopping) and fact.is_final for fact in facts)
        return PublishedEndings(outcomes, final_stop=final_stop)

    async def publish_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """A step and what it consumed."""
        await self._publish(spec.model, wire.step_completed(spec, record))

    async def publish_policy(
        self, spec: TrainingSpec, policy: PublishedPolicy, *, step: int, at: datetime
    ) -> None:
        """A version is durable and latest."""
        fact = wire.policy_published(
            spec, version=policy.version, step=step, digest=policy.digest, manifest=policy.manifest, at=at
        )
        await self._publish(spec.model, fact)

    async def publish_checkpoint(
        self,
        spec: TrainingSpec,
        record: StepRecord,
        policy: PublishedPolicy,
        state: BlobRef,
        sources: Mapping[str, int],
        *,
        keeps_head: bool = False,
    ) -> None:
        """A version asks to be judged, unless keeps_head. sources: groups of evaluations in its weights, by
        evaluation."""
        fact = wire.checkpoint_saved(
            spec,
            record,
            digest=policy.digest,
            manifest=policy.manifest,
            state=state,
            sources=sources,
            keeps_head=keeps_head,
        )
        await self._publish(spec.model, fact)

    async def publish_failure(self, failure: Failure) -> None:
        """A session ended without success; the failure is durable, so any trainer may say so. Raises
        Unavailable; Unpublishable where no repeat can help."""
        try:
            await self._publish(failure.model, wire.session_failed(failure), is_checked=False)
        except (EventTooLarge, UnknownEvent) as error:
            raise Unpublishable(str(error)) from error
