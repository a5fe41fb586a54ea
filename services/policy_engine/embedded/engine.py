"""The decode thread and its mailbox.

All lanes are owned by one thread; the event loop talks to it by posting functions that run between two steps,
so nothing is locked and every change of weights happens at a token boundary. An exception in a step kills the
engine, loudly: every sequence fails and /health says so.
"""

import asyncio
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from typing import TypeVar

import torch

from policy_engine.embedded.errors import EngineDead, NameTaken, UnknownModel
from policy_engine.embedded.lane import Lane, LaneLimits
from policy_engine.embedded.sequences import ERROR, Progress, Sequence
from policy_engine.embedded.weights import Weights

log = logging.getLogger(__name__)

T = TypeVar("T")

# The decode thread lets go of the interpreter in every torch call and wants it back microseconds later; with
# the default of 5 ms one busy handler would stall all sequences.
_SWITCH_INTERVAL_S = 1e-4


class Pause(Enum):
    """What the engine does not do now."""

    NOTHING = "running"
    NEW = "in flight only"
    ALL = "frozen"


class Engine:
    """Serves policies by name; `main` is the one whose weights are reloaded in place."""

    def __init__(
        self, main: str, weights: Weights, limits: LaneLimits, decode_text: Callable[[list[int]], str]
    ) -> None:
        self.main = main
        self.limits = limits
        self.dead: str | None = None
        self._decode_text = decode_text
        self._lanes: dict[str, Lane] = {main: Lane(weights, limits, decode_text)}
        self._leaving: set[str] = set()
        self._pause = Pause.NOTHING
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._idle_waiters: list[Future[None]] = []
        self._drain_waiters: dict[str, Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="decode", daemon=True)

    def start(self) -> None:
        """Start the decode thread; listeners are called in the current event loop."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Abort what runs and end the thread."""
        if self.dead is None:
            await self.call(self._abort_everything)
        self._stopping = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join, 10.0)

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the decode thread between two steps. Raises what it raises, and EngineDead."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return await asyncio.wrap_future(future)

    def submit(self, name: str, sequences: list[Sequence]) -> None:
        """Queue sequences on a lane. Raises UnknownModel, EngineDead."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        lane = self._lanes.get(name)
        if lane is None or name in self._leaving:
            raise UnknownModel(name)

        def add() -> None:
            for sequence in sequences:
                lane.add(sequence)

        self._post(add)

    def abort(self, name: str, sequences: list[Sequence]) -> None:
        """End sequences early; does not wait."""
        lane = self._lanes.get(name)
        if lane is not None:
            self._post(lambda: self._publish([s for s in sequences if lane.abort(s)]))

    @property
    def names(self) -> list[str]:
        """Served names, the main one first."""
        return [name for name in self._lanes if name not in self._leaving]

    @property
    def is_paused(self) -> bool:
        """Whether a pause of any kind is in force."""
        return self._pause is not Pause.NOTHING

    def lane(self, name: str) -> Lane:
        """For reading counts and config. Raises UnknownModel."""
        if name not in self._lanes:
            raise UnknownModel(name)
        return self._lanes[name]

    async def pause(self, mode: str) -> None:
        """keep: freeze at the next token. wait: finish what is in flight first. abort: end it first."""
        if mode == "wait":
            done: Future[None] = Future()
            await self.call(lambda: self._set_pause(Pause.NEW))
            await self.call(lambda: self._idle_waiters.append(done))
            await asyncio.wrap_future(done)
        elif mode == "abort":
            await self.call(self._abort_everything)
            await self.call(lambda: self._set_pause(Pause.NEW))
        else:
            await self.call(lambda: self._set_pause(Pause.ALL))

    async def resume(self) -> None:
        """Go on."""
        await self.call(lambda: self._set_pause(Pause.NOTHING))

    async def reload(self, weights: Weights) -> None:
        """Swap the main policy's weights at a token boundary. Raises BadWeights when the shapes differ."""
        await self.call(lambda: self._lanes[self.main].reload(weights))

    async def set_label(self, label: str) -> None:
        """Stamp the main policy's tokens with `label` from now on."""

        def change() -> None:
            self._lanes[self.main].label = label

        await self.call(change)

    async def reset_prefix_cache(self, *, recompute_running: bool) -> None:
        """Forget prefixes of the main policy."""
        main = self._lanes[self.main]
        await self.call(lambda: main.reset_prefix_cache(recompute_running=recompute_running))

    async def add_lane(self, name: str, weights: Weights, label: str) -> None:
        """Serve another policy. Raises NameTaken."""

        def add() -> None:
            if name in self._lanes:
                raise NameTaken(f"{name!r} is served already; unload it first")
            lane = Lane(weights, self.limits, self._decode_text)
            lane.label = label
            self._lanes[name] = lane

        await self.call(add)

    async def remove_lane(self, name: str) -> None:
        """Refuse new requests for a policy, let those in flight finish, then drop it. Raises UnknownModel."""
        if name == self.main or name not in self.names:
            raise UnknownModel(name)
        self._leaving.add(name)
        drained: Future[None] = Future()
        await self.call(lambda: self._drain_waiters.__setitem__(name, drained))
        try:
            await asyncio.wrap_future(drained)
        finally:
            self._leaving.discard(name)

    def _set_pause(self, pause: Pause) -> None:
        self._pause = pause
        if pause is Pause.NOTHING:
            self._release_idle_waiters()

    def _abort_everything(self) -> None:
        for lane in self._lanes.values():
            lane.abort_all()
            self._publish(lane.drain_touched())

    def _post(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._wake.set()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
        except Exception as error:
            log.critical("decode_thread_died", exc_info=True)
            self.dead = f"the decode loop died: {type(error).__name__}: {error}"
            self._fail_everything()

    def _turn(self) -> None:
        self._wake.clear()
        while self._inbox:
            self._inbox.popleft()()
        self._drop_drained()
        worked = False
        if self._pause is not Pause.ALL:
            for lane in list(self._lanes.values()):
                if lane.running or (lane.waiting and self._pause is Pause.NOTHING):
                    self._publish(lane.step(admit=self._pause is Pause.NOTHING))
                    worked = True
        if not worked:
            self._release_idle_waiters()
            self._wake.wait()

    def _drop_drained(self) -> None:
        for name in [name for name in self._drain_waiters if not self._lanes[name].busy]:
            del self._lanes[name]
            self._drain_waiters.pop(name).set_result(None)

    def _release_idle_waiters(self) -> None:
        for waiter in self._idle_waiters:
            waiter.set_result(None)
        self._idle_waiters.clear()

    def _publish(self, touched: list[Sequence]) -> None:
        """Tell listeners, in one hop to the event loop per step."""
        news = [
            (sequence.listener, Progress(sequence.num_sampled, sequence.finish_reason))
            for sequence in touched
            if sequence.streams or sequence.finish_reason is not None
        ]
        if news and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, news)

    def _fail_everything(self) -> None:
        for lane in self._lanes.values():
            failed = [*lane.running.values(), *lane.waiting]
            for sequence in failed:
                sequence.finish_reason, sequence.error = ERROR, self.dead
            self._publish(failed)
        # Whoever waits in `call` is told too: the functions fail when they touch a lane or simply run.
        while self._inbox:
            self._inbox.popleft()()
        self._release_idle_waiters()


def _deliver(news: list[tuple[Callable[[Progress], None], Progress]]) -> None:
    for listener, progress in news:
        listener(progress)
