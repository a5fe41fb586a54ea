"""The loop that drives the gate: woken by events, and by the clock in case one was lost.

Gated by: a model's name in the wake set, or the poll interval. One model at a time, each step bounded by
its peers' deadlines. On stop: the step in progress is one transaction, so it is finished or as if it
had not begun.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from checkpoint_registry.domain.errors import PeerRefused, PeerUnavailable
from checkpoint_registry.ports import GateStore, ModelStore
from checkpoint_registry.usecases.gating import RunGate
from checkpoint_registry.usecases.rollback import WatchHead
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

# Steps that one candidate can take in one go; more would mean that a step does not record what it did.
_MAX_STEPS = 64


class Wakeups:
    """ports.Judge: a set of model names and a flag."""

    def __init__(self) -> None:
        self._models: set[str] = set()
        self._woken = asyncio.Event()

    def wake(self, models: Sequence[str]) -> None:
        """See the port."""
        self._models.update(models)
        self._woken.set()

    async def wait(self, timeout_s: float) -> set[str]:
        """The models to look at; empty when nobody called within `timeout_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), timeout_s)
        self._woken.clear()
        models, self._models = self._models, set()
        return models


class GateDriver:
    """Runs the gate for every model that has a candidate under way."""

    def __init__(
        self,
        gate: RunGate,
        head: WatchHead,
        stores: tuple[ModelStore, GateStore],
        wakeups: Wakeups,
        *,
        poll_s: float,
    ) -> None:
        self._gate = gate
        self._head = head
        self._models, self._jobs = stores
        self._wakeups = wakeups
        self._poll_s = poll_s
        self._is_first_round = True
        self._unfinished: set[str] = set()
        self._trouble: str | None = None

    def ready(self) -> str | None:
        """A planner that is away stops the gate, not the registry: leases and heads go on."""
        return None

    async def run(self, stop: asyncio.Event) -> None:
        """Until stopped."""
        stopping = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                waiting = asyncio.create_task(self._wakeups.wait(self._poll_s))
                await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not waiting.done():
                    waiting.cancel()
                    return
                await self._round(waiting.result())
        finally:
            stopping.cancel()

    async def _round(self, woken: set[str]) -> None:
        """What a peer or the database keeps us from doing now is done in a later round."""
        self._unfinished |= woken
        try:
            self._unfinished |= await self._due()
        except Unavailable as error:
            self._report(str(error))
            return
        for model in sorted(self._unfinished):
            try:
                await self._drive(model)
            except (PeerUnavailable, PeerRefused, Unavailable) as error:
                self._report(str(error))
            else:
                self._unfinished.discard(model)

    async def _due(self) -> set[str]:
        """Models with a candidate under way; at first all: evidence may have come just before a crash."""
        due = set(await self._jobs.models_with_open_jobs())
        if self._is_first_round:
            due |= {model.model for model in await self._models.models()}
            self._is_first_round = False
        return due

    async def _drive(self, model: str) -> None:
        await self._head.consider(model)
        for _ in range(_MAX_STEPS):
            if not await self._gate.advance(model):
                self._trouble = None
                return
        raise RuntimeError(f"the gate of {model!r} took {_MAX_STEPS} steps in one go; a step is not recorded")

    def _report(self, trouble: str) -> None:
        """Once per trouble, not once per poll."""
        if trouble != self._trouble:
            log.warning("gate_waits", extra={"why": trouble})
        self._trouble = trouble
