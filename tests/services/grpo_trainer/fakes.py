"""What surrounds a trainer in tests: a stream of facts, a bus that remembers, a clock, heads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from blob_store import BlobRef, MemoryBlobStore
from blob_store import ref as blob_ref
from event_bus import Decision, Delivery
from grpo_trainer.adapters.policies import HeldOutTasks, PolicyCache, RegistryPolicies
from grpo_trainer.domain.errors import InvalidTrainingSpec
from grpo_trainer.domain.spec import TrainingSpec
from grpo_trainer.domain.states import BasePolicy
from grpo_trainer.domain.steps import StepRecord
from grpo_trainer.domain.trajectories import GradedTrajectory, Settlement
from grpo_trainer.telemetry import TrainerInstruments
from identities.events import policy_published
from upcycle.api.training.v1 import events_pb2 as training_events

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


@dataclass
class Clock:
    """now(): a second later each time it is asked."""

    ticks: Iterator[int] = field(default_factory=itertools.count)

    def __call__(self) -> datetime:
        return START + timedelta(seconds=next(self.ticks))


class Stream:
    """The stream of facts: what the test appends, replayed from any sequence, then followed."""

    def __init__(self) -> None:
        self.facts: list[Delivery[Any]] = []
        self._more = asyncio.Event()

    def append(self, event: Message) -> int:
        """Add a fact; returns its sequence."""
        sequence = len(self.facts) + 1
        headers = {"traceparent": f"00-{sequence:032x}-{sequence:016x}-01"}
        self.facts.append(Delivery(event, "", f"e{sequence}", sequence, 1, START, headers))
        self._more.set()
        return sequence

    async def replay(
        self, events: Sequence[type[Message]], *, after_sequence: int
    ) -> AsyncIterator[Delivery[Any]]:
        at = after_sequence
        while True:
            while at < len(self.facts):
                at += 1
                if isinstance(self.facts[at - 1].message, tuple(events)):
                    yield self.facts[at - 1]
            self._more.clear()
            await self._more.wait()

    async def stored(
        self,
        events: Sequence[type[Message]],
        *,
        after_sequence: int,
        model: str | None,
        must_fit: bool = False,
    ) -> list[Delivery[Any]]:
        """What was appended so far, of whichever model."""
        return [one for one in self.facts[after_sequence:] if isinstance(one.message, tuple(events))]


class Recorder:
    """Keeps what the trainer published; equal ids must be equal facts, as far as the world can see. Of
    decisions the first stands, and what stands by another's word is no contradiction."""

    def __init__(self) -> None:
        self.events: dict[str, Message] = {}
        self.order: list[str] = []
        self.by_others: set[str] = set()
        self.published: asyncio.Event = asyncio.Event()

    async def publish(
        self, event: Message, *, model: str, event_id: str, author: str = "", again: bool = False
    ) -> object:
        known = self.events.get(event_id)
        if known is not None and event_id not in self.by_others:
            assert _timeless(known) == _timeless(event), f"{event_id} was published with another content"
        self.events.setdefault(event_id, event)
        self.order.append(event_id)
        self.published.set()
        return None

    async def decide(self, words: Sequence[Decision]) -> list[Message | None]:
        """As the bus: all words or none."""
        stand = [self.events.get(word.event_id) for word in words]
        for word, found in zip(words, stand, strict=True):
            if found is not None and word.event_id not in self.by_others:
                self.check(found, word)
        if any(stand):
            return stand
        for word in words:
            self.events[word.event_id] = word.event
            self.order.append(word.event_id)
        self.published.set()
        return [word.event for word in words]

    async def standing(self, word: Decision) -> Message | None:
        return self.events.get(word.event_id)

    async def repeat(self, word: Decision) -> bool:
        """As the bus: what stands is in the stream once more."""
        if word.event_id in self.events:
            self.order.append(word.event_id)
            self.published.set()
        return word.event_id in self.events

    def check(self, known: Message, word: Decision) -> None:
        """What the trainer said before must be what it says again."""
        assert _timeless(known) == _timeless(word.event), f"{word.event_id} was decided with another content"

    def decided_by_another(self, event: Message, event_id: str) -> None:
        """The planner, or another trainer, decided, unless it was too late."""
        if event_id not in self.events:
            self.events[event_id] = event
            self.by_others.add(event_id)
            self.published.set()

    def of(self, kind: type[Message]) -> list[Any]:
        """Events of one type, in the order in which they were first published."""
        return [event for event in self.events.values() if isinstance(event, kind)]


def _timeless(event: Message) -> bytes:
    copy = type(event)()
    copy.CopyFrom(event)
    if isinstance(copy, training_events.GroupSettled):
        copy.ClearField("settled_at")
    return copy.SerializeToString(deterministic=True)


class Instruments(TrainerInstruments):
    """Counts; the real ones are tested where spans are."""

    @contextmanager
    def step(
        self,
        spec: TrainingSpec,
        step: int,
        trace_headers: Mapping[str, str],
        trajectories: Sequence[GradedTrajectory],
    ) -> Iterator[str]:
        yield "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

    def count_step(self, spec: TrainingSpec, record: StepRecord) -> None:
        """Nothing."""

    def count_settled(self, spec: TrainingSpec, settlement: Settlement) -> None:
        """Nothing."""


class Policies(RegistryPolicies):
    """The real publishing and fetching; the head is what the test says."""

    def __init__(
        self,
        store: MemoryBlobStore,
        cache_dir: Path,
        heads: dict[str, BasePolicy],
        check: Callable[[str], object] = lambda _: None,
        published: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """published: facts by event id; the registry has recorded each of them."""
        self._check = check
        self._published = published
        self._store = store
        self.cache = PolicyCache(store, cache_dir, in_use=lambda: ())
        self._heads = heads

    async def head(self, model: str) -> BasePolicy:
        if model not in self._heads:
            raise InvalidTrainingSpec(f"model {model!r} is not registered")
        return self._heads[model]

    async def recorded_state(self, model: str, version: int) -> BlobRef | None:
        return recorded_state(self._published, model, version)


def recorded_state(published: Mapping[str, Any], model: str, version: int) -> BlobRef | None:
    """As the registry would say it, by the facts that it got."""
    fact = published.get(policy_published(model, version))
    if fact is None or not fact.HasField("training_state"):
        return None
    return blob_ref.from_wire(fact.training_state)


class HeldOut(HeldOutTasks):
    """Digests by taskset."""

    def __init__(self, digests: Mapping[str, tuple[str, ...]]) -> None:
        self._digests = digests

    async def digests(self, taskset: str) -> tuple[str, ...]:
        return self._digests[taskset]
