"""The demo's result as data, and the bars it must clear: a loop that did not learn has failed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from upcycle.usage import Usage
from upcycle.wording import amount

MAX_BEFORE = 0.35
MIN_AFTER = 0.80
MIN_PROMOTIONS = 2


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Success on the held-out taskset, sampled at temperature 1."""

    successes: int
    episodes: int

    @property
    def rate(self) -> float:
        """Share of successes, 0..1."""
        return self.successes / self.episodes if self.episodes else 0.0

    @property
    def ci95(self) -> tuple[float, float]:
        """Wilson score interval, two-sided 95 %."""
        return wilson(self.successes, self.episodes)

    def to_json(self) -> dict[str, Any]:
        """Field names of report.json."""
        return {
            "successes": self.successes,
            "episodes": self.episodes,
            "rate": self.rate,
            "ci95": [round(bound, 4) for bound in self.ci95],
        }


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

    before: HeldOut
    after: HeldOut
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

    def to_json(self) -> dict[str, Any]:
        """The document written to `.upcycle/demo/report.json`."""
        return {
            "held_out": {"before": self.before.to_json(), "after": self.after.to_json()},
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
            "usage": {key: round(value, 4) for key, value in self.usage.of_machines().items()},
        }

    def shortfalls(self) -> list[str]:
        """What a demo must show and this one did not; empty: it closed the loop."""
        checks = (
            (
                self.before.rate <= MAX_BEFORE,
                f"held-out success began at {self.before.rate:.1%}, above {MAX_BEFORE:.0%}",
            ),
            (
                self.after.rate >= MIN_AFTER,
                f"held-out success ended at {self.after.rate:.1%}, below {MIN_AFTER:.0%}",
            ),
            (self.before.ci95[1] < self.after.ci95[0], "the 95 % intervals before and after overlap"),
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
        return [message for passed, message in checks if not passed] + [
            f"no group of the evaluation {run_id} was trained" for run_id in unfed
        ]


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, shrink = successes / trials, 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / shrink
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / shrink
    return max(0.0, centre - half), min(1.0, centre + half)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank quantile; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 1)
