"""Holds: policies that an engine keeps loaded for a named holder, and which engine takes one. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from checkpoint_registry.domain.errors import NoEngine, NoRoom, OtherBase
from checkpoint_registry.domain.models import validate_slug
from identities.entities import parse_checkpoint_id
from identities.objects import PolicyFolder
from service_kit.errors import InvalidRequest

MAX_HOLD_S: Final = 86_400.0
MAX_HOLDER: Final = 64


@dataclass(frozen=True, slots=True)
class PolicyHold:
    """`holder` needs the policy on this engine until then."""

    model: str
    version: int
    holder: str
    engine_id: str
    expires_at: datetime

    @property
    def policy(self) -> PolicyFolder:
        """What is held."""
        return PolicyFolder(self.model, self.version)

    def __str__(self) -> str:
        until = f"{self.expires_at:%Y-%m-%d %H:%M:%S}"
        return f"{self.model}@v{self.version} for {self.holder!r} until {until} UTC"


@dataclass(frozen=True, slots=True)
class HoldRequest:
    """version: None: head."""

    model: str
    version: int | None
    ttl_s: float
    holder: str

    def validate(self) -> None:
        """Raises InvalidRequest."""
        validate_slug(self.model)
        if self.version is not None and self.version < 0:
            raise InvalidRequest(f"version {self.version} is below 0")
        if not math.isfinite(self.ttl_s) or not 0 < self.ttl_s <= MAX_HOLD_S:
            raise InvalidRequest(f"ttl_s {self.ttl_s:g} is not in 0..{MAX_HOLD_S:g} s")
        validate_holder(self.holder)


def validate_holder(holder: str) -> None:
    """Raises InvalidRequest."""
    if not holder.strip() or len(holder) > MAX_HOLDER:
        raise InvalidRequest(
            f"holder {holder!r:.80} must say who needs the policy, in 1 to {MAX_HOLDER} characters"
        )


@dataclass(frozen=True, slots=True)
class EngineRoom:
    """A live engine: base of the model that it follows, and what it can serve beside its channel's version.
    pinned: what evaluation runs need there."""

    engine_id: str
    base: str
    follows_head: bool
    max_held: int
    pinned: frozenset[PolicyFolder]

    @property
    def places(self) -> int:
        """For holds. One place is left to evaluation runs, which else would wait for the end of a hold."""
        return max(self.max_held - 1, min(self.max_held, 1))


def base_of(model: str, origins: Mapping[str, str]) -> str:
    """The model whose weights a chain of forks began with. origins: by model, the checkpoint that it was
    forked from; empty for one that was imported."""
    seen = {model}
    while (origin := parse_checkpoint_id(origins.get(model, ""))) is not None and origin.model not in seen:
        model = origin.model
        seen.add(model)
    return model


def choose_engine(
    policy: PolicyFolder, base: str, engines: Collection[EngineRoom], holds: Sequence[PolicyHold]
) -> str:
    """The engine that is to serve a policy: one that holds it already, else the one with most places left,
    those of production last. holds: those that have not expired. Raises NoEngine, OtherBase, NoRoom."""
    name = f"{policy.model}@v{policy.version}"
    fitting = [engine for engine in engines if engine.base == base and engine.max_held > 0]
    if not fitting:
        _refuse_without_engine(name, base, engines)
    known = {engine.engine_id for engine in fitting}
    held = [hold for hold in holds if hold.engine_id in known]
    for hold in sorted(held, key=lambda hold: hold.engine_id):
        if hold.policy == policy:
            return hold.engine_id
    left = {engine.engine_id: engine.places - len(_used(engine, held)) for engine in fitting}
    roomy = [engine for engine in fitting if left[engine.engine_id] > 0]
    if not roomy:
        raise NoRoom(f"no engine has room for {name}: {_held_words(fitting, held)}")
    best = min(roomy, key=lambda one: (one.follows_head, -left[one.engine_id], one.engine_id))
    return best.engine_id


def _used(engine: EngineRoom, holds: Sequence[PolicyHold]) -> frozenset[PolicyFolder]:
    return engine.pinned | {hold.policy for hold in holds if hold.engine_id == engine.engine_id}


def _refuse_without_engine(name: str, base: str, engines: Collection[EngineRoom]) -> None:
    others = sorted({engine.base for engine in engines if engine.max_held > 0} - {base})
    if others:
        raise OtherBase(
            f"{name} is of base {base!r}, and the engines that can hold policies are of base "
            f"{', '.join(map(repr, others))}: start an engine supervisor for a model of base {base!r}"
        )
    if engines:
        raise NoRoom(
            f"no engine can hold {name}: the {len(engines)} that run hold no policy beside their channel's "
            "(vLLM without POLICY_ENGINE_VLLM_LORA_RANK, or POLICY_ENGINE_MAX_HELD=0)"
        )
    raise NoEngine(f"no engine can hold {name}: no engine supervisor runs")


def _held_words(engines: Collection[EngineRoom], holds: Sequence[PolicyHold]) -> str:
    """What takes the places, and until when."""
    words = []
    for engine in sorted(engines, key=lambda one: one.engine_id):
        here = [hold for hold in holds if hold.engine_id == engine.engine_id]
        pins = sorted(engine.pinned - {hold.policy for hold in here})
        said = [*map(str, here), *(f"{one.model}@v{one.version} for an evaluation run" for one in pins)]
        words.append(f"{engine.engine_id} has {engine.places} for holds: {', '.join(said) or 'none in use'}")
    return (
        f"{'; '.join(words)}. Wait for the end of a hold, release one with `upcycle models release`, or "
        "raise POLICY_ENGINE_MAX_HELD"
    )
