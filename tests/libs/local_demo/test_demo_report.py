"""The demo's verdict: hand-worked intervals, and each bar refusing on its own."""

from dataclasses import replace
from typing import Any

import pytest

from local_demo.report import DemoReport, Fed, HeldOut, Ledger, Reloads, Served, Walls, quantile, wilson
from upcycle.usage import Usage


def good() -> DemoReport:
    """A demo that closed the loop."""
    return DemoReport(
        before=HeldOut(50, 240),
        after=HeldOut(216, 240),
        ledger=Ledger(1000, 1000, 0, {"trained": 900, "evaluated": 100}),
        fed=Fed({"run-a": 38, "run-b": 61}, 12),
        policy_versions=20,
        checkpoints_saved=4,
        checkpoints_promoted=3,
        checkpoints_held=1,
        reloads=Reloads(24, 0, (80.0, 100.0, 400.0)),
        served=Served("incident", 20, "d" * 64, 1e-6),
        promoted_digest="d" * 64,
        production_requests=900,
        production_failures=0,
        trace_id="ab" * 16,
        seed=1,
        wall_s=Walls(20.0, 8.0, 120.0, 160.0),
        usage=Usage(engine_s=30.0, environment_s=400.0, trainer_s=60.5),
    )


def test_wilson_of_worked_numbers() -> None:
    # 8 of 10, z = 1.96: centre (0.8 + 3.8416/20) / 1.38416 = 0.71675,
    # half 1.96 * sqrt(.016 + .009604) / 1.38416 = 0.22658
    low, high = wilson(8, 10, z=1.96)
    assert low == pytest.approx(0.49017, abs=1e-4)
    assert high == pytest.approx(0.94332, abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def test_nearest_rank_quantiles() -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0
    assert quantile([], 0.5) is None


def test_the_report_has_a_cost_only_where_prices_are_set() -> None:
    seconds = {"engine_s": 30.0, "environment_s": 400.0, "trainer_s": 60.5}
    assert good().to_json()["usage"] == seconds
    priced = replace(good(), usage=replace(good().usage, cost=0.25))
    assert priced.to_json()["usage"] == {**seconds, "cost": 0.25}


def test_a_closed_loop_falls_short_of_nothing() -> None:
    assert good().shortfalls() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"before": HeldOut(90, 240)}, "began at 37.5%"),
        ({"after": HeldOut(180, 240)}, "ended at 75.0%"),
        ({"before": HeldOut(1, 3), "after": HeldOut(5, 6)}, "overlap"),
        ({"ledger": Ledger(1000, 999, 0, {})}, "1000 requested, 999 settled"),
        ({"ledger": Ledger(1000, 1000, 1, {})}, "1 episode is still in flight"),
        ({"checkpoints_promoted": 1}, "1 promotions"),
        ({"reloads": Reloads(3, 1, ())}, "1 reloads failed"),
        ({"fed": Fed({"run-a": 38, "run-b": 0}, 12)}, "no group of the evaluation run-b was trained"),
        ({"production_failures": 2}, "2 production requests failed"),
        ({"promoted_digest": "e" * 64}, "does not serve the promoted digest"),
    ],
)
def test_each_bar_refuses_alone(change: dict[str, Any], said: str) -> None:
    shortfalls = replace(good(), **change).shortfalls()
    assert any(said in shortfall for shortfall in shortfalls)


def test_the_document_has_the_fields_that_are_promised() -> None:
    document = good().to_json()
    assert set(document["held_out"]["before"]) == {"successes", "episodes", "rate", "ci95"}
    assert set(document["ledger"]) == {"requested", "settled", "in_flight", "by_state"}
    assert document["evaluations_trained"] == {
        "groups_trained": {"run-a": 38, "run-b": 61},
        "episodes_sampled_before_first_step": 12,
    }
    assert document["reloads"] == {
        "count": 24,
        "failed": 0,
        "promoted_to_first_token_ms": {"p50": 100.0, "p95": 400.0},
    }
    assert set(document["served"]) == {"model", "version", "digest", "canary_max_abs_diff"}
    assert set(document["wall_s"]) == {"setup", "baseline", "training", "total"}
