"""Finding an engine, waiting for one where that may help, and steering around those that just failed."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from model_gateway.adapters.directory import RegistryDirectory
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.errors import NoEngine, UnknownModel, VersionNotServed
from model_gateway.domain.routing import EngineRoute, choose

_REFRESH_S = 1.0
# Between looks while an engine is suspected; a renewed lease clears the suspicion at once.
_RECHECK_S = 0.1


@dataclass(frozen=True, slots=True)
class _Suspicion:
    renewal: str
    until: float


@dataclass(frozen=True, slots=True)
class AskedFor:
    """waiting: requests without an engine. seconds_ago: since the last request; None: there was none."""

    waiting: int
    seconds_ago: float | None


class PickEngine:
    """The choice of an engine; counts what each of them is doing for us."""

    def __init__(
        self,
        directory: RegistryDirectory,
        *,
        suspect_s: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._suspect_s = suspect_s
        self._monotonic = monotonic
        self._suspicions: dict[str, _Suspicion] = {}
        self.busy: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._asked_at: dict[str, float] = {}

    def asked_for(self, model: str) -> AskedFor:
        """What requests want of a model."""
        asked_at = self._asked_at.get(model)
        seconds_ago = None if asked_at is None else self._monotonic() - asked_at
        return AskedFor(self._waiting[model], seconds_ago)

    async def pick(self, target: ModelTarget, *, until: float) -> EngineRoute:
        """Waits until `until` (monotonic seconds). Raises UnknownModel, VersionNotServed, NoEngine."""
        await self._require_known(target)
        self._asked_at[target.model] = self._monotonic()
        for idle in [engine_id for engine_id, count in self.busy.items() if count == 0]:
            del self.busy[idle]
        self._waiting[target.model] += 1
        try:
            return await self._found(target, until)
        finally:
            self._waiting[target.model] -= 1

    async def _found(self, target: ModelTarget, until: float) -> EngineRoute:
        while True:
            engines = self._directory.view.serving(target)
            if not engines and target.version is not None:
                raise VersionNotServed(
                    f"no engine holds {target}; evaluations load and drop versions", param="model"
                )
            head = self._directory.view.models[target.model]
            engine = choose(
                engines, head_version=head.head_version, busy=self.busy, suspects=self._suspects(engines)
            )
            if engine is not None:
                return engine
            left_s = until - self._monotonic()
            if left_s <= 0:
                raise NoEngine(self._why(target, engines))
            await self._directory.changed(min(left_s, _RECHECK_S if engines else left_s))

    def suspect(self, engine: EngineRoute) -> None:
        """Avoid an engine until its engine supervisor renews the lease, or for a while."""
        now = self._monotonic()
        self._suspicions = {one: why for one, why in self._suspicions.items() if why.until > now}
        self._suspicions[engine.engine_id] = _Suspicion(engine.renewal, now + self._suspect_s)

    def _suspects(self, engines: list[EngineRoute]) -> list[str]:
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
        if target.model in view.models and (target.version is None or view.serving(target)):
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
        return f"no engine serves {target} on channel head; is its engine supervisor running?"
