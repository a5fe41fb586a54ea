"""Prometheus series of the registry, counted after the transaction that they are about has committed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from checkpoint_registry.domain.jobs import GATE_ACTOR, GateJob
from checkpoint_registry.domain.models import HeadMove

HEAD_MOVES: Final = Counter("upcycle_registry_head_moves", "Moves of head.", ["model", "direction", "by"])
HEAD_VERSION: Final = Gauge("upcycle_registry_head_version", "Version that is head.", ["model"])
DECISIONS: Final = Counter(
    "upcycle_registry_gate_decisions", "Candidates by how they left the gate.", ["model", "outcome"]
)
DECIDED_S: Final = Histogram(
    "upcycle_registry_gate_seconds",
    "From recording a candidate to the decision about it.",
    ["model"],
    buckets=(1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600),
)


SESSION_PAIRS: Final = Gauge(
    "upcycle_registry_session_pairs",
    "Pairs of graded sessions of head and of the canary beside it, in the release under way.",
    ["model"],
)
WATCH_ALARMS: Final = Gauge(
    "upcycle_registry_watch_alarms",
    "Open alarms of reward hacks about the pairs of the head that is watched, and the run that trained it.",
    ["model"],
)
VERSIONS_REMOVED: Final = Counter(
    "upcycle_registry_versions_removed", "Published versions that retention removed.", ["model"]
)
SWEEP_FAILURES: Final = Counter(
    "upcycle_registry_sweep_failures", "Sweeps of old versions that something kept from ending."
)


def versions_removed(gone: Mapping[str, Sequence[int]]) -> None:
    """A sweep ended."""
    for model, versions in gone.items():
        VERSIONS_REMOVED.labels(model).inc(len(versions))


def head_moved(move: HeadMove, version: int) -> None:
    """Head moved, by the gate or by a person; a person's name is no label."""
    direction = "forward" if move.is_forward else "back"
    by = GATE_ACTOR if move.actor == GATE_ACTOR else "person"
    HEAD_MOVES.labels(move.model, direction, by).inc()
    HEAD_VERSION.labels(move.model).set(version)


def decided(job: GateJob, outcome: str, at: datetime) -> None:
    """A candidate left the gate."""
    DECISIONS.labels(job.model, outcome).inc()
    DECIDED_S.labels(job.model).observe((at - job.created_at).total_seconds())
