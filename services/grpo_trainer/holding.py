"""Which models this trainer process holds. Several processes share the models; each model is held by one.

The lease on a model lies in the object store: a token, which only grows, with the name of its holder. A
holder says that it lives by a record that it replaces several times per `lease_s`; the others take its models
when that record did not change for `lease_s` on their own clock, or when it says that the holder leaves.

A lease decides who should work, not who may write. What a process that lost its lease without knowing it
still writes is refused where it counts: `StepStates.claim` says how.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from grpo_trainer.adapters.trainers_store import TrainersStore
from grpo_trainer.domain.errors import ModelBusy
from grpo_trainer.domain.trainers import StartingPoint, TrainerRecord, Watch, latest_starting_point
from grpo_trainer.retrying import RetryUntilAvailable
from service_kit.clock import new_id
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

_BEATS: Final = 5
"""Records per `lease_s`."""
_SURE: Final = 0.75
"""Share of `lease_s` during which a record that was written proves that no other process took a lease."""
_TURN: Final = 0.25
"""Share of `lease_s` for which a process leaves a free model to those that hold less."""
_FORGOTTEN: Final = 20
"""Times `lease_s` after which the record of a process that is gone is deleted."""


@dataclass(slots=True)
class HeldModel:
    """A lease of this process. lost: set when another process has taken the model."""

    model: str
    token: int
    holder: str
    lost: asyncio.Event = field(default_factory=asyncio.Event)


class ModelHolding:
    """The leases of this process, kept by `run`."""

    def __init__(
        self,
        store: TrainersStore,
        name: str,
        *,
        lease_s: float = 8.0,
        max_models: int = 64,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """name: of this process, of no other one that lives. max_models: how many it takes; those of
        interactive sessions count."""
        self.name = name
        self.address: Callable[[], str] = lambda: ""
        """Of the TrainingService of this process."""
        self.able: Callable[[], str | None] = lambda: None
        """Why this process cannot work now: then others take its models."""
        self.starting_point: Callable[[], StartingPoint] = StartingPoint
        """Where a process would start that started now."""
        self._store = store
        self._lease_s = lease_s
        self._max_models = max_models
        self._monotonic = monotonic
        self._watch = Watch(name, lease_s)
        self._beat = 0
        self._renewed = float("-inf")
        self._away: str | None = None
        self._held: dict[str, HeldModel] = {}
        self._wanted: Counter[str] = Counter()
        self._free_since: dict[str, float] = {}
        self._one_tick = asyncio.Lock()
        self._now = asyncio.Event()
        self._changed = asyncio.Condition()

    async def begin(self) -> StartingPoint:
        """Look around, and write the first record. Returns the latest starting point of all records. Raises
        Unavailable."""
        look = await self._store.look()
        former = look.records.get(self.name)
        self._beat = 0 if former is None else former.beat
        first = latest_starting_point(look.records.values())
        await self.tick(point=first)
        return first

    async def run(self) -> None:
        """Renew, look and take until cancelled; then say that this process leaves."""
        while True:
            self._now.clear()
            try:
                await self.tick()
                self._away = None
            except Unavailable as error:
                self._away = str(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / _BEATS):
                    await self._now.wait()

    async def look_again(self) -> None:
        """Find out now whether another process took a model; what cannot be read now is read later."""
        try:
            await self.tick()
        except Unavailable as error:
            self._away = str(error)

    async def leave(self) -> None:
        """Give every lease back: others may take the models at once."""
        self._wanted.clear()
        for held in self._held.values():
            held.lost.set()
        self._held.clear()
        await self._write(able=False)

    async def tick(self, *, point: StartingPoint | None = None) -> None:
        """One round. point: of the record, instead of the current one."""
        async with self._one_tick:
            why = self.able()
            for model in [model for model in self._held if not self._wanted[model]]:
                del self._held[model]
            await self._write(able=why is None, point=point)
            await self._look()
            if why is None:
                for model in list(self._wanted):
                    if self._may_take(model):
                        await self._take(model)
            await self._clean_up()
        async with self._changed:
            self._changed.notify_all()

    async def _write(self, *, able: bool, point: StartingPoint | None = None) -> None:
        began, point = self._monotonic(), point or self.starting_point()
        self._beat += 1
        room = max(0, self._max_models - len(self._held))
        held, address = tuple(sorted(self._held)), self.address()
        await self._store.write(
            TrainerRecord(self.name, self._beat, address, held, room, point.bound, able, point.open_runs)
        )
        self._renewed = began

    async def _look(self) -> None:
        self._watch.update(await self._store.look())
        for model, held in list(self._held.items()):
            newest = self._watch.look.leases.get(model)
            if newest is None or newest.token != held.token:
                log.warning("lease_lost", extra={"model": model, "token": held.token, "newest": str(newest)})
                held.lost.set()
                del self._held[model]

    def _may_take(self, model: str) -> bool:
        """Whether the model is free, and this process may take it now: processes that hold fewer models go
        first, for a quarter of `lease_s`."""
        if model in self._held or len(self._held) >= self._max_models:
            return False
        if self._watch.holder(model) is not None:
            self._free_since.pop(model, None)
            return False
        lease = self._watch.look.leases.get(model)
        if lease is not None and lease.holder == self.name:
            return True
        now = self._watch.look.at
        waited = now - self._free_since.setdefault(model, now)
        return waited >= _TURN * self._lease_s or not self._watch.place_in_queue(self._held)

    async def _take(self, model: str) -> None:
        before = self._watch.look.leases.get(model)
        token = 1 if before is None else before.token + 1
        if not await self._store.take(model, token, self.name):
            return
        self._free_since.pop(model, None)
        self._held[model] = HeldModel(model, token, self.name)
        await self._write(able=True)
        await self._look()  # a lease that was deleted meanwhile does not make an old number new
        if model in self._held:
            log.info("lease_taken", extra={"model": model, "token": token, "before": str(before)})
            if before is not None:
                await self._store.forget(lease=(model, before.token))

    async def _clean_up(self) -> None:
        """Delete the records of processes that are gone for long."""
        gone = [
            name
            for name in self._watch.look.records
            if self._watch.silent_s(name) > _FORGOTTEN * self._lease_s
        ]
        if gone:
            await self._store.forget(records=gone)

    @contextmanager
    def wanting(self, model: str) -> Iterator[None]:
        """Inside, this process takes the model when it can, and keeps it."""
        self.want(model)
        try:
            yield
        finally:
            self.release(model)

    def want(self, model: str) -> None:
        """Take the model when this process can, until as many calls of `release`."""
        self._wanted[model] += 1
        self._now.set()

    def release(self, model: str) -> None:
        """Undo one `want`: the lease is given back with the next record, if nothing else wants the model."""
        if self._wanted[model] <= 1:
            del self._wanted[model]
        else:
            self._wanted[model] -= 1

    async def acquired(self, model: str) -> HeldModel:
        """Wait until this process holds the model, which it must want."""
        async with self._changed:
            while (held := self._held.get(model)) is None:
                await self._changed.wait()
            return held

    def held(self, model: str) -> HeldModel | None:
        """The lease of this process on the model, if it has one."""
        return self._held.get(model)

    def surely(self, model: str) -> HeldModel:
        """The lease of this process on the model. Raises Unavailable unless it surely holds the model now:
        after a pause, not before the lease is renewed."""
        held = self._held.get(model)
        if held is None:
            raise Unavailable(f"the lease on model {model!r}, which this trainer does not hold")
        if self._monotonic() - self._renewed > self._lease_s * _SURE:
            raise Unavailable(f"the lease on model {model!r}, which this trainer has to renew first")
        return held

    async def while_held(
        self, model: str, retry: RetryUntilAvailable, write: Callable[[HeldModel], Awaitable[object]]
    ) -> None:
        """Write something durable, when this process surely holds the model. Raises Unavailable after many
        tries."""

        async def attempt() -> object:
            return await write(self.surely(model))

        await retry.until_available(attempt)

    def holder(self, model: str) -> TrainerRecord | None:
        """The other process that holds the model, as far as this one knows."""
        return None if model in self._held else self._watch.holder(model)

    def holder_text(self, model: str) -> str:
        """Which process holds the model, this one included, for people; empty where none does."""
        if model in self._held:
            return f"{self.name} at {self.address()}"
        other = self._watch.holder(model)
        return "" if other is None else f"{other.name} at {other.address}"

    def refuse_if_held_elsewhere(self, model: str) -> None:
        """Raises ModelBusy, with the address of the process that holds the model."""
        if (other := self.holder(model)) is not None:
            raise ModelBusy(
                f"trainer {other.name} holds {model!r}: send the call to {other.address or 'it'}, or wait "
                "until it has no work on the model"
            )

    def waiting_for(self, models: Collection[str]) -> str | None:
        """Why models that have open runs, or this process, cannot go on; None if nothing is wrong."""
        if self._away is not None:
            return f"the leases, which cannot be renewed: {self._away}"
        if (why := self.able()) is not None:
            return f"what this trainer needs to work ({why}); other trainers may take over its models"
        free = sorted(
            model for model in models if model not in self._held and self._watch.holder(model) is None
        )
        if free and len(self._held) >= self._max_models and not self._watch.has_room:
            return (
                f"a trainer with room for {', '.join(free[:5])}: this one holds {len(self._held)} models, "
                "the limit of GRPO_TRAINER_MAX_MODELS; start another trainer"
            )
        return None


def process_name(folder: Path) -> tuple[str, int]:
    """A name for this process, and the open file that keeps it. A process that starts on the same folder gets
    the name of the last one, if that is gone: then its leases are free at once. If it lives, even frozen, it
    holds the lock of the file, and this process gets another name."""
    file = os.open(folder / "trainer-name", os.O_RDWR | os.O_CREAT, 0o644)
    fresh = new_id(socket.gethostname())
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return fresh, file
    if not (name := os.pread(file, 200, 0).decode().strip()):
        name = fresh
        os.pwrite(file, name.encode(), 0)
    return name, file
