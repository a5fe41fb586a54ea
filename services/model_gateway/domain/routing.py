"""Engines as the registry knows them, and which of them a request goes to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from engine_client import SERVING_STATES, EngineState, pinned_name
from identities.entities import checkpoint_id
from identities.objects import PolicyFolder
from model_gateway.domain.calls import ModelTarget
from model_gateway.domain.canary import Canary


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
    held_policies: frozenset[PolicyFolder] = frozenset()  # of other models of the same base
    failures: tuple[tuple[PolicyFolder, str], ...] = ()  # what it was to hold and cannot, and why
    kind: str = ""  # embedded, vllm

    @property
    def has_columns(self) -> bool:
        """Whether it may be asked for log-probabilities in columns; one of a version before answers in
        entries all the same."""
        return self.kind == "embedded"


@dataclass(frozen=True, slots=True)
class ModelHead:
    """A model and what its head is."""

    model: str
    head_version: int
    head_checkpoint_id: str
    created_s: int
    canary: Canary | None = None


@dataclass(frozen=True, slots=True)
class RoutingView:
    """What the registry said last."""

    models: Mapping[str, ModelHead] = field(default_factory=dict)
    engines: tuple[EngineRoute, ...] = ()

    def serving(self, target: ModelTarget) -> list[EngineRoute]:
        """Engines that can take a request for the target, now or once their reload is done."""
        usable = (one for one in self.engines if one.state in SERVING_STATES)
        return [one for one in usable if served_name(one, target) is not None]

    def at_head(self, target: ModelTarget) -> ModelTarget:
        """A model that no engine follows, such as a new fork, is served like a version: the one that head
        is."""
        follows = any(one.model == target.model and one.follows_head for one in self.engines)
        head = self.models.get(target.model)
        if target.version is not None or follows or head is None:
            return target
        return ModelTarget(target.model, head.head_version)

    def holding(self, target: ModelTarget) -> list[EngineRoute]:
        """Engines that serve a version under its own name, whatever their channel does."""
        name = pinned_name(target.model, target.version or 0)
        return [one for one in self.serving(target) if served_name(one, target) == name]

    def why_not_held(self, target: ModelTarget) -> str:
        """What engines say about a version that they were to hold and cannot; empty where none does."""
        wanted = PolicyFolder(target.model, target.version or 0)
        return "; ".join(
            f"{engine.engine_id}: {why}"
            for engine in self.engines
            for policy, why in engine.failures
            if policy == wanted
        )

    def is_settled(self, engine: EngineRoute) -> bool:
        """Whether the lease's version is certain: no reload is under way or due."""
        head = self.models.get(engine.model)
        if engine.state is EngineState.RELOADING or head is None:
            return False
        return not engine.follows_head or engine.version == head.head_version


def served_name(engine: EngineRoute, target: ModelTarget) -> str | None:
    """The name under which an engine serves the target; None when it does not."""
    is_own = engine.model == target.model
    if target.version is None:
        return target.model if is_own and engine.follows_head else None
    if is_own and target.version in engine.held_versions:
        return pinned_name(target.model, target.version)
    if PolicyFolder(target.model, target.version) in engine.held_policies:
        return pinned_name(target.model, target.version)
    is_served = engine.version == target.version and engine.state is not EngineState.RELOADING
    return target.model if is_own and is_served else None


def choose(
    engines: Iterable[EngineRoute], *, head_version: int, busy: Mapping[str, int], suspects: Iterable[str]
) -> EngineRoute | None:
    """The engine to try: not suspect, at head, not reloading, least busy; None when all are suspect."""
    avoided = frozenset(suspects)
    trusted = [engine for engine in engines if engine.engine_id not in avoided]
    if len(trusted) <= 1:
        return trusted[0] if trusted else None
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
