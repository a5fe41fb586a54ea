"""The trainer's facts on the bus, each under an id that follows from its content."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Protocol

from google.protobuf.message import Message

from blob_store import BlobRef
from event_bus import Decision, decide_each
from event_bus.errors import EventTooLarge, UnknownEvent
from grpo_trainer import wire
from grpo_trainer.adapters.boundaries import object_store
from grpo_trainer.domain.errors import Superseded, Unpublishable
from grpo_trainer.domain.failures import Failure
from grpo_trainer.domain.published import PublishedPolicy
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import Settlement
from identities import events as event_ids
from policy_files import KeptFacts
from upcycle.api.training.v1.events_pb2 import CheckpointSaved, GroupSettled, PolicyPublished, StepCompleted

log = logging.getLogger(__name__)
_AUTHOR: Final = "trainer"


class Bus(Protocol):
    """The part of EventBus that is used here."""

    async def publish(
        self, event: Message, *, model: str, event_id: str, author: str = "", again: bool = False
    ) -> object:
        """Returns when the fact is durable. again: of a decision, the stored one is copied once more."""

    async def decide(self, decisions: Sequence[Decision]) -> Sequence[Message | None]:
        """Publishes all or none; returns the stored decision for each."""

    async def standing(self, decision: Decision) -> Message | None:
        """The stored decision about the same thing."""

    async def repeat(self, decision: Decision) -> bool:
        """Copies the stored decision about the same thing once more; False where there is none."""


class BusFacts:
    """The trainer's events; each method returns when its event is stored, and may be repeated."""

    def __init__(
        self,
        bus: Bus,
        kept: KeptFacts,
        *,
        now: Callable[[], datetime],
        check: Callable[[str], object] = lambda _: None,
    ) -> None:
        """kept: facts about versions, for readers whose stream lost them. check: raises Unavailable unless
        this process surely holds the model."""
        self._bus = bus
        self._kept = kept
        self._now = now
        self._check = check

    async def _publish(self, model: str, fact: tuple[Message, str], *, is_checked: bool = True) -> None:
        event, event_id = fact
        if is_checked:
            self._check(model)
        await self._bus.publish(event, model=model, event_id=event_id)

    async def _announce(self, fact: tuple[PolicyPublished | CheckpointSaved, str]) -> None:
        event, _ = fact
        self._check(event.model)
        with object_store(f"what is announced about {event.model} v{event.version}"):
            await self._kept.keep(event)
        await self._publish(event.model, fact)

    async def publish_settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """The end of a group that does not train, unless the planner has ended it."""
        decision = self._settled(spec, settlement)
        (stored,) = await self._decide(spec, [decision])
        if stored is not None and not _agree(stored, decision.event):
            log.warning("group_was_settled", extra={"group_id": settlement.group_id, "stored": _said(stored)})

    async def publish_settled_again(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """Publish the decision about a group to EVENTS again, for a reader that lacks it; ours, if DECISIONS
        has none any more."""
        decision = self._settled(spec, settlement)
        self._check(spec.model)
        await self._bus.publish(
            decision.event, model=spec.model, event_id=decision.event_id, author=_AUTHOR, again=True
        )

    async def repeat_settled(self, spec: TrainingSpec, group_id: str, *, is_offered: bool) -> None:
        """As above, of a group that another process settled. is_offered: it is a group of an evaluation."""
        event_id = event_ids.group_settled(group_id, offered_to=spec.run_id if is_offered else None)
        await self._bus.repeat(Decision(GroupSettled(), spec.model, event_id, _AUTHOR))

    async def publish_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """The ends of all groups of a step, and the step: all of it, or nothing.

        Raises Superseded where one of them is decided otherwise.
        """
        decisions = self._decisions_of(spec, record)
        await decide_each(partial(self._decide, spec), decisions, partial(_check_agreed, record))

    async def confirm_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """Raises Superseded where a group of a step, or the step, is decided otherwise."""
        decisions = self._decisions_of(spec, record)
        stored = await asyncio.gather(*(self._bus.standing(decision) for decision in decisions))
        for decision, found in zip(decisions, stored, strict=True):
            if found is not None:
                _check_agreed(record, decision, found)

    async def _decide(self, spec: TrainingSpec, decisions: Sequence[Decision]) -> Sequence[Message | None]:
        self._check(spec.model)
        return await self._bus.decide(decisions)

    def _decisions_of(self, spec: TrainingSpec, record: StepRecord) -> list[Decision]:
        event, event_id = wire.step_completed(spec, record)
        settled = [self._settled(spec, settlement) for settlement in record.settlements]
        return [*settled, Decision(event, spec.model, event_id, _AUTHOR)]

    def _settled(self, spec: TrainingSpec, settlement: Settlement) -> Decision:
        event, event_id = wire.group_settled(spec, settlement, self._now())
        return Decision(event, spec.model, event_id, _AUTHOR)

    async def publish_policy(
        self,
        spec: TrainingSpec,
        policy: PublishedPolicy,
        *,
        step: int,
        at: datetime,
        state: BlobRef | None = None,
    ) -> None:
        """A version is durable and latest. state: marker of the training state that was saved with it."""
        fact = wire.policy_published(
            spec,
            version=policy.version,
            step=step,
            digest=policy.digest,
            manifest=policy.manifest,
            at=at,
            state=state,
        )
        await self._announce(fact)

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
        await self._announce(fact)

    async def publish_failure(self, failure: Failure) -> None:
        """A session ended without success; the failure is durable, so any trainer may say so. Raises
        Unavailable; Unpublishable where no repeat can help."""
        try:
            await self._publish(failure.model, wire.session_failed(failure), is_checked=False)
        except (EventTooLarge, UnknownEvent) as error:
            raise Unpublishable(str(error)) from error


def _check_agreed(record: StepRecord, decision: Decision, stored: Message) -> None:
    """Raises Superseded where a part of a step is decided otherwise."""
    if not _agree(stored, decision.event):
        raise Superseded(
            f"step {record.step} says {_said(decision.event)}, and {_said(stored)} was decided: the run "
            "was ended without this step, or another trainer took it"
        )


def _agree(one: Message, other: Message) -> bool:
    """Whether two decisions agree; their moments may differ."""
    match one, other:
        case GroupSettled(), GroupSettled():
            return (one.run_id, one.outcome, one.step) == (other.run_id, other.outcome, other.step)
        case StepCompleted(), StepCompleted():
            return (one.version, one.trajectory_ids) == (other.version, other.trajectory_ids)
    return False


def _said(fact: Message) -> str:
    match fact:
        case GroupSettled():
            return f"{fact.group_id} is {fact.outcome}({fact.reason or fact.step})"
        case StepCompleted():
            return f"step {fact.step} made version {fact.version} of {len(fact.trajectory_ids)} trajectories"
    return type(fact).__name__
