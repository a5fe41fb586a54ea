"""What an engine supervisor knows: which version is wanted, which one serves, whether its canary agrees."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from blob_store import BlobRef
from engine_client import EngineState
from identities.objects import PolicyFolder


class FailureKind(StrEnum):
    """Why a version was not taken; the values are part of engine.reload_failed."""

    DIGEST_MISMATCH = "digest_mismatch"
    CANARY_MISMATCH = "canary_mismatch"
    FETCH_FAILED = "fetch_failed"
    ENGINE_ERROR = "engine_error"
    VERSION_REMOVED = "version_removed"


class VersionRefused(Exception):
    """A version cannot be served; the old one still is."""

    def __init__(self, kind: FailureKind, detail: str, *, may_pass_later: bool) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail
        self.may_pass_later = may_pass_later
        """False: the version itself is bad; asking again changes nothing."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class EngineBroken(Exception):
    """The engine holds neither the new nor the old weights, or does not answer: only a restart helps."""


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """A version that an engine should serve."""

    version: int
    digest: str
    manifest: BlobRef
    announced_at: datetime | None = None
    """When it was published or promoted; None where it was found by asking."""


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """Token ids, and the trainer's log-probability of each after the first."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """A fetched version: files on local disk whose every digest was checked."""

    target: EngineTarget
    directory: Path
    canary: tuple[CanaryRow, ...]
    dtype: str
    weights_digest: str
    """Identity of the weight files alone; equal ones must score alike."""


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """What an engine serves, proven."""

    policy: Policy
    canary_max_abs_diff: float

    @property
    def version(self) -> int:
        """The proven version."""
        return self.policy.target.version


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A reload that was proven."""

    from_version: int
    serving: ServedPolicy
    fetch_s: float
    paused_s: float


@dataclass(frozen=True, slots=True)
class CanaryTolerance:
    """Largest allowed distance of the engine's log-probabilities from the trainer's, in nats."""

    mean: float
    max: float


# fp32 kernels of trainer and engines differ by 1e-6 to 1e-5 (measured); bf16 ones by about 5e-3 (PipelineRL).
_TOLERANCE = {"float32": CanaryTolerance(1e-4, 5e-3), "bfloat16": CanaryTolerance(1e-2, 0.2)}


def tolerance_for(dtype: str) -> CanaryTolerance:
    """Unknown dtypes get the wider one: it still tells a version from another model's."""
    return _TOLERANCE.get(dtype, _TOLERANCE["bfloat16"])


Rows = Sequence[Sequence[float]]


def judge_canary(policy: Policy, measured: Rows, before: Rows | None, engine_dtype: str = "float32") -> float:
    """The largest distance of `measured` from the trainer's values, when the canary agrees.

    `before`: the same rows scored by other weights, when they were others; equal values then mean that
    nothing was loaded. `engine_dtype`: what the engine computes in; where it or the weights are of less
    than float32, the wider tolerance holds. Raises VersionRefused.
    """
    what = f"v{policy.target.version}"
    if not policy.canary:
        return 0.0
    gaps = [
        abs(seen - wanted)
        for row, seen_row in zip(policy.canary, measured, strict=True)
        for wanted, seen in zip(row.logprobs, seen_row, strict=True)
    ]
    if not all(map(math.isfinite, gaps)):
        raise _mismatch(f"{what}: the engine's log-probabilities are not finite")
    dtype = max(policy.dtype, engine_dtype, key=lambda name: tolerance_for(name).mean)
    allowed = tolerance_for(dtype)
    mean, worst = sum(gaps) / len(gaps), max(gaps)
    if mean > allowed.mean or worst > allowed.max:
        raise _mismatch(
            f"{what}: the engine's log-probabilities are off by {mean:.2e} on average and {worst:.2e} at "
            f"worst; {dtype} allows {allowed.mean:.0e} and {allowed.max:.0e}"
        )
    if before is not None and [list(row) for row in measured] == [list(row) for row in before]:
        raise _mismatch(f"{what}: scores are those of before the reload; the engine kept its old weights")
    return worst


def _mismatch(detail: str) -> VersionRefused:
    return VersionRefused(FailureKind.CANARY_MISMATCH, detail, may_pass_later=False)


@dataclass(frozen=True, slots=True)
class HeldFacts:
    """What an engine serves beside its channel's version. max_held: how many it can; pinned: versions of its
    model that evaluation runs need; failures: what it was to serve and cannot, and why."""

    held: tuple[PolicyFolder, ...] = ()
    max_held: int = 0
    pinned: tuple[int, ...] = ()
    failures: Mapping[PolicyFolder, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """What an engine supervisor promises about its engine."""

    base_url: str
    state: EngineState
    reason: str
    serving: ServedPolicy | None
    beside: HeldFacts


@dataclass(slots=True)
class PinRequests:
    """Which runs need which version, in the order in which they were submitted; and which policies the
    registry has this engine hold."""

    _versions_of_run: dict[str, tuple[int, ...]] = field(default_factory=dict)
    _holds: tuple[PolicyFolder, ...] = ()

    def hold_only(self, policies: Sequence[PolicyFolder]) -> bool:
        """These are all that the registry has this engine hold; whether that is news."""
        found = tuple(dict.fromkeys(policies))
        is_news = set(found) != set(self._holds)
        self._holds = found
        return is_news

    def needed(self, model: str) -> list[PolicyFolder]:
        """What an engine of `model` is to serve beside its channel's version, each once. Holds come first:
        they were granted for places that this engine had."""
        pinned = (PolicyFolder(model, version) for version in self.versions())
        return list(dict.fromkeys((*self._holds, *pinned)))

    def pin(self, run_id: str, *versions: int) -> None:
        """An evaluation run pins a version, or two that it plays side by side."""
        self._versions_of_run[run_id] = versions

    def unpin(self, run_id: str) -> None:
        """It needs it no more."""
        self._versions_of_run.pop(run_id, None)

    @property
    def runs(self) -> list[str]:
        """Runs whose pins are kept."""
        return list(self._versions_of_run)

    def versions(self) -> list[int]:
        """Needed versions, each once, longest waiting first."""
        return list(dict.fromkeys(one for versions in self._versions_of_run.values() for one in versions))
