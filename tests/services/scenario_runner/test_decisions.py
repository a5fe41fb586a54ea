"""What the planner decides, on values alone: with numbers and sentences that a reader can check."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from blob_store import BlobRef
from episodes import GroupReason, Purpose, Split
from scenario_runner.domain import learning, plan, sources
from scenario_runner.domain.environments import EnvironmentDescription
from scenario_runner.domain.learning import WithoutStep
from scenario_runner.domain.runs import EpisodeRow, EpisodeState, RunRecord, RunState
from scenario_runner.domain.source_groups import (
    EndedGroup,
    SourceGroupState,
    SourceLoad,
    SourceReport,
    SourceTally,
)
from scenario_runner.domain.sources import DrawRules, why_unfit
from scenario_runner.domain.tasksets import RunnableTask
from scenario_runner.usecases.registering import check_fits, misfit
from service_kit.errors import InvalidRequest
from upcycle.run_config import PolicyChoice, RunSpec, Sampling, Training


def argument_schema(**argument: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": argument}, "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "fitting", "unfitting"),
    [
        (argument_schema(type=["string", "null"]), ["a", None], [1, True, []]),
        (argument_schema(type=["integer", "boolean"]), [1, 2.0, True], ["a", 2.5, None]),
        (argument_schema(anyOf=[{"type": "number"}, {"enum": ["all"]}]), [1.5, "all"], ["some", None]),
        (argument_schema(), [1, "a", None], []),
        ({"properties": {"x": True}}, [1, "a", None], []),
        ({"properties": {"x": False}}, [], [1, "a", None]),
    ],
)
def test_an_argument_fits_any_type_that_its_schema_lists(
    schema: dict[str, Any], fitting: list[Any], unfitting: list[Any]
) -> None:
    assert [misfit({"x": value}, schema) for value in fitting] == [""] * len(fitting)
    assert all("argument 'x' is" in misfit({"x": value}, schema) for value in unfitting)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": ["x"]},
        {"required": 5},
        argument_schema(anyOf=5),
        argument_schema(enum=5),
        argument_schema(type={"of": "string"}),
    ],
)
def test_a_schema_that_is_none_is_refused_by_the_name_of_its_task(schema: dict[str, Any]) -> None:
    task = RunnableTask("t1", "sum", '{"x": 1}', "small", "d")
    with pytest.raises(InvalidRequest, match="task 't1': scenario 'sum' has arguments whose schema is no"):
        check_fits([task], EnvironmentDescription("served", "1", {"sum": schema}, ()))


NOW = datetime(2026, 1, 1, tzinfo=UTC)
THREE_BY_FOUR = Training(prompts_per_step=4, max_staleness=2, seed=5)
WAITING, OFFERED, TRAINED, RELEASED, LEFT_OUT = SourceGroupState


def run_of(training: Training | None = THREE_BY_FOUR, *, model: str = "m", **changes: Any) -> RunRecord:
    """A running run over ten tasks in groups of four; fields of its spec and of its record may be changed."""
    fields = {name: changes.pop(name) for name in ("trainable", "no_sampling", "sampling") if name in changes}
    purpose = Purpose.EVAL if training is None else Purpose.TRAIN
    spec = RunSpec("ts", purpose, PolicyChoice(model), 4, training=training, **fields)
    return replace(RunRecord("run-1", "r", spec, Split.TRAIN, "d", RunState.RUNNING, NOW, 10), **changes)


def test_the_order_of_tasks_follows_the_trainings_seed_and_an_evaluations_that_of_its_sampling() -> None:
    sampling = Sampling(seed=9)
    assert plan.run_seed(run_of(sampling=sampling)) == 5
    assert plan.run_seed(run_of(None, sampling=sampling)) == 9


def test_open_groups_are_what_staleness_allows_or_what_an_evaluation_may_have_in_flight() -> None:
    assert plan.open_group_limit(run_of(), 100) == (2 + 1) * 4
    assert plan.open_group_limit(run_of(None), 11) == 2  # of four members each
    assert plan.open_group_limit(run_of(None), 3) == 1, "one group, even if its members are too many"


@pytest.mark.parametrize(("most", "groups"), [(None, 25), (8, 2), (11, 2), (4, 1), (1000, 25)])
def test_an_evaluation_has_no_more_in_flight_than_it_asked_for(most: int | None, groups: int) -> None:
    run = run_of(None)
    asked = replace(run, spec=replace(run.spec, max_concurrent=most))
    assert plan.open_group_limit(asked, 100) == groups


@pytest.mark.parametrize(
    ("run", "num_open", "load", "wanted"),
    [
        (run_of(), 5, SourceLoad(), 7),  # of 12
        (run_of(), 5, SourceLoad(offered=3), 4),
        (run_of(), 12, SourceLoad(), 0),
        (run_of(), 14, SourceLoad(), 0),
        (run_of(), 11, SourceLoad(), 1),
        (run_of(), 0, SourceLoad(offered=4), 0),  # a batch of prompts_per_step is on offer
        (run_of(), 0, SourceLoad(is_waiting=True), 0),
        (run_of(no_sampling=True), 0, SourceLoad(), 0),
        (run_of(state=RunState.PAUSED), 0, SourceLoad(), 0),
        (run_of(None, next_position=7), 5, SourceLoad(), 3),  # of ten tasks
        (run_of(None), 5, SourceLoad(), 7),
    ],
)
def test_groups_are_opened_up_to_the_limit_unless_evaluations_bring_enough(
    run: RunRecord, num_open: int, load: SourceLoad, wanted: int
) -> None:
    assert plan.groups_wanted(run, num_open, 12, load) == wanted


def test_the_order_of_an_epoch_and_the_seed_of_an_episode_are_the_same_in_every_release() -> None:
    assert [plan.epoch_order(7, 5, epoch) for epoch in (0, 1)] == [[1, 4, 3, 0, 2], [2, 3, 4, 1, 0]]
    # sha256 of "1/x/0/2/0" begins with a7b0183b758d4d5f; a seed is its first 64 bits without the last.
    assert plan.episode_seed(1, "x", 0, 2, 0) == 0xA7B0183B758D4D5F >> 1


def test_positions_go_through_epoch_after_epoch() -> None:
    found = list(plan.tasks_from(7, 5, 3, 4))
    assert found == [(3, 0), (4, 2), (5, 2), (6, 3)]


def test_a_member_is_played_three_times_then_its_group_goes_on_without_it() -> None:
    played = [plan.after_failure(attempt, RunState.RUNNING, group_is_open=True) for attempt in range(3)]
    assert played == [plan.Refill(1), plan.Refill(2), plan.Shorten()]
    assert plan.after_failure(0, RunState.PAUSED, group_is_open=True) == plan.Refill(1)
    assert plan.after_failure(0, RunState.DRAINING, group_is_open=True) is None
    assert plan.after_failure(0, RunState.RUNNING, group_is_open=False) is None


def test_a_run_only_fails_when_each_of_its_newest_groups_had_no_grade() -> None:
    assert plan.has_only_failures([False, False], 2)
    assert plan.has_only_failures([False, False, True], 2)
    assert not plan.has_only_failures([False, True], 2)
    assert not plan.has_only_failures([False], 2), "too few to say"


def test_a_run_is_of_the_taskset_that_its_spec_names_unless_another_is_given() -> None:
    assert run_of().taskset == "ts"
    assert run_of(taskset="ts@2", taskset_revision=2).taskset == "ts@2"


# Groups of evaluations.

GROUP = EndedGroup("g", NOW, "evaluated", 2, 0, 4, 4)
RULES = DrawRules(Split.TRAIN, True, 2, 16, head_version=4)


@pytest.mark.parametrize(
    ("group", "rules", "reason"),
    [
        (GROUP, RULES, ""),
        (GROUP, replace(RULES, split=Split.UNASSIGNED), "unassigned"),
        (replace(GROUP, outcome="failed"), RULES, "incomplete_group"),
        (replace(GROUP, num_members=512), replace(RULES, group_size=512, prompts_per_step=4), ""),
        (replace(GROUP, has_spread=False), RULES, "zero_spread"),
        (
            replace(GROUP, has_spread=False),
            replace(RULES, head_version=None),
            "",
        ),  # the trainer finds this out
        (replace(GROUP, num_without_body=2), RULES, "no_tokens"),
    ],
)
def test_why_a_group_may_not_train(group: EndedGroup, rules: DrawRules, reason: str) -> None:
    assert why_unfit(group, rules) == reason


def row(member: int, reward: float = 0.0, version: int = 4, **changes: Any) -> EpisodeRow:
    plain = EpisodeRow(f"e{member}", "run-1", "g", member, 0, 0, "ts", EpisodeState.EVALUATED, reward=reward)
    return replace(plain, oldest_version=version, newest_version=version + 1, body_key="k", **changes)


def test_an_ended_group_is_counted_from_its_members() -> None:
    begun = EndedGroup("g", NOW, "evaluated", 0)
    members = [row(0, 0.0, 3), row(1, 1.0, 5), replace(row(2, 1.0, 4), body_key="")]
    assert sources.ended_group(begun, members) == EndedGroup("g", NOW, "evaluated", 3, 1, 3, 6, True)
    assert sources.ended_group(begun, []) == EndedGroup("g", NOW, "evaluated", 0, 0, 0, 0, False)
    assert not sources.ended_group(begun, members[1:]).has_spread


def test_members_with_a_reward_come_in_order() -> None:
    lost = replace(row(1), state=EpisodeState.FAILED)
    assert [one.member for one in sources.rewarded([row(2), lost, row(0)])] == [0, 2]


def test_a_claim_check_is_written_into_its_episode() -> None:
    found = sources.with_body(row(1, 0.5), BlobRef("key", "sha", 7), 3)
    assert found == replace(row(1, 0.5), body_key="key", body_sha256="sha", body_size=7, stop_reason=3)


@pytest.mark.parametrize(
    ("run", "source", "fits"),
    [
        (run_of(), run_of(None, trainable=True), True),
        (run_of(), run_of(None), False),
        (run_of(None), run_of(None, trainable=True), False),
        (run_of(), run_of(), False),
        (run_of(), run_of(None, model="other", trainable=True), False),
        (run_of(), run_of(None, trainable=True, taskset="other"), False),
        (run_of(), run_of(None, trainable=True, taskset="ts@2", taskset_revision=2), True),
    ],
)
def test_a_trainable_evaluation_of_the_same_model_and_taskset_feeds_a_training_run(
    run: RunRecord, source: RunRecord, fits: bool
) -> None:
    assert sources.may_train_on(run, source) is fits


TALLIES = [
    SourceTally("run-c", WAITING, "", 2),
    SourceTally("run-c", LEFT_OUT, "run_over", 1),
    SourceTally("run-b", TRAINED, "", 3),
    SourceTally("run-b", TRAINED, "late", 4),
    SourceTally("run-b", RELEASED, "stale", 5),
    SourceTally("run-b", LEFT_OUT, "stale", 6),
    SourceTally("run-a", OFFERED, "", 1),
    SourceTally("run-a", RELEASED, "stale", 2),
]


def test_reports_name_the_runs_own_sources_first_and_count_each_group_once() -> None:
    assert sources.reports(TALLIES, ("run-z", "run-c"), is_over=False) == (
        SourceReport("run-z"),
        SourceReport("run-c", groups=3, waiting=2, left_out={"run_over": 1}),
        SourceReport("run-a", groups=3, offered=1, left_out={"stale": 2}),
        SourceReport("run-b", groups=18, trained=7, left_out={"stale": 11}),
    )


def test_what_waits_when_the_run_is_over_was_left_out() -> None:
    waited, *others = sources.reports(TALLIES, ("run-c",), is_over=True)
    assert waited == SourceReport("run-c", groups=3, left_out={"run_over": 3})
    assert [one.groups for one in others] == [3, 18]


def test_outcomes_of_offered_groups_are_counted_by_how_they_were_settled() -> None:
    assert sources.outcomes(TALLIES) == {"trained": 7, "released(stale)": 7}


def test_counts_are_said_with_the_most_first_and_equal_ones_by_name() -> None:
    assert sources.in_words({"split": 1, "stale": 3, "other": 1}) == "3 stale, 1 other, 1 split"
    assert sources.in_words({}) == "none"


# A run without steps.

ZERO = "excluded(zero_spread)"


STALE_REMEDY = (
    "see whether the engine follows new versions; or raise stale_after, or max_staleness for groups of "
    "evaluations"
)


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        (GroupReason.STALE, STALE_REMEDY),
        (GroupReason.SHORT_GROUP, "see why their episodes failed"),
        (GroupReason.ZERO_SPREAD, learning._ALIKE),
        (GroupReason.RUN_OVER, ""),
    ],
)
def test_each_reason_has_its_remedy(reason: GroupReason, remedy: str) -> None:
    assert learning.remedy_of_left_out({reason: 1}) == remedy


def test_remedies_come_with_the_commonest_reason_first_and_each_once() -> None:
    counts = {"incomplete_group": 1, "short_group": 1, "stale": 2, "run_over": 9, "held_out": 1}
    assert learning.remedy_of_left_out(counts) == (
        f"{STALE_REMEDY}; train on tasks that are not held out; see why their episodes failed"
    )
    without = WithoutStep({"excluded(short_group)": 1, "released(incomplete_group)": 1, "excluded(stale)": 2})
    assert learning.remedies(without) == (f"{STALE_REMEDY}; see why their episodes failed")


@pytest.mark.parametrize(
    ("rewards", "remedy"),
    [
        ({1.0: 3}, learning._SOLVED),
        ({1.5: 3}, learning._SOLVED),
        ({0.99: 3}, learning._UNSOLVED),
        ({0.0: 1, 1.0: 3}, learning._ALIKE),
        ({}, learning._ALIKE),
    ],
)
def test_groups_without_spread_need_other_tasks_or_other_groups(
    rewards: dict[float, int], remedy: str
) -> None:
    assert learning.remedies(WithoutStep({ZERO: 1}, {ZERO: rewards})) == remedy


def test_a_run_that_has_nothing_to_learn_from_says_all_that_is_known() -> None:
    without = WithoutStep({ZERO: 1, "excluded(stale)": 1}, {ZERO: {0.5: 4}, "excluded(stale)": {0.5: 2}})
    assert learning.nothing_to_learn(without, 1, 1) == (
        "nothing to learn: 2 groups in a row were settled without a step after step 1: 1 excluded(stale), "
        "1 had no spread (every reward was 0.500); groups that are graded and not settled: 1; "
        f"rewards of 6 episodes: 0.500 x 6; what may help: {STALE_REMEDY}; {learning._UNSOLVED}, "
        "or a higher no_step_groups"
    )
    short = replace(without, groups={"excluded(stale)": 2}, rewards={})
    assert learning.nothing_to_learn(short, 0, 0) == (
        "nothing to learn: 2 groups in a row were settled without a step: 2 excluded(stale); rewards of "
        f"0 episodes: none; what may help: {STALE_REMEDY}, or a higher no_step_groups"
    )
    assert learning.alarm(without, 1) == (
        "no step since step 1: 1 of 2 groups were excluded(stale); "
        "1 of 2 groups had no spread: every reward was 0.500"
    )


def test_rewards_of_groups_without_spread_are_said_from_the_least_to_the_greatest() -> None:
    without = WithoutStep({ZERO: 3}, {ZERO: {1.0: 2, 0.0: 2, 0.5: 2}})
    assert learning.alarm(without, 0) == (
        "no step yet: 3 of 3 groups had no spread: equal rewards within each group, from 0.000 to 1.000"
    )


def test_a_run_gets_a_notice_after_two_steps_worth_of_groups_or_at_its_limit() -> None:
    training = Training(prompts_per_step=3, no_step_groups=10)
    assert [learning.is_worth_an_alarm(groups, training) for groups in (5, 6)] == [False, True]
    short = Training(prompts_per_step=3, no_step_groups=2)
    assert [learning.is_worth_an_alarm(groups, short) for groups in (1, 2)] == [False, True]


def test_rewards_that_are_no_numbers_are_left_out_of_a_histogram() -> None:
    assert learning.histogram({float("nan"): 1, float("inf"): 2}) == "none"
    assert learning.histogram({float("nan"): 1, 0.5: 2}) == "0.500 x 2"


def test_a_reward_is_shown_with_three_digits_unless_they_hide_something() -> None:
    assert learning.histogram({0.1 + 0.2: 1, 2 / 3: 1, 1e-9: 1}) == "1e-09 x 1, 0.300 x 1, 0.666667 x 1"
    assert learning.histogram({0.1234: 1, 1.0: 1}) == "0.1234 x 1, 1.000 x 1"
