"""All interactive sessions of this process. Each request id is executed once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from grpo_trainer.domain.errors import BrokenArtifact, InvalidInput, LostSteps, RequestIdReused, UnknownModel
from grpo_trainer.interactive.claiming import RememberedClaims
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.session import InteractiveSession
from grpo_trainer.interactive.state import InteractiveStep, InteractiveView, StepDone
from grpo_trainer.retrying import RetryUntilAvailable
from grpo_trainer.telemetry import count_step
from service_kit.loops import one_piece, until_stopped
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_REMEMBERED: Final = 512
"""Results kept, so that a repeated request gets the same one."""
_MAX_HISTORY: Final = 512
"""Newest steps of a model whose metrics GetSession returns."""
_LOOK_EVERY_S: Final = 60.0
"""For gradients whose client is gone."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A request in progress or done. digest: of its content."""

    digest: bytes
    task: asyncio.Task[Any]


class InteractiveSessions:
    """Opens a session per model when it is first asked for. A request runs to its end even if its caller
    disconnects; a repeated request id joins it or gets its result."""

    name = "interactive sessions"

    def __init__(
        self, deps: InteractiveDeps, *, leave_s: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """leave_s: how long requests in progress may take to end when the process stops."""
        self.deps = replace(deps, claims=RememberedClaims(deps.claims))
        self.changed = asyncio.Condition()
        self._leave_s = leave_s
        self._clock = clock
        self._began = clock()
        self._steps: dict[str, deque[InteractiveStep]] = {}
        self._stepped_at: dict[str, float] = {}
        self._broken: dict[str, str] = {}
        self._recalling: asyncio.Task[None] | None = None
        self._sessions: OrderedDict[str, InteractiveSession] = OrderedDict()
        self._requests: OrderedDict[tuple[str, str], _Request] = OrderedDict()
        self._evicting: set[asyncio.Task[None]] = set()

    async def once(
        self,
        model: str,
        request_id: str,
        digest: bytes,
        work: Callable[[InteractiveSession], Awaitable[T]],
        *,
        remember: bool = True,
    ) -> T:
        """Execute `work` once per request id and return its result. The id of a request that failed may be
        sent again: a pass that failed changed nothing; an update that failed dropped the accumulated
        gradients, or is durable, and then the id gets the recorded result. One that reported lost steps
        reports them again; another goes on without them.

        digest: of the request's content. remember: keep the result for repeated requests; False for work
        without an effect. Raises InvalidInput, RequestIdReused, and what `work` raises.
        """
        if not model or not request_id:
            raise InvalidInput("model and request_id must be set; a repeated request_id gets the same result")
        key = (model, request_id)
        known = self._requests.get(key)
        if known is not None and known.digest != digest:
            raise RequestIdReused(
                f"{model}: request id {request_id!r} belongs to another request; make ids unique"
            )
        if known is None:
            task = asyncio.create_task(self._do(model, work), name=f"interactive call {model} {request_id}")
            known = self._requests[key] = _Request(digest, task)
            task.add_done_callback(lambda done: self._ended(key, done, remember))
            self._forget_old()
        result: T = await asyncio.shield(known.task)
        return result

    async def _do(self, model: str, work: Callable[[InteractiveSession], Awaitable[T]]) -> T:
        opened = self._open(model)
        try:
            return await work(opened)
        except UnknownModel:
            self._sessions.pop(model, None)
            await opened.leave()
            raise
        finally:
            opened.called_at = self._clock()
            async with self.changed:
                self.changed.notify_all()

    def _stepped(self, done: StepDone) -> None:
        count_step(done.model, done.version, done.metrics)
        self._note(done.model, InteractiveStep(done.step, done.version, done.metrics))
        self._stepped_at[done.model] = self._clock()

    def _note(self, model: str, step: InteractiveStep) -> None:
        self._steps.setdefault(model, deque(maxlen=_MAX_HISTORY)).append(step)

    def views(self) -> list[InteractiveView]:
        """Models that are open, have taken a step, or have an unreadable state; sorted by name."""
        names = sorted({*self._steps, *self._sessions, *self._broken})
        return [found for name in names if (found := self._view(name)) is not None]

    def _view(self, model: str) -> InteractiveView | None:
        opened, steps = self._sessions.get(model), tuple(self._steps.get(model, ()))
        version = None if opened is None else opened.version
        failure = "" if version is not None or steps else self._broken.get(model, "")
        if version is None and not steps and not failure:
            return None
        stored = steps[-1].version if steps else 0
        return InteractiveView(
            model=model,
            version=stored if version is None else version,
            is_working=opened is not None and opened.lock.locked(),
            steps=steps,
            waiting_s=self._clock() - self._stepped_at.get(model, self._began),
            failure=failure,
        )

    def _open(self, model: str) -> InteractiveSession:
        if model not in self._sessions:
            self._sessions[model] = InteractiveSession(model, self.deps, self._stepped)
        self._sessions.move_to_end(model)
        self._sessions[model].called_at = self._clock()
        self._evict()
        return self._sessions[model]

    async def drop_forgotten(self, stop: asyncio.Event) -> None:
        """Drop gradients whose client does not come back, until `stop` is set."""
        every_s = min(_LOOK_EVERY_S, self.deps.gradients_kept_s)
        await until_stopped(stop, self.drop_old_gradients, every_s=every_s)

    async def drop_old_gradients(self) -> None:
        """Drop gradients, and steps that were not saved, that had no call about their model for
        `gradients_kept_s`; then close what is too much."""
        for session in list(self._sessions.values()):
            unused_s = self._clock() - session.called_at
            if session.is_unsaved and unused_s >= self.deps.gradients_kept_s and not session.lock.locked():
                log.warning("gradients_dropped", extra={"model": session.model, "unused_s": unused_s})
                with suppress(Unavailable), one_piece(f"dropping gradients of {session.model}"):
                    async with session.lock:
                        await session.give_up()
        if self._sessions:
            self._evict()

    def _evict(self) -> None:
        """Close the sessions that were used least recently, but none with accumulated gradients, unsaved
        steps or a call in progress."""
        newest = next(reversed(self._sessions))
        idle = [
            name
            for name, one in self._sessions.items()
            if not one.lock.locked() and not one.is_unsaved and one is not self._sessions[newest]
        ]
        for name in idle[: max(len(self._sessions) - self.deps.max_open, 0)]:
            closing = asyncio.create_task(self._sessions.pop(name).leave())
            self._evicting.add(closing)
            closing.add_done_callback(self._evicting.discard)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Any], remember: bool) -> None:
        """Forget a request that failed, so that it may be sent again."""
        if not _reports_loss(task) and (_failed(task) or not remember):
            self._requests.pop(key, None)

    def _forget_old(self) -> None:
        done = [key for key, asked in self._requests.items() if asked.task.done()]
        for key in done[: max(len(self._requests) - _MAX_REMEMBERED, 0)]:
            del self._requests[key]

    @property
    def is_working(self) -> bool:
        """A request is in progress."""
        return any(not asked.task.done() for asked in self._requests.values())

    def waiting_for(self) -> str | None:
        """What a session waits for outside of this process, if anything."""
        for session in self._sessions.values():
            if session.retry.waiting_for is not None:
                return f"{session.model} waits for {session.retry.waiting_for}"
        return None

    async def start(self) -> None:
        """Read the newest steps of earlier processes in the background, for the views. The sessions open when
        they are first asked for."""
        self._recalling = asyncio.create_task(self._recall(), name="interactive states")

    async def _recall(self) -> None:
        """Read the newest step of every model that has a state."""
        retry, states = RetryUntilAvailable(), self.deps.states
        try:
            for model in await retry.until_available(states.models):
                await self._recall_one(model, retry)
        except Unavailable as error:
            log.warning("past_steps_unknown", extra={"error": str(error)})

    async def _recall_one(self, model: str, retry: RetryUntilAvailable) -> None:
        try:
            state = await retry.until_available(lambda: self.deps.states.newest(model))
        except BrokenArtifact as error:
            log.error("state_unreadable", extra={"model": model, "error": str(error)})
            self._broken[model] = str(error)
            return
        if state is not None and state.session.last_step is not None and model not in self._steps:
            record = state.session.last_step
            self._note(model, InteractiveStep(record.step, record.version, record.metrics))

    async def stop(self) -> None:
        """Let requests in progress end. A step that is cancelled after it is durable is finished after the
        restart."""
        if self._recalling is not None:
            self._recalling.cancel()
            await asyncio.wait({self._recalling})
        running = [asked.task for asked in self._requests.values() if not asked.task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=self._leave_s)
            for task in late:
                task.cancel()
        await asyncio.gather(*running, *self._evicting, return_exceptions=True)
        for session in self._sessions.values():
            await session.leave()

    def ready(self) -> str | None:
        """Always ready: a session that waits for something does not keep the others from training."""
        return None


def _reports_loss(task: asyncio.Task[Any]) -> bool:
    """A repeated request gets it again: the first answer may not have arrived, and another request goes
    on."""
    return not task.cancelled() and isinstance(task.exception(), LostSteps)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
