"""The decode thread and its mailbox.

One thread owns all model runners. The event loop posts functions that this thread runs between two steps, so
nothing is locked and weights change only at a token boundary. An exception in a step ends the engine: every
sequence fails and /health reports the error.
"""

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import TypeVar

import torch

from embedded_engine.decoder import DecoderModel
from embedded_engine.errors import BadWeights, EngineDead, NameTaken, UnknownModel
from embedded_engine.model_runner import ModelRunner, RunnerLimits
from embedded_engine.sequences import ERROR, Progress, Sequence
from embedded_engine.weights import ModelWeights

log = logging.getLogger(__name__)

T = TypeVar("T")

# The decode thread releases the GIL in every torch call. With the default switch interval of 5 ms one busy
# handler would keep it that long and stall all sequences.
_SWITCH_INTERVAL_S = 1e-4


class Pause(Enum):
    """Which requests are paused."""

    NOTHING = "running"
    NEW = "in flight only"
    ALL = "frozen"


class EmbeddedEngine:
    """Serves policies by name; `main` is the one whose weights are reloaded in place."""

    def __init__(
        self, main: str, weights: ModelWeights, limits: RunnerLimits, decode_text: Callable[[list[int]], str]
    ) -> None:
        self.main = main
        self.limits = limits
        self.device = weights.device
        self.dead: str | None = None
        self._decode_text = decode_text
        self._runners: dict[str, ModelRunner] = {main: ModelRunner(weights, limits, decode_text)}
        self._staged: tuple[Path, DecoderModel] | None = None
        """Weights that are proven beside the main ones, and the directory that they are of."""
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
            if not future.set_running_or_notify_cancel():
                return  # its caller is gone, such as a supervisor that lost its patience
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return await asyncio.wrap_future(future)

    def submit(self, name: str, sequences: list[Sequence]) -> None:
        """Queue sequences on a runner. Raises UnknownModel, EngineDead."""
        if self.dead is not None:
            raise EngineDead(self.dead)
        runner = self._runners.get(name)
        if runner is None or name in self._leaving:
            raise UnknownModel(name)

        def add() -> None:
            for sequence in sequences:
                runner.add(sequence)

        self._post(add)

    def abort(self, name: str, sequences: list[Sequence]) -> None:
        """End sequences early; does not wait."""
        runner = self._runners.get(name)
        if runner is not None:
            self._post(lambda: self._publish([s for s in sequences if runner.abort(s)]))

    @property
    def names(self) -> list[str]:
        """Served names, the main one first."""
        return [name for name in self._runners if name not in self._leaving]

    @property
    def is_paused(self) -> bool:
        """Whether a pause of any kind is in force."""
        return self._pause is not Pause.NOTHING

    def runner_of(self, name: str) -> ModelRunner:
        """For reading counts and config. Raises UnknownModel."""
        if name not in self._runners:
            raise UnknownModel(name)
        return self._runners[name]

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
        """Sample again."""
        await self.call(lambda: self._set_pause(Pause.NOTHING))

    async def reload(self, weights: ModelWeights) -> None:
        """Swap the main policy's weights at a token boundary. Raises BadWeights when the shapes differ."""
        self._staged = None
        await self.call(lambda: self._runners[self.main].reload(weights))

    async def stage(self, directory: Path, weights: ModelWeights) -> DecoderModel:
        """Keep weights for `swap`, beside those that sample on, in the place of what was kept before."""
        model = await asyncio.to_thread(DecoderModel, weights, self.limits.max_len)
        self._staged = (directory, model)
        return model

    def forget_staged(self) -> None:
        """Free what is kept for a swap."""
        self._staged = None

    async def swap(self, directory: Path, label: str, *, recompute_running: bool) -> float:
        """Between two steps: sample by the weights that were staged from a directory, stamp their tokens,
        forget prefixes of the old ones. Returns the seconds that it took. Raises BadWeights where others
        are kept."""
        if self._staged is None or self._staged[0] != directory:
            kept = "no weights" if self._staged is None else str(self._staged[0])
            raise BadWeights(f"{directory} is not what was staged ({kept}): stage it first")
        model, main = self._staged[1], self._runners[self.main]

        def change() -> float:
            began_s = time.perf_counter()
            main.use(model)
            main.label = label
            main.reset_prefix_cache(recompute_running=recompute_running)
            return time.perf_counter() - began_s

        took_s = await self.call(change)
        self._staged = None
        return took_s

    async def set_label(self, label: str) -> None:
        """Stamp the main policy's tokens with `label` from now on."""

        def change() -> None:
            self._runners[self.main].label = label

        await self.call(change)

    async def reset_prefix_cache(self, *, recompute_running: bool) -> None:
        """Forget prefixes of the main policy."""
        main = self._runners[self.main]
        await self.call(lambda: main.reset_prefix_cache(recompute_running=recompute_running))

    async def add_model(self, name: str, weights: ModelWeights, label: str) -> None:
        """Serve another policy. Raises NameTaken."""

        def add() -> None:
            if name in self._runners:
                raise NameTaken(f"{name!r} is served already; unload it first")
            runner = ModelRunner(weights, self.limits, self._decode_text)
            runner.label = label
            self._runners[name] = added[name] = runner

        added: dict[str, ModelRunner] = {}
        try:
            await self.call(add)
        except asyncio.CancelledError:
            # Its caller is gone and will not unload it: the memory would be lost, and the name taken.
            self._post(lambda: _forget(self._runners, name, added.get(name)))
            raise

    def abandon(self, name: str) -> None:
        """Drop a policy that was added and that nothing was told of; does not wait."""

        def drop() -> None:
            if name != self.main and (runner := self._runners.pop(name, None)) is not None:
                runner.abort_all()
                self._publish(runner.drain_touched())

        self._post(drop)

    async def remove_model(self, name: str) -> None:
        """Refuse new requests for a policy, let those in flight finish, then drop it. Raises UnknownModel."""
        if name == self.main or name not in self.names:
            raise UnknownModel(name)
        self._leaving.add(name)
        drained: Future[None] = Future()
        try:
            await self.call(lambda: self._drain_waiters.__setitem__(name, drained))
            await asyncio.wrap_future(drained)
        except asyncio.CancelledError:
            self._post(lambda: _forget(self._drain_waiters, name, drained))
            raise
        finally:
            self._leaving.discard(name)

    def _set_pause(self, pause: Pause) -> None:
        self._pause = pause
        if pause is Pause.NOTHING:
            self._release_idle_waiters()

    def _abort_everything(self) -> None:
        for runner in self._runners.values():
            runner.abort_all()
            self._publish(runner.drain_touched())

    def _post(self, function: Callable[[], None]) -> None:
        self._inbox.append(function)
        self._wake.set()

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping:
                    self._turn()
        except BaseException as error:  # a panic of a Rust library is no Exception
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
            for runner in list(self._runners.values()):
                if runner.running or (runner.waiting and self._pause is Pause.NOTHING):
                    self._publish(runner.step(admit=self._pause is Pause.NOTHING))
                    worked = True
        if not worked:
            self._release_idle_waiters()
            self._wake.wait()

    def _drop_drained(self) -> None:
        for name in [name for name in self._drain_waiters if not self._runners[name].busy]:
            del self._runners[name]
            _release(self._drain_waiters.pop(name))

    def _release_idle_waiters(self) -> None:
        for waiter in self._idle_waiters:
            _release(waiter)
        self._idle_waiters.clear()

    def _publish(self, touched: list[Sequence]) -> None:
        """Pass progress to the listeners, in one hop to the event loop per step."""
        news = [
            (sequence.listener, Progress(sequence.num_sampled, sequence.finish_reason))
            for sequence in touched
            if sequence.streams or sequence.finish_reason is not None
        ]
        if news and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, news)

    def _fail_everything(self) -> None:
        for runner in self._runners.values():
            failed = [*runner.running.values(), *runner.waiting]
            for sequence in failed:
                sequence.finish_reason, sequence.error = ERROR, self.dead
            self._publish(failed)
        # Callers that wait in `call` get a result too: their functions fail at the runner, or simply run.
        while self._inbox:
            self._inbox.popleft()()
        for waiter in self._drain_waiters.values():
            _release(waiter)
        self._drain_waiters.clear()
        self._release_idle_waiters()


def _release(waiter: "Future[None]") -> None:
    """Unless the one that waited is gone: the result of a cancelled future cannot be set."""
    if waiter.set_running_or_notify_cancel():
        waiter.set_result(None)


def _forget(kept: dict[str, T], name: str, one: T | None) -> None:
    """What was kept for one that is gone; there may be another of that name by now."""
    if one is not None and kept.get(name) is one:
        del kept[name]


def _deliver(news: list[tuple[Callable[[Progress], None], Progress]]) -> None:
    for listener, progress in news:
        listener(progress)
