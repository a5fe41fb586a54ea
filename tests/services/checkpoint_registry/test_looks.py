"""Looks at 2, 4, 8 attempts: what is ordered for each, at which level of the run, and what voids it."""

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa
from tests.services.checkpoint_registry.conftest import MODEL, START, RegistryHarness, judge
from tests.services.checkpoint_registry.planner_double import GATE, HELD_OUT

from checkpoint_registry.domain.jobs import GateSpec, JobPhase, RequestState
from checkpoint_registry.domain.models import CheckpointState
from checkpoint_registry.domain.pairs import NextPairs, PairRun, by_task, head_records, joined, next_pairs
from checkpoint_registry.domain.runs import EpisodeOutcome
from upcycle.gate.baseline import HeadRecord
from upcycle.gate.outcomes import Outcomes, TaskCount, TaskOutcomes
from upcycle.gate.spending import AlphaWealth

EIGHT = replace(GATE, attempts=8)
PAIR = PairRun(
    request_id="p",
    checkpoint_id="c",
    model=MODEL,
    head_checkpoint_id="h",
    head_revision=1,
    number=0,
    families=(),
    attempts=2,
    taskset="t",
    taskset_digest="d",
    profile_key="k",
    run_id="run-p",
    state=RequestState.FINISHED,
    detail="",
    updated_at=START,
)


async def begin(harness: RegistryHarness, gate: GateSpec) -> None:
    harness.planner.training_run("run-looks", MODEL, gate)
    await harness.save(1, "run-looks")
    await harness.drive()


async def test_each_look_orders_the_missing_attempts_alone(harness: RegistryHarness) -> None:
    await begin(harness, EIGHT)
    await harness.finish(1, 0.55, 0.45)
    said = await harness.reason(1)
    assert said.startswith("undecided: 40 tasks to be played up to 4 attempts; success 45.0% -> 55.0%")
    await harness.finish(1, 0.55, 0.45)
    await harness.finish(1, 0.5, 0.5)
    assert [(order.attempts, order.families) for order in harness.planner.orders.values()] == [
        (2, ()),
        (2, ()),
        (4, ()),
    ]
    assert len({order.seed for order in harness.planner.orders.values()}) == 3
    assert await harness.state(1) is CheckpointState.HELD
    assert "at 8 attempts a side" in await harness.reason(1)


async def test_a_candidate_without_a_gain_in_sight_is_held_early(harness: RegistryHarness) -> None:
    await begin(harness, EIGHT)
    await harness.finish(1, 0.2, 0.7)
    assert len(harness.planner.orders) == 1
    assert (await harness.reason(1)).startswith("held: a gain above 1.0% is unlikely")


async def test_only_families_at_risk_are_played_more_once_the_gain_is_shown(harness: RegistryHarness) -> None:
    await begin(harness, replace(EIGHT, critical=("family-2:0.02",)))
    await harness.finish(1, 0.55, 0.3)
    orders = list(harness.planner.orders.values())
    assert [(order.attempts, order.families) for order in orders] == [(2, ()), (2, ("family-2",))]
    assert "the gain is shown; 10 tasks of families at risk" in await harness.reason(1)
    await harness.finish(1, 1.0, 0.0)
    assert await harness.head() == 1


async def test_candidates_of_a_run_spend_its_error(harness: RegistryHarness) -> None:
    levels = []
    for version, rate in ((1, 0.4), (2, 0.95), (3, 0.4)):
        await judge(harness, version, rate, head_rate=0.4)
        job = await harness.gates.job(f"ckpt-{MODEL}-v{version:08d}")
        assert job is not None
        levels.append(job.level)
    first = AlphaWealth(0.05)
    second = first.after(promoted=False)
    third = second.after(promoted=True)
    assert levels == pytest.approx([one.next_level for one in (first, second, third)])
    assert await harness.pairs.tests("run-train") == [False, True, False]
    report = (await harness.models.version(MODEL, 3)).gate_json
    assert '"verdict": "inconclusive"' in report


async def test_a_candidate_that_was_superseded_before_its_first_look_costs_nothing(
    harness: RegistryHarness,
) -> None:
    await harness.save(1)
    await harness.drive()
    for version in (2, 3):
        await harness.save(version)
    await harness.decide(1, 0.4, 0.4)
    await harness.decide(3, 0.4, 0.4)
    assert await harness.pairs.tests("run-train") == [False, False]


async def test_a_judgement_that_a_move_of_head_voids_has_cost_its_level_if_it_was_looked_at(
    harness: RegistryHarness,
) -> None:
    await begin(harness, EIGHT)
    base = await harness.models.version(MODEL, 0)
    for revision in (1, 2):  # there and back: the same head, another revision
        if revision == 2:
            await harness.finish(1, 0.55, 0.45)
        target = await harness.models.version(MODEL, 0)
        await harness.save(9, "run-none")
        other = await harness.models.version(MODEL, 9)
        for one in (other, target):
            await harness.models.move_head(
                one, expected_revision=None, actor="ada", reason="x", at=harness.clock()
            )
        await harness.drive()
        assert await harness.pairs.tests("run-looks") == [False] * (revision - 1)
    assert base.checkpoint_id == (await harness.models.model(MODEL)).head_checkpoint_id
    job = await harness.gates.job(f"ckpt-{MODEL}-v00000001")
    assert job is not None
    assert job.level == pytest.approx(AlphaWealth(0.05).after(promoted=False).next_level)
    assert job.head_revision == 5
    assert [one.number for one in await harness.pairs.of_judgement(job.checkpoint_id, 5)] == [0]


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (replace(GATE, regression_margin=0.0), "its gate cannot be kept: regression_margin is 0"),
        (
            replace(GATE, attempts=65),
            "its gate cannot be kept: the last look is 65 attempts; the limit is 64",
        ),
        (replace(GATE, critical=("a:b",)), "its gate cannot be kept: critical family 'a:b' is not FAMILY"),
    ],
)
async def test_a_gate_that_cannot_be_kept_holds_the_candidate_by_name(
    harness: RegistryHarness, gate: GateSpec, why: str
) -> None:
    """A planner of 0.3.0 accepts such runs."""
    await begin(harness, gate)
    assert await harness.state(1) is CheckpointState.HELD
    assert why in await harness.reason(1)
    assert harness.planner.orders == {}


