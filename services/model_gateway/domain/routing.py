"""Engines as the registry knows them, and which of them a request goes to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from engine_client import SERVING_STATES, EngineState
from identities.entities import checkpoint_id
from model_gateway.domain.calls import ModelTarget


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """A live lease."""

    engine_id: str
    base_url: str
    model: str
    follows_head: bool
    version: int
    digest: str
    held_versions: frozenset[int]
    state: EngineState
    renewal: str  # changes with each renewal, so that one after a failure clears the suspicion


@dataclass(frozen=True, slots=True)
class ModelHead:
    """A model and what its head is."""

    model: str
    head_version: int
    head_checkpoint_id: str
    created_s: int


@dataclass(frozen=True, slots=True)
class RoutingView:
    """What the registry said last."""

    models: Mapping[str, ModelHead] = field(default_factory=dict)
    engines: tuple[EngineRoute, ...] = ()

    def serving(self, target: ModelTarget) -> list[EngineRoute]:
        """Engines that can take a request for the target, now or once their reload is done."""
        usable = (one for one in self.engines if one.model == target.model and one.state in SERVING_STATES)
        if target.version is None:
            return [one for one in usable if one.follows_head]
        return [one for one in usable if served_name(one, target) is not None]

    def is_settled(self, engine: EngineRoute) -> bool:
        """Whether the lease's version is certain: no reload is under way or due."""
        head = self.models.get(engine.model)
        if engine.state is EngineState.RELOADING or head is None:
            return False
        return not engine.follows_head or engine.version == head.head_version


def served_name(engine: EngineRoute, target: ModelTarget) -> str | None:
    """The name under which an engine serves the target; None when it does not."""
    if target.version is None:
        return target.model if engine.follows_head else None
    if target.version in engine.held_versions:
        return f"{target.model}@v{target.version}"
    is_served = engine.version == target.version and engine.state is not EngineState.RELOADING
    return target.model if is_served else None


def choose(
    engines: Iterable[EngineRoute], *, head_version: int, busy: Mapping[str, int], suspects: Iterable[str]
) -> EngineRoute | None:
    """The engine to try: not suspect, at head, not reloading, least busy; None when all are suspect."""
    avoided = frozenset(suspects)
    trusted = [engine for engine in engines if engine.engine_id not in avoided]
    if not trusted:
        return None
    return min(
        trusted,
        key=lambda engine: (
            engine.version != head_version,
            engine.state is EngineState.RELOADING,
            busy.get(engine.engine_id, 0),
            engine.engine_id,
        ),
    )


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """Which weights produced tokens; oldest < newest where a reload fell into the middle."""

    model: str
    newest: int
    oldest: int
    digest: str  # of newest

    @property
    def checkpoint_id(self) -> str:
        """Of the newest version."""
        return checkpoint_id(self.model, self.newest)


@dataclass(frozen=True, slots=True)
class Promotion:
    """Head moved; `first_token_s` is None until a token of the new weights was served."""

    model: str
    version: int
    digest: str
    promoted_at: datetime
    first_token_s: float | None = None
