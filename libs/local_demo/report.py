"""The demo's result as data, and the bars it must clear: a loop that did not learn has failed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from local_demo.head_watch import WATCH, WatchedHead
from upcycle.api.common.v1.common_pb2 import PURPOSE_TRAIN
from upcycle.api.taskset.v1.taskset_pb2 import Run
from upcycle.audits import LABEL, Audit
from upcycle.usage import Usage, total_usage
from upcycle.wire import usage_of
from upcycle.wording import amount

MAX_BEFORE = 0.35
MIN_AFTER = 0.80
MIN_PROMOTIONS = 2


@dataclass(frozen=True, slots=True)
class Selected:
    """Success on the gate's tasks when head was promoted: the attempts that selected it, so it flatters."""

    version: int
    candidate_rate: float
    head_rate: float
    attempts: int  # per task and side


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the demo cost."""

    episodes: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where every requested episode ended."""

    requested: int
    settled: int
    in_flight: int
    by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Served:
    """What the gateway's last answer was made with."""

    model: str
    version: int
    digest: str
    canary_max_abs_diff: float


@dataclass(frozen=True, slots=True)
class Reloads:
    """Reloads of all engines; milliseconds from promotion to the first token that production received."""

    count: int
    failed: int
    promoted_to_first_token_ms: Sequence[float]

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        quantiles = {
            "p50": quantile(self.promoted_to_first_token_ms, 0.5),
            "p95": quantile(self.promoted_to_first_token_ms, 0.95),
        }
        return {"count": self.count, "failed": self.failed, "promoted_to_first_token_ms": quantiles}


@dataclass(frozen=True, slots=True)
class Walls:
    """Seconds of wall clock."""

    setup: float
    baseline: float
    training: float
    audit: float
    watch: float
    total: float


@dataclass(frozen=True, slots=True)
class Fed:
    """What evaluations gave to the training run. groups: that trained, by evaluation.

    sampled_before_first_step: episodes that the run had sampled itself when its first step was done.
    """

    groups: Mapping[str, int]
    sampled_before_first_step: int

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        return {
            "groups_trained": dict(self.groups),
            "episodes_sampled_before_first_step": self.sampled_before_first_step,
        }


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything `report.json` says."""

    audit: Audit
    gate: Selected | None
    ledger: Ledger
    fed: Fed
    policy_versions: int
    checkpoints_saved: int
    checkpoints_promoted: int
    checkpoints_held: int
    reloads: Reloads
    served: Served
    promoted_digest: str
    production_requests: int
    production_failures: int
    trace_id: str
    seed: int
    wall_s: Walls
    usage: Usage
    """Of all runs."""
    parts: Mapping[str, Part]
    """Of it: training, gate, audit, watch, evaluations."""
    watched: WatchedHead | None
    """None: nothing was promoted."""

    def to_json(self) -> dict[str, Any]:
        """The document written to `.upcycle/demo/report.json`."""
        return {
            "audit": self.audit.to_json(),
            "gate_selecting": None if self.gate is None else asdict(self.gate),
            "watch": None if self.watched is None else self.watched.to_json(),
            "ledger": {**asdict(self.ledger), "by_state": dict(self.ledger.by_state)},
            "evaluations_trained": self.fed.to_json(),
            "policy_versions": self.policy_versions,
            "checkpoints_saved": self.checkpoints_saved,
            "checkpoints_promoted": self.checkpoints_promoted,
            "checkpoints_held": self.checkpoints_held,
            "reloads": self.reloads.to_json(),
            "served": asdict(self.served),
            "production": {"requests": self.production_requests, "failures": self.production_failures},
            "trace_id": self.trace_id,
            "seed": self.seed,
            "wall_s": {key: round(value, 2) for key, value in asdict(self.wall_s).items()},
            "usage": _rounded(self.usage),
            "parts": {
                name: {"episodes": part.episodes, **_rounded(part.usage)} for name, part in self.parts.items()
            },
        }

    def shortfalls(self) -> list[str]:
        """What a demo must show and this one did not; empty: it closed the loop."""
        before, after = self.audit.before, self.audit.after
        checks = (
            (
                before.rate <= MAX_BEFORE,
                f"audited success began at {before.rate:.1%}, above {MAX_BEFORE:.0%}",
            ),
            (after.rate >= MIN_AFTER, f"audited success ended at {after.rate:.1%}, below {MIN_AFTER:.0%}"),
            (self.audit.gain_ci95[0] > 0, "the 95 % interval of the audited gain holds 0"),
            (
                self.ledger.requested == self.ledger.settled,
                f"{self.ledger.requested} requested, {self.ledger.settled} settled",
            ),
            (
                self.ledger.in_flight == 0,
                f"{amount(self.ledger.in_flight, 'episode is', 'episodes are')} still in flight",
            ),
            (
                self.checkpoints_promoted >= MIN_PROMOTIONS,
                f"{self.checkpoints_promoted} promotions, {MIN_PROMOTIONS} wanted",
            ),
            (self.reloads.failed == 0, f"{self.reloads.failed} reloads failed"),
            (self.production_failures == 0, f"{self.production_failures} production requests failed"),
            (self.served.digest == self.promoted_digest, "the gateway does not serve the promoted digest"),
        )
        unfed = [run_id for run_id, groups in self.fed.groups.items() if not groups]
        watch = "" if self.watched is None else self.watched.shortfall
        return [
            *(message for passed, message in checks if not passed),
            *(f"no group of the evaluation {run_id} was trained" for run_id in unfed),
            *([watch] if watch else []),
        ]


def parts_of(runs: Iterable[Run]) -> dict[str, Part]:
    """Episodes and seconds by part of the demo."""
    found: dict[str, list[Run]] = {"training": [], "gate": [], LABEL: [], WATCH: [], "evaluations": []}
    for run in runs:
        found[_part(run)].append(run)
    return {
        name: Part(sum(run.counts.requested for run in its), total_usage(usage_of(run.usage) for run in its))
        for name, its in found.items()
    }


def _part(run: Run) -> str:
    if run.spec.purpose == PURPOSE_TRAIN:
        return "training"
    first = run.spec.label.partition(" ")[0]
    return first if first in ("gate", LABEL, WATCH) else "evaluations"


def _rounded(usage: Usage) -> dict[str, float]:
    return {key: round(value, 4) for key, value in usage.of_machines().items()}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)
