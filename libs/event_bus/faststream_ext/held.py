"""Commands that no process can begin yet: kept with heartbeats, without a slot, until one can.

Handing each back again and again would write a note a time, and what is out of a durable at once is bounded:
such commands would stop those behind them that can be begun.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import Message
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from event_bus import metrics
from event_bus.attempts import AttemptNotes
from event_bus.incoming import BEATS_PER_ACK_WAIT, nack
from event_bus.topology import ConsumerSpec
from upcycle.errors import Unavailable

_LOG = logging.getLogger(__name__)
MAX_HELD: Final = 4096
"""Of one durable in this process; while so many are kept, no more is taken from that durable."""
_LOOK_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Needs:
    """What a command needs before it can be begun: the same for many. `are_met` may raise Unavailable."""

    of: Callable[[Any], Hashable]
    are_met: Callable[[Any], Awaitable[bool]]

    async def unmet(self, command: Message) -> Hashable | None:
        """What it lacks now; None: it can be begun. Raises PoisonMessage."""
        need = self.of(command)
        try:
            return None if await self.are_met(need) else need
        except Unavailable:  # then its handler says what it waits for
            return None


@dataclass(slots=True)
class _Waiting:
    """The commands that lack the same."""

    met: asyncio.Event = field(default_factory=asyncio.Event)
    num: int = 0


class HeldCommands:
    """Those of one queue in this process."""

    def __init__(self, spec: ConsumerSpec, needs: Needs) -> None:
        self._spec = spec
        self._needs = needs
        self._waiting: dict[Hashable, _Waiting] = {}
        self._kept: dict[tuple[str, int], Msg] = {}
        """The newest delivery of each, by durable and place in the stream."""
        self._of_durable: Counter[str] = Counter()
        self._closed = False

    def is_full(self, durable: str) -> bool:
        """Whether so many commands of the durable are kept that it gives no more."""
        return self._of_durable[durable] >= MAX_HELD

    def close(self) -> None:
        """Let go of everything: the process stops."""
        self._closed = True
        for waiting in self._waiting.values():
            waiting.met.set()

    async def keep(self, raw: Msg, need: Hashable, notes: AttemptNotes) -> None:
        """Hand it back when its need is met, the process stops, or a handler's time is over. Where an earlier
        delivery is kept, this one takes its place: the server delivers again what a frozen process keeps."""
        if self._take(raw):
            try:
                await self._until_met(need)
            finally:
                newest = self.forget(raw)
                if newest is not None:
                    await hand_back(newest, notes)

    def _take(self, raw: Msg) -> bool:
        key = _place_of(raw)
        is_new = key not in self._kept
        self._kept[key] = raw
        self._of_durable[raw.metadata.consumer] += is_new
        return is_new

    def forget(self, raw: Msg) -> Msg | None:
        """Keep a command no longer. Returns its newest delivery; None where none is kept."""
        newest = self._kept.pop(_place_of(raw), None)
        self._of_durable[raw.metadata.consumer] -= newest is not None
        return newest

    async def _until_met(self, need: Hashable) -> None:
        if self._closed:
            return
        if need not in self._waiting:
            _LOG.info("commands_wait", extra={"consumer": self._spec.durable, "need": str(need)})
        waiting = self._waiting.setdefault(need, _Waiting())
        waiting.num += 1
        try:
            with metrics.HELD.labels(self._spec.durable).track_inprogress():
                await asyncio.wait_for(waiting.met.wait(), self._spec.handler_timeout_s)
        except TimeoutError:
            pass
        finally:
            waiting.num -= 1
            if not waiting.num and self._waiting.get(need) is waiting:
                del self._waiting[need]

    async def run(self) -> None:
        """Look what is met, and keep what is not, until cancelled."""
        beat_every_s = self._spec.ack_wait_s / BEATS_PER_ACK_WAIT
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + beat_every_s
        while True:
            await asyncio.sleep(min(_LOOK_EVERY_S, beat_every_s))
            for need, waiting in list(self._waiting.items()):
                if await self._is_met(need):
                    waiting.met.set()
                    del self._waiting[need]  # what comes now begins to wait anew
            if loop.time() >= beat_at:
                beat_at = loop.time() + beat_every_s
                await self._beat()

    async def _is_met(self, need: Hashable) -> bool:
        try:
            return await self._needs.are_met(need)
        except Unavailable:
            return False

    async def _beat(self) -> None:
        for raw in list(self._kept.values()):
            try:
                await raw.in_progress()
            except NatsError as error:  # then another process may get it, which looks for itself
                _LOG.debug("heartbeat_missed", extra={"subject": raw.subject, "error": repr(error)})


def _place_of(raw: Msg) -> tuple[str, int]:
    where = raw.metadata
    return where.consumer, where.sequence.stream


async def hand_back(raw: Msg, notes: AttemptNotes) -> None:
    """Have a command that was not begun delivered again, to this process or another, at once."""
    if raw.metadata.num_delivered > 1:  # one that is not noted is within the tolerance of unanswered ones
        try:
            before = await notes.read(raw)
            await notes.write(raw, before.then(raw.metadata.num_delivered))
        except Unavailable as error:
            _LOG.debug("hand_back_not_noted", extra={"subject": raw.subject, "error": str(error)})
    await nack(raw, raw.metadata.consumer)
