"""The demo's report: each bar refusing on its own, and what the audit says of both versions."""

from dataclasses import replace
from typing import Any

import pytest

from local_demo.head_watch import WatchedHead
from local_demo.report import (
    DemoReport,
    Fed,
    Ledger,
    Part,
    Reloads,
    Selected,
    Served,
    Walls,
    parts_of,
    quantile,
)
from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL, PURPOSE_TRAIN
from upcycle.api.common.v1.common_pb2 import Usage as UsageMessage
from upcycle.api.taskset.v1.taskset_pb2 import EpisodeResult, Run, RunCounts, RunSpec
from upcycle.audits import Audit, AuditedVersion, audit_of
from upcycle.impossible_tasks import IMPOSSIBLE_FAMILY
from upcycle.statistics.intervals import TaskTotal
from upcycle.usage import Usage


def version(*solved: int) -> AuditedVersion:
    """Two attempts at each task, of which so many succeeded."""
    return AuditedVersion(tuple(TaskTotal(one, 2) for one in solved))


LOW, HIGH = (0, 1, 0, 1, 0, 0) * 20, (2, 2, 1, 2, 2, 2) * 20


def good() -> DemoReport:
    """A demo that closed the loop."""
    return DemoReport(
        audit=Audit(version(*LOW), version(*HIGH)),
        gate=Selected(20, 0.95, 0.7, 4),
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
        wall_s=Walls(20.0, 8.0, 120.0, 9.0, 3.0, 160.0),
        usage=Usage(engine_s=30.0, environment_s=400.0, trainer_s=60.5),
        parts={"gate": Part(960, Usage(engine_s=9.0, environment_s=40.0, trainer_s=0.0))},
        watched=WatchedHead(20, 100),
    )


def test_both_sides_of_the_audit_are_distinguished_by_member_and_impossible_tasks_left_out() -> None:
    solved = [("a", 0), ("a", 2), ("a", 3), ("b", 0)]
    results = [
        EpisodeResult(task_slug=task, member=member, success=(task, member) in solved)
        for task in "ab"
        for member in range(4)
    ]
    results += [EpisodeResult(task_slug="c", member=1, success=True, family=IMPOSSIBLE_FAMILY)]
    audit = audit_of(results)
    assert audit == Audit(before=version(1, 0), after=version(2, 1))
    # Head: 3 of 4, base: 1 of 4. Both tasks gain one half: without spread nothing is known of other tasks.
    assert (audit.after.rate, audit.before.rate) == (0.75, 0.25)
    assert (audit.gain, audit.gain_ci95) == (0.5, (-1.0, 1.0))


def test_the_gain_is_paired_by_task() -> None:
    # Differences 1, 0.5, 0, 0.5: mean 0.5 and four tasks, which do not show that it is above 0.
    audit = Audit(version(0, 0, 2, 1), version(2, 1, 2, 2))
    low, high = audit.gain_ci95
    assert audit.gain == 0.5
    assert low < 0 < 0.5 < high
    # Differences 1, 0.5, 0.5, 0.5: alike, though both versions differ as much from task to task.
    steady = Audit(version(0, 0, 1, 1), version(2, 1, 2, 2))
    assert (steady.before.rate, steady.after.rate) == (0.25, 0.875)
    assert steady.gain_ci95[0] > 0


def test_what_each_part_cost() -> None:
    def run(label: str, purpose: int, episodes: int, engine_s: float) -> Run:
        return Run(
            spec=RunSpec(label=label, purpose=purpose),  # type: ignore[arg-type]
            counts=RunCounts(requested=episodes),
            usage=UsageMessage(engine_s=engine_s),
        )

    found = parts_of(
        [
            run("", PURPOSE_TRAIN, 100, 8.0),
            run("gate incident@v7 against v0", PURPOSE_EVAL, 40, 2.0),
            run("gate incident@v14 against v7", PURPOSE_EVAL, 20, 1.0),
            run("audit", PURPOSE_EVAL, 10, 0.5),
            run("watch incident@v14 against v7", PURPOSE_EVAL, 100, 3.5),
            run("gatekeeping", PURPOSE_EVAL, 5, 0.25),
        ]
    )
    assert {name: (part.episodes, part.usage.engine_s) for name, part in found.items()} == {
        "training": (100, 8.0),
        "gate": (60, 3.0),
        "audit": (10, 0.5),
        "watch": (100, 3.5),
        "evaluations": (5, 0.25),
    }


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
        ({"audit": Audit(version(1, 1, 0, 1), version(2, 2, 2, 2))}, "began at 37.5%"),
        ({"audit": Audit(version(0, 0, 0, 0), version(2, 2, 1, 1))}, "ended at 75.0%"),
        ({"audit": Audit(version(0, 0, 2, 0), version(2, 2, 0, 2))}, "the audited gain holds 0"),
        ({"ledger": Ledger(1000, 999, 0, {})}, "1000 requested, 999 settled"),
        ({"ledger": Ledger(1000, 1000, 1, {})}, "1 episode is still in flight"),
        ({"checkpoints_promoted": 1}, "1 promotions"),
        ({"reloads": Reloads(3, 1, ())}, "1 reloads failed"),
        ({"fed": Fed({"run-a": 38, "run-b": 0}, 12)}, "no group of the evaluation run-b was trained"),
        ({"production_failures": 2}, "2 production requests failed"),
        ({"watched": WatchedHead(20, 99)}, "head v20 was watched over 99 pairs, 100 wanted"),
        ({"watched": WatchedHead(20, 100, "v20 did worse")}, "v20 went back: v20 did worse"),
        ({"promoted_digest": "e" * 64}, "does not serve the promoted digest"),
    ],
)
def test_each_bar_refuses_alone(change: dict[str, Any], said: str) -> None:
    shortfalls = replace(good(), **change).shortfalls()
    assert any(said in shortfall for shortfall in shortfalls)


def test_the_document_has_the_fields_that_are_promised() -> None:
    document = good().to_json()
    assert set(document["audit"]["before"]) == {"successes", "episodes", "tasks", "rate", "ci95"}
    assert set(document["audit"]["gain"]) == {"difference", "ci95"}
    assert document["gate_selecting"] == {
        "version": 20,
        "candidate_rate": 0.95,
        "head_rate": 0.7,
        "attempts": 4,
    }
    gate = {"episodes": 960, "engine_s": 9.0, "environment_s": 40.0, "trainer_s": 0.0}
    assert document["parts"] == {"gate": gate}
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
    assert set(document["wall_s"]) == {"setup", "baseline", "training", "audit", "watch", "total"}
    assert document["watch"] == {"version": 20, "pairs": 100, "rolled_back": ""}
