"""Finding an engine, waiting for one where that may help, and steering around those that just failed."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import GatewayError, NoEngine, UnknownModel, VersionNotServed
from model_gateway.domain.routing import EngineRoute, choose
from model_gateway.usecases.holding import HoldVersions

_REFRESH_S = 1.0
# Between looks while an engine is suspected; a renewed lease clears the suspicion at once.
_RECHECK_S = 0.1
_LOOK_S = 0.2
"""Between looks while an engine loads a version."""
_MOST_COUNTED = 64
"""Engines whose requests are counted, before those without any are forgotten."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    renewal: str
    until: float


@dataclass(frozen=True, slots=True)
class AskedFor:
    """waiting: requests without an engine. seconds_ago: since the last request; None: there was none."""

    waiting: int
    seconds_ago: float | None


@dataclass(frozen=True, slots=True)
class Picked:
    """An engine, and what it serves of what was asked for: head of a model that no engine follows is a
    version."""

    engine: EngineRoute
    target: ModelTarget


class PickEngine:
    """The choice of an engine; counts what each of them is doing for us."""

    def __init__(
        self,
        directory: RegistryDirectory,
        *,
        holding: HoldVersions,
        suspect_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._holding = holding
        self._suspect_s = suspect_s
        self._monotonic = monotonic
        self._suspicions: dict[str, _Suspicion] = {}
        self.busy: Counter[str] = Counter()
        self._background: dict[str, set[asyncio.Task[Any]]] = {}
        self._waiting: Counter[str] = Counter()
        self._asked_at: dict[str, float] = {}

    def asked_for(self, model: str) -> AskedFor:
        """What requests want of a model."""
        asked_at = self._asked_at.get(model)
        seconds_ago = None if asked_at is None else self._monotonic() - asked_at
        return AskedFor(self._waiting[model], seconds_ago)

    async def pick(self, target: ModelTarget, *, until: float, canary: int | None = None) -> Picked:
        """Waits until `until` (monotonic seconds). canary: a version to be answered by, without a wait;
        while no engine serves it, head answers. Raises UnknownModel, VersionNotServed, NoRoom, NoEngine."""
        await self._require_known(target)
        self._asked_at[target.model] = self._monotonic()
        if len(self.busy) > _MOST_COUNTED:
            self._forget_idle()
        picked = None if canary is None else self._of_canary(target.model, canary)
        if picked is None:
            self._waiting[target.model] += 1
            try:
                picked = await self._found(target, until)
            finally:
                self._waiting[target.model] -= 1
        for work in self._background.get(picked.engine.engine_id, ()):
            work.cancel()
        return picked

    def holds(self, target: ModelTarget) -> bool:
        """Whether an engine holds the version, idle or not."""
        return bool(self._directory.view.holding(target))

    def idle_holder(self, target: ModelTarget) -> EngineRoute | None:
        """An engine that holds the version and has no request of ours."""
        engines = self._directory.view.holding(target)
        idle = [one for one in engines if not self.busy[one.engine_id]]
        suspects = self._suspects(idle)
        return choose(idle, head_version=target.version or 0, busy=self.busy, suspects=suspects)

    @contextmanager
    def in_background(self, engine: EngineRoute, work: "asyncio.Task[Any]") -> Iterator[None]:
        """Work that may delay no request: it is cancelled when one goes to its engine."""
        working = self._background.setdefault(engine.engine_id, set())
        working.add(work)
        try:
            yield
        finally:
            working.discard(work)
            if not working:
                self._background.pop(engine.engine_id, None)

    def _forget_idle(self) -> None:
        """Engines come and go, and their ids with them."""
        for idle in [engine_id for engine_id, count in self.busy.items() if count == 0]:
            del self.busy[idle]

    def _of_canary(self, model: str, version: int) -> Picked | None:
        """None while no engine serves the version: production does not wait for a canary release."""
        target = ModelTarget(model, version)
        engines = self._directory.view.holding(target)
        engine = choose(engines, head_version=version, busy=self.busy, suspects=self._suspects(engines))
        return None if engine is None else Picked(engine, target)

    async def _found(self, asked: ModelTarget, until: float) -> Picked:
        refused = ""
        while True:
            target = self._directory.view.at_head(asked)
            engines = self._directory.view.serving(target)
            if not engines and target.version is not None:
                refused = await self._hold(target, is_pinned=asked.version is not None)
            head = self._directory.view.models[target.model]
            engine = choose(
                engines, head_version=head.head_version, busy=self.busy, suspects=self._suspects(engines)
            )
            if engine is not None:
                self._holding.used(target)
                return Picked(engine, target)
            left_s = until - self._monotonic()
            if left_s <= 0:
                raise NoEngine(
                    f"{self._why(asked, engines)}; {refused}" if refused else self._why(target, engines)
                )
            await self._look_again(target, engines, left_s)

    async def _hold(self, target: ModelTarget, *, is_pinned: bool) -> str:
        """Have an engine serve the version. One that a request names is refused at once where that cannot be;
        the reason is returned for head, which an engine may be started for, and while none runs."""
        if not self._holding.is_on and is_pinned:
            raise VersionNotServed(
                f"no engine holds {target}, and this gateway has none held (MODEL_GATEWAY_HOLD_S=0)",
                param="model",
            )
        try:
            if self._holding.is_on:
                await self._holding.hold(target)
        except GatewayError as error:
            if is_pinned and not isinstance(error, NoEngine):
                raise
            return error.message
        return ""

    async def _look_again(self, target: ModelTarget, engines: list[EngineRoute], left_s: float) -> None:
        """Wait until what is known may have changed. A version that an engine loads is looked for: no fact
        says that it is there."""
        is_loading = target.version is not None and not engines
        await self._directory.changed(
            min(left_s, _LOOK_S if is_loading else _RECHECK_S if engines else left_s)
        )
        if is_loading:
            await self._directory.refresh_at_most_every(_LOOK_S, timeout_s=_REFRESH_S)

    async def look_at_leases(self) -> None:
        """Return once they may say something else than before."""
        await self._directory.changed(_LOOK_S)
        await self._directory.refresh_at_most_every(_LOOK_S, timeout_s=_REFRESH_S)

    def suspect(self, engine: EngineRoute) -> None:
        """Avoid an engine until its engine supervisor renews the lease, or for a while."""
        now = self._monotonic()
        self._suspicions = {one: why for one, why in self._suspicions.items() if why.until > now}
        self._suspicions[engine.engine_id] = _Suspicion(engine.renewal, now + self._suspect_s)

    def _suspects(self, engines: list[EngineRoute]) -> list[str]:
        if not self._suspicions:
            return []
        now = self._monotonic()
        found = []
        for engine in engines:
            suspicion = self._suspicions.get(engine.engine_id)
            if suspicion and suspicion.until > now and suspicion.renewal == engine.renewal:
                found.append(engine.engine_id)
        return found

    async def _require_known(self, target: ModelTarget) -> None:
        """A model or version that is not in the view may be newer than the view: asks once."""
        view = self._directory.view
        if target.model in view.models and (target.version is None or view.serving(view.at_head(target))):
            return
        await self._directory.refresh(_REFRESH_S)
        if target.model not in self._directory.view.models:
            raise UnknownModel(
                f"model {target.model!r} does not exist; GET /v1/models lists them", param="model"
            )

    def _why(self, target: ModelTarget, engines: list[EngineRoute]) -> str:
        if engines:
            names = ", ".join(engine.engine_id for engine in engines)
            return f"every engine of {target} failed just now ({names}); try again"
        if target.version is not None:
            why = self._directory.view.why_not_held(target) or "it is being loaded; try again"
            return f"no engine serves {target} yet: {why}"
        return f"no engine serves {target} on channel head; is its engine supervisor running?"
