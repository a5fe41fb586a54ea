"""New tasks that are expected to be too hard or too easy: by what, and that they are never played."""

from dataclasses import replace
from typing import Any

import pytest
from tests.services.scenario_runner.planning import PlannerHarness
from tests.services.scenario_runner.test_explaining import run_facts
from tests.services.scenario_runner.test_new_tasks import Made, new_spec

from episodes import Split
from scenario_runner.domain.difficulty import Attempts, expected, is_fit, is_number, value_of
from scenario_runner.domain.explain import explain
from scenario_runner.domain.new_tasks import NewTaskState
from scenario_runner.usecases.views import find_run, view_of
from scenario_runner.wire.new_tasks import new_tasks_to_wire
from upcycle.run_config import RunSpec, Training
from upcycle.task_rows import task_digest

SOLVED, FAILED, HALF = Attempts(2, 9, 9), Attempts(8, 9, 0), Attempts(4, 9, 4)


def filtering_spec(new_tasks: str = "failed", **chosen: Any) -> RunSpec:
    """By the argument `by`, which the tasks of the taskset have from its default, 1."""
    spec = new_spec(new_tasks)
    assert spec.training is not None
    return replace(spec, training=replace(spec.training, new_tasks_difficulty="by", **chosen))


@pytest.fixture
def made(planner: PlannerHarness) -> Made:
    return Made(planner)


@pytest.mark.parametrize(
    ("value", "success"),
    [(2, 0.95), (8, 0.05), (4, 0.45), (3, 0.7), (5, 0.35), (7, 0.15), (1, None), (9, None)],
)
def test_success_is_expected_on_the_line_between_the_nearest_values(
    value: float, success: float | None
) -> None:
    found = expected(value, [FAILED, HALF, SOLVED])
    assert (found.success if found else None) == (success if success is None else pytest.approx(success))


def test_a_value_of_which_little_was_played_says_nothing() -> None:
    played = [SOLVED, Attempts(5, 2, 0), Attempts(5, 1, 0), FAILED]
    found = expected(5, played)
    assert found is not None
    assert (found.below, found.above) == (SOLVED, FAILED)
    found = expected(5, [*played, Attempts(5, 1, 1)])
    assert found is not None
    assert found.below == found.above == Attempts(5, 4, 1), "its attempts are counted together"
    assert found.success == pytest.approx(0.3)
    assert expected(5, []) is None


def test_what_was_expected_is_said_with_what_it_rests_on() -> None:
    found = expected(3, [SOLVED, HALF])
    assert found is not None
    assert found.said("steps") == (
        "steps 3 is expected to succeed with 0.70: 9 of 9 attempts with steps 2 and 4 of 9 attempts with "
        "steps 4 did"
    )


def test_both_ends_of_what_is_kept_belong_to_it() -> None:
    training = Training(new_tasks="failed", new_tasks_difficulty="n")
    kept = [success for success in (0.049, 0.05, 0.4, 0.75, 0.751) if is_fit(training, success)]
    assert kept == [0.05, 0.4, 0.75]


def test_a_value_is_of_the_arguments_or_their_default() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "by": {"type": "number", "default": 2}, "any": True}}
    assert (value_of('{"n":3}', "n", schema), value_of('{"n":3}', "by", schema)) == (3.0, 2.0)
    for args_json in ("{}", '{"n":true}', '{"n":"3"}', '{"n":null}', '{"n":1' + "0" * 400 + "}"):
        assert value_of(args_json, "n", schema) is None
    assert [is_number(schema, name) for name in ("n", "by", "any", "other")] == [True, True, False, False]
    assert not is_number({"properties": ["n"]}, "n")
    assert not is_number({}, "n")


