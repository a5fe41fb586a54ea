"""The audit says no: each doctored step, span, ledger and run is seen."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from tests.chaos import soak
from tests.chaos.audit import BROKEN, Evidence, judge
from tests.chaos.campaign import verdict

from upcycle.api.common.v1.common_pb2 import PURPOSE_EVAL, PURPOSE_TRAIN
from upcycle.api.taskset.v1.taskset_pb2 import (
    RUN_STATE_COMPLETED,
    RUN_STATE_FAILED,
    RUN_STATE_RUNNING,
    Run,
    RunCounts,
    RunSpec,
)
from upcycle.api.training.v1.events_pb2 import StepCompleted
from upcycle.api.trajectory.v1.service_pb2 import GetLedgerResponse

TRAINED = {"trained": 3, "failed": 1}
ENDED = {"runs": {"completed": 1}, "hung": 0}


def evidence() -> Evidence:
    """A training run of four episodes and the evaluation of its gate, of two; all is well."""
    return Evidence(
        ledger=ledger(6, {**TRAINED, "evaluated": 2}),
        ledgers={"train": ledger(4, TRAINED), "gate": ledger(2, {"evaluated": 2})},
        runs=[
            Run(
                run_id="train",
                state=RUN_STATE_COMPLETED,
                spec=RunSpec(purpose=PURPOSE_TRAIN),
                counts=RunCounts(requested=4, settled=4, by_state=TRAINED),
            ),
            Run(
                run_id="gate",
                state=RUN_STATE_COMPLETED,
                spec=RunSpec(purpose=PURPOSE_EVAL),
                counts=RunCounts(requested=2, settled=2, by_state={"evaluated": 2}),
            ),
        ],
        records=[record("base"), record("first", version=1)],
        steps=[
            StepCompleted(run_id="train", step=0, trajectory_ids=["a", "b"]),
            StepCompleted(run_id="train", step=1, trajectory_ids=["c"]),
        ],
        digests={0: "base", 1: "first"},
    )


def ledger(
    requested: int, by_state: dict[str, int], *, conflicts: int = 0, twice: int = 0
) -> GetLedgerResponse:
    """Of episodes that are all settled."""
    return GetLedgerResponse(
        requested=requested, settled=requested, by_state=by_state, conflicts=conflicts, trained_twice=twice
    )


def record(digest: str, *, version: int = 0) -> dict[str, Any]:
    """A trajectory of one turn."""
    return {"body": {"turns": [{"versions": [{"version": version, "weights_digest": digest}]}]}}


def lost_request(found: Evidence) -> Evidence:
    """The ledger never heard of one episode: its own equation holds."""
    fewer = ledger(5, {**TRAINED, "evaluated": 1})
    ledgers = {**found.ledgers, "gate": ledger(1, {"evaluated": 1})}
    return replace(found, ledger=fewer, ledgers=ledgers)


def another_end(found: Evidence) -> Evidence:
    """As many episodes, and one that the planner has as failed is trained."""
    ledgers = {**found.ledgers, "train": ledger(4, {"trained": 4})}
    return replace(found, ledgers=ledgers)


def unlisted_run(found: Evidence) -> Evidence:
    """The planner forgot the gate's run."""
    return replace(found, runs=found.runs[:1])


def unsettled(found: Evidence) -> Evidence:
    """One episode is in flight for both."""
    found.ledger.settled, found.ledger.in_flight = 5, 1
    found.ledgers["gate"].settled, found.ledgers["gate"].in_flight = 1, 1
    found.runs[1].counts.settled, found.runs[1].counts.in_flight = 1, 1
    return found


def open_run(found: Evidence) -> Evidence:
    """All is settled, and the gate's run does not end."""
    found.runs[1].state = RUN_STATE_RUNNING
    return found