async def test_a_gate_of_one_task_holds_and_plays_nothing(harness: RegistryHarness) -> None:
    harness.planner.tasksets = {HELD_OUT.name: replace(HELD_OUT, num_tasks=1, families={"t00": "family-0"})}
    await begin(harness, GATE)
    assert await harness.reason(1) == "held: a gate needs at least 2 held-out tasks"
    assert harness.planner.orders == {}
    assert await harness.pairs.tests("run-looks") == []


async def test_a_held_out_set_that_is_gone_holds_the_candidate_by_name(harness: RegistryHarness) -> None:
    await begin(harness, EIGHT)
    harness.planner.tasksets = {}
    harness.restart()
    await harness.finish(1, 0.55, 0.45)
    expected = "held-out taskset 'held-out@1' is no longer what the gate began with"
    assert await harness.reason(1) == expected


async def test_a_job_in_the_middle_of_the_old_gate_is_judged_by_the_new_one(harness: RegistryHarness) -> None:
    """As a registry of 0.3.0 left it: running, without level and head, its evaluation under way."""
    await begin(harness, EIGHT)
    old = (
        "UPDATE gate_job SET level = NULL, head_checkpoint_id = '', head_revision = 0, gate_options = NULL",
        "DELETE FROM pair_run",
    )

    def leave(connection: sa.Connection) -> None:
        for statement in old:
            connection.execute(sa.text(statement))

    await harness.database.run(leave)
    harness.planner.runs = {"run-looks": harness.planner.runs["run-looks"]}
    harness.planner.orders.clear()
    harness.restart()
    (job,) = await harness.gates.jobs(MODEL, JobPhase.RUNNING)
    assert (job.level, job.gate) == (None, EIGHT)
    await harness.drive()
    await harness.decide(1, 0.9, 0.3)
    assert await harness.head() == 1


def test_members_of_a_pair_are_attempts_of_both_in_turn() -> None:
    rows = [
        EpisodeOutcome("a", "f", True, True, 2, 2, 0),
        EpisodeOutcome("a", "f", True, False, 1, 1, 1),
        EpisodeOutcome("a", "f", False, False, 0, 0, 2),  # infrastructure lost it
        EpisodeOutcome("a", "f", True, True, 1, 1, 3),
        EpisodeOutcome("b", "g", True, True, 2, 2, 3),
    ]
    assert by_task(rows, 2) == {
        "a": TaskOutcomes("a", "f", (1, None), (0, 1)),
        "b": TaskOutcomes("b", "g", (None, None), (None, 1)),
    }


def test_what_a_head_did_as_head_is_added_up_over_candidates() -> None:
    first = replace(PAIR, outcomes={"a": TaskOutcomes("a", "f", (1, 1), (1, None))})
    both = {"a": TaskOutcomes("a", "f", (0,), (0,)), "b": TaskOutcomes("b", "g", (1,), (None,))}
    second = replace(PAIR, checkpoint_id="c2", outcomes=both)
    other = replace(PAIR, head_checkpoint_id="h2", outcomes={"b": TaskOutcomes("b", "g", (0,), (1,))})
    assert head_records([first, second, other]) == [
        HeadRecord("h", {"a": TaskCount(1, 2)}, {"a": "f"}),
        HeadRecord("h2", {"b": TaskCount(1, 1)}, {"b": "g"}),
    ]


async def test_the_base_is_compared_too_and_decides_nothing(harness: RegistryHarness) -> None:
    await judge(harness, 1, 0.7, head_rate=0.3)
    await judge(harness, 2, 1.0, head_rate=0.7)
    report = json.loads((await harness.models.version(MODEL, 2)).gate_json)
    assert report["baseRate"] == pytest.approx(0.3)  # of version 0, while it was head
    assert report["headRate"] == pytest.approx(0.7)
    assert report["baseLowerBound"] > 0.4


def test_the_next_run_plays_the_families_that_lack_equally_many_attempts() -> None:
    played = {"a": 2, "b": 2, "c": 4, "d": 4}
    tasks = tuple(TaskOutcomes(task, f"f{task}", (1,) * n, (0,) * n) for task, n in played.items())
    outcomes = Outcomes(tasks)
    assert next_pairs(outcomes, {"a": 4, "b": 4, "c": 8}) == NextPairs(("fa", "fb"), 2)
    assert next_pairs(outcomes, {"a": 4, "c": 8}) == NextPairs(("fa",), 2)
    assert next_pairs(outcomes, {"a": 4, "b": 4, "c": 6, "d": 6}) == NextPairs((), 2)
    assert joined({"a": "fa", "z": "fz"}, []) == Outcomes((TaskOutcomes("a", "fa"), TaskOutcomes("z", "fz")))