async def test_a_new_task_that_is_expected_to_be_too_hard_is_not_played(made: Made) -> None:
    await made.begin(filtering_spec(new_tasks_min_success=0.2))
    made.generator.answers = [{"n": 1}, {"n": 2}, {"n": 2, "by": 4}]
    for group in range(3):
        await made.play(group, 0.0, 0.0)
    outside, too_hard, unknown = (await made.report()).newest
    assert (unknown.state, unknown.detail) == (NewTaskState.PLAYING, ""), "two attempts say nothing"
    assert (too_hard.state, too_hard.slug, too_hard.digest) == (NewTaskState.FILTERED, "", "")
    assert too_hard.detail == "by 1 is expected to succeed with 0.10: 0 of 4 attempts with by 1 did"
    assert (outside.state, outside.detail) == (NewTaskState.PLAYING, ""), "no value beyond was played"
    played = {row.new_task for row in await made.planner.episodes()}
    assert too_hard.number not in played
    left = task_digest("e", "s", '{"n":2}')
    assert (await made.planner.do(lambda unit: unit.splits([left])))[left] is Split.UNASSIGNED
    assert made.noted == {NewTaskState.PLAYING: 2, NewTaskState.FILTERED: 1}


async def test_a_new_task_that_is_expected_to_be_too_easy_is_not_played(made: Made) -> None:
    await made.begin(filtering_spec("solved"))
    for group in range(2):
        await made.play(group, 1.0, 1.0)
    too_easy, _ = (await made.report()).newest
    assert too_easy.state is NewTaskState.FILTERED
    assert too_easy.detail == "by 1 is expected to succeed with 0.90: 4 of 4 attempts with by 1 did"


async def test_a_task_that_was_left_out_may_come_again_and_says_what_is_expected_of_it(made: Made) -> None:
    await made.begin(filtering_spec(new_tasks_min_success=0.2))
    made.generator.answers = [{"n": 1}, {"n": 2}, {"n": 2}]
    await made.play(0, 0.0, 0.0)
    await made.play(1, 0.0, 0.0)
    await made.play(2, 1.0, 1.0)
    await made.play(3, 0.0, 0.0)
    again, left_out, _ = (await made.report()).newest
    assert (left_out.state, again.state) == (NewTaskState.FILTERED, NewTaskState.PLAYING)
    assert again.detail == "by 1 is expected to succeed with 0.28: 2 of 8 attempts with by 1 did"
    retired = again.closed("excluded(zero_spread)", retire_after=1)
    assert retired.detail == f"1 groups in a row had no spread; {again.detail}"


async def test_what_was_played_is_of_the_family_and_of_the_newest_groups(made: Made) -> None:
    await made.begin(new_spec(share=1.0))
    await made.play(0, 1.0, 0.0, outcome="trained")
    await made.play(1, 0.0, 0.0)
    await made.play(5, 1.0, 1.0)
    (row,) = (await made.report()).newest

    async def attempts(since: int = 0, **changes: Any) -> list[tuple[str, int, int]]:
        asked = replace(row, **changes)
        return await made.planner.do(lambda unit: unit.task_pasts.attempts(asked, since))

    assert await attempts() == [("{}", 4, 1), ('{"n":1}', 2, 2)], "of the taskset, and new ones"
    assert await attempts(since=1) == [("{}", 2, 0), ('{"n":1}', 2, 2)]
    assert await attempts(since=6) == []
    assert await attempts(family="other") == []
    assert await attempts(scenario="other") == []
    assert await attempts(taskset="other") == []


async def test_what_was_left_out_is_counted_and_is_no_generator_that_fails(made: Made) -> None:
    await made.begin(filtering_spec(new_tasks_min_success=0.74))
    for group in range(12):
        await made.play(group, 0.0, 0.0)
    report = await made.report()
    assert report.by_state[NewTaskState.FILTERED] >= 8
    assert report.none_came == ()
    wire = new_tasks_to_wire(report)
    assert (wire.filtered, wire.last_failure) == (report.by_state[NewTaskState.FILTERED], "")
    view = await made.planner.do(lambda unit: view_of(unit, find_run(unit, made.planner.run_id)))
    reasons, summary = explain(replace(run_facts(), view=view))
    assert f"ordered, {wire.filtered} left out as too hard or too easy and" in summary
    assert "alarm: none of the last" not in str(reasons)