DOCTORED: list[tuple[Callable[[Evidence], Evidence], dict[str, Any]]] = [
    (
        lost_request,
        {
            "lost": 1,
            "disagreements": [
                "gate: 2 requested for the planner, 1 in the ledger",
                "gate: 2 settled for the planner, 1 in the ledger",
            ],
        },
    ),
    (another_end, {"disagreements": ["train: 3 trained for the planner, 4 in the ledger"]}),
    (unlisted_run, {"disagreements": ["the ledger has 6 episodes, 4 of them of runs that are listed"]}),
    (unsettled, {"in_flight": 1, "lost": 1}),
    (open_run, {"open_runs": ["gate is running"]}),
    (lambda found: replace(found, ledger=ledger(6, {}, conflicts=1)), {"conflicts": 1}),
    (lambda found: replace(found, ledger=ledger(6, {}, twice=1)), {"trained_twice": 1}),
    (
        lambda found: replace(
            found, steps=[*found.steps, StepCompleted(run_id="other", step=0, trajectory_ids=["b", "d"])]
        ),
        {"trained_twice": 1},
    ),
    (
        lambda found: replace(
            found, steps=[*found.steps, StepCompleted(run_id="train", step=2, trajectory_ids=["c"])]
        ),
        {"trained_twice": 1},
    ),
    (lambda found: replace(found, records=[record("base", version=1)]), {"stale_served": 1}),
    (lambda found: replace(found, records=[record("first", version=2)]), {"stale_served": 1}),
    (lambda found: replace(found, records=[{"body": {"turns": []}}]), {"lost": 1}),
]


def test_where_all_is_well_nothing_is_broken() -> None:
    result = judge(evidence())
    assert result.broken == {}
    assert (result.requested, result.settled, result.gate_runs) == (6, 6, {"completed": 1})
    assert verdict({**asdict(result), **ENDED})


@pytest.mark.parametrize(("doctor", "broken"), DOCTORED)
def test_what_is_doctored_fails_the_campaign(
    doctor: Callable[[Evidence], Evidence], broken: dict[str, Any]
) -> None:
    result = judge(doctor(evidence()))
    assert result.broken == broken
    assert not verdict({**asdict(result), **ENDED})


def test_every_kind_of_damage_is_doctored_here() -> None:
    assert {what for _, broken in DOCTORED for what in broken} == set(BROKEN)


def test_a_run_that_hung_fails_the_campaign() -> None:
    assert not verdict({**asdict(judge(evidence())), **ENDED, "hung": 1})


def test_a_step_that_is_announced_again_is_the_same() -> None:
    found = evidence()
    assert judge(replace(found, steps=[*found.steps, *found.steps])).broken == {}


def test_an_evaluation_that_another_run_trains_later_is_no_disagreement() -> None:
    found = evidence()
    ledgers = {**found.ledgers, "gate": ledger(2, {"trained": 1, "evaluated": 1})}
    assert judge(replace(found, ledgers=ledgers)).broken == {}


def test_a_gate_orders_a_failed_evaluation_again() -> None:
    found = evidence()
    found.runs[1].state = RUN_STATE_FAILED
    result = judge(found)
    assert (result.broken, result.gate_runs) == ({}, {"failed": 1})


@pytest.mark.parametrize("runs", [{}, {"failed": 1}, {"completed": 3, "cancelled": 1}])
def test_a_campaign_whose_runs_are_not_all_completed_fails(runs: dict[str, int]) -> None:
    assert not verdict({**asdict(judge(evidence())), **ENDED, "runs": runs})


@pytest.mark.parametrize(
    "change",
    [{"settled": 0}, {"runs": {"completed": 2, "failed": 1}}, {"grows": ["planner: ..."]}, {"hung": 1}],
)
def test_a_soak_fails(change: dict[str, Any]) -> None:
    line = {"settled": 9, "runs": {"completed": 2}, "grows": [], "hung": 0}
    assert soak.verdict(line)
    assert not soak.verdict({**line, **change})
