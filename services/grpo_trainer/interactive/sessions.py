"""All models in interactive training: opened when first asked for, each request done once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from grpo_trainer.domain.errors import BrokenArtifact, InvalidInput, RequestIdReused, UnknownModel
from grpo_trainer.interactive.claiming import RememberedClaims
from grpo_trainer.interactive.deps import InteractiveDeps
from grpo_trainer.interactive.session import InteractiveSession
from grpo_trainer.interactive.state import InteractiveStep, InteractiveView, StepDone
from grpo_trainer.patience import Patience
from upcycle.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_REMEMBERED: Final = 512
"""Answers kept, so that a request that is sent again gets the same one."""
_MAX_HISTORY: Final = 512
"""Steps of a model whose metrics can be asked for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    digest: bytes
    task: asyncio.Task[Any]


class InteractiveSessions:
    """Runs each request to its end whether or not the caller waits, and answers a repeated one alike."""

    name = "models"

    def __init__(self, tools: InteractiveDeps, *, leave_s: float = 10.0) -> None:
        """leave_s: how long requests under way may take to end when the process stops."""
        self.tools = replace(tools, stepped=self._stepped, claims=RememberedClaims(tools.claims))
        self.changed = asyncio.Condition()
        self._tell = tools.stepped
        self._leave_s = leave_s
        self._began = time.monotonic()
        self._steps: dict[str, deque[InteractiveStep]] = {}
        self._stepped_at: dict[str, float] = {}
        self._broken: dict[str, str] = {}
        self._recalling: asyncio.Task[None] | None = None
        self._models: OrderedDict[str, InteractiveSession] = OrderedDict()
        self._asked: OrderedDict[tuple[str, str], _Asked] = OrderedDict()
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
        """The result of `work`, done once per request id; a request that failed changed nothing and is done
        again.

        digest: of the request. remember: keep the answer, where work has an effect. Raises InvalidInput,
        RequestIdReused, and what the work raises.
        """
        if not model or not request_id:
            raise InvalidInput("model and request_id must be set; a repeated request_id is answered alike")
        key = (model, request_id)
        known = self._asked.get(key)
        if known is not None and known.digest != digest:
            raise RequestIdReused(
                f"{model}: request id {request_id!r} belongs to another request; make ids unique"
            )
        if known is None:
            task = asyncio.create_task(self._do(model, work), name=f"interactive/{model}/{request_id}")
            known = self._asked[key] = _Asked(digest, task)
            task.add_done_callback(lambda done: self._ended(key, done, remember))
            self._forget_old()
        result: T = await asyncio.shield(known.task)
        return result

    async def _do(self, model: str, work: Callable[[InteractiveSession], Awaitable[T]]) -> T:
        opened = self._open(model)
        try:
            return await work(opened)
        except UnknownModel:
            self._models.pop(model, None)
            raise
        finally:
            async with self.changed:
                self.changed.notify_all()

    def _stepped(self, done: StepDone) -> None:
        self._tell(done)
        self._note(done.model, InteractiveStep(done.step, done.version, done.metrics))
        self._stepped_at[done.model] = time.monotonic()

    def _note(self, model: str, step: InteractiveStep) -> None:
        self._steps.setdefault(model, deque(maxlen=_MAX_HISTORY)).append(step)

    def sessions(self) -> list[InteractiveView]:
        """Models that are open, have taken a step, or have an unreadable state; sorted by name."""
        names = sorted({*self._steps, *self._models, *self._broken})
        return [found for name in names if (found := self._session(name)) is not None]

    def _session(self, model: str) -> InteractiveView | None:
        opened, steps = self._models.get(model), tuple(self._steps.get(model, ()))
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
            waiting_s=time.monotonic() - self._stepped_at.get(model, self._began),
            failure=failure,
        )

    def _open(self, model: str) -> InteractiveSession:
        if model not in self._models:
            self._models[model] = InteractiveSession(model, self.tools)
        self._models.move_to_end(model)
        self._evict()
        return self._models[model]

    def _evict(self) -> None:
        """Close models that were not asked for lately; gradients under way are never thrown away."""
        newest = next(reversed(self._models))
        idle = [
            name
            for name, one in self._models.items()
            if not one.lock.locked() and not one.has_gradients and one is not self._models[newest]
        ]
        for name in idle[: max(len(self._models) - self.tools.max_open, 0)]:
            closing = asyncio.create_task(self._models.pop(name).close())
            self._evicting.add(closing)
            closing.add_done_callback(self._evicting.discard)

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Any], remember: bool) -> None:
        """A request that failed may be sent again."""
        if _failed(task) or not remember:
            self._asked.pop(key, None)

    def _forget_old(self) -> None:
        done = [key for key, asked in self._asked.items() if asked.task.done()]
        for key in done[: max(len(self._asked) - _MAX_REMEMBERED, 0)]:
            del self._asked[key]

    def is_working_on(self, model: str) -> bool:
        """A request about the model is under way; what comes after the next submission is refused."""
        opened = self._models.get(model)
        return opened is not None and opened.lock.locked()

    @property
    def is_working(self) -> bool:
        """A request is under way."""
        return any(not asked.task.done() for asked in self._asked.values())

    def waiting_for(self) -> str | None:
        """What a model waits for outside of this process, if anything."""
        for model in self._models.values():
            if model.patience.waiting_for is not None:
                return f"{model.model} waits for {model.patience.waiting_for}"
        return None

    async def start(self) -> None:
        """Look up, beside everything else, what was trained interactively before; a model is opened when
        first asked for."""
        self._recalling = asyncio.create_task(self._recall(), name="recall/interactive")

    async def _recall(self) -> None:
        """The newest step of every model with a state."""
        patience, states = Patience(), self.tools.states
        try:
            for model in await patience.until_done(states.models):
                await self._recall_one(model, patience)
        except Unavailable as error:
            log.warning("past_steps_unknown", extra={"error": str(error)})

    async def _recall_one(self, model: str, patience: Patience) -> None:
        try:
            state = await patience.until_done(lambda: self.tools.states.newest(model))
        except BrokenArtifact as error:
            log.error("state_unreadable", extra={"model": model, "error": str(error)})
            self._broken[model] = str(error)
            return
        if state is not None and state.session.last_step is not None and model not in self._steps:
            record = state.session.last_step
            self._note(model, InteractiveStep(record.step, record.version, record.metrics))

    async def stop(self) -> None:
        """Let requests under way become durable; one that is cut off is finished after the restart."""
        if self._recalling is not None:
            self._recalling.cancel()
            await asyncio.wait({self._recalling})
        running = [asked.task for asked in self._asked.values() if not asked.task.done()]
        if running:
            _, late = await asyncio.wait(running, timeout=self._leave_s)
            for task in late:
                task.cancel()
        await asyncio.gather(*running, *self._evicting, return_exceptions=True)
        for model in self._models.values():
            await model.close()

    def ready(self) -> str | None:
        """None: a model that waits for something does not keep others from training."""
        return None


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
