"""One row of the ledger, field by field: which fact each of them is from, and how counters change."""

from dataclasses import replace

import pytest

from blob_store import BlobRef
from episodes import EpisodeIdentity, Purpose, Split
from trajectory_store.domain import facts
from trajectory_store.domain.facts import (
    EpisodeFact,
    LedgerState,
    PartialIdentity,
    TrajectoryGrade,
    TrajectoryRecord,
    better_identity,
)
from trajectory_store.domain.ledger import CounterDelta, Episode, contradicts, deltas, fold, label_of

REQUESTED, RECORDED, GRADED, TRAINED, EVALUATED, EXCLUDED, FAILED, CANCELLED, CLIENT_GRADED = LedgerState
OF_STEP = PartialIdentity("e", "run-t", "m")
OF_GROUP = PartialIdentity("e", "run-e", "m", "g")
OWN = EpisodeIdentity(
    episode_id="e",
    run_id="run-e",
    group_id="g",
    member=0,
    group_size=4,
    model="m",
    purpose=Purpose.TRAIN,
    split=Split.TRAIN,
    task_slug="t",
    task_digest="d",
    family="f",
)
RECORD = TrajectoryRecord(BlobRef("k", "s", 1), 3, 4, 1, 2, 17, recorded_us=200, trace_id="t1")
GRADE = TrajectoryGrade(0.5, False, b"", graded_us=300)
# What `trajectory.graded` repeats has no moment and no trace of its own.
REPEATED = replace(RECORD, recorded_us=300, trace_id="")


def folded(*said: EpisodeFact) -> Episode:
    row: Episode | None = None
    for fact in said:
        row = fold(row, fact)
    assert row is not None
    return row


def test_the_first_fact_fills_the_row() -> None:
    assert fold(None, facts.requested(OWN, 100)) == Episode(OWN, REQUESTED, "", 0, 100, 100)
    assert fold(None, facts.recorded(OWN, RECORD)) == Episode(OWN, RECORDED, "", 0, 200, 200, RECORD)
    assert fold(None, facts.graded(OWN, REPEATED, GRADE)) == Episode(
        OWN, GRADED, "", 0, 300, 300, REPEATED, GRADE
    )
    failed = facts.settled(OWN, FAILED, 400, reason="timeout")
    assert fold(None, failed) == Episode(OWN, FAILED, "timeout", 0, 400, 400)
    trained = facts.trained(OF_STEP, 500, step=7, by_run="run-t")
    assert fold(None, trained) == Episode(
        OF_STEP, TRAINED, "", 7, 500, 500, trained_step=8, trained_by_run="run-t"
    )


def test_a_grade_settles_an_evaluation_and_not_an_episode_of_training() -> None:
    measured = replace(OWN, purpose=Purpose.EVAL)
    assert facts.graded(OWN, RECORD, GRADE) == EpisodeFact(OWN, GRADED, 300, record=RECORD, grade=GRADE)
    assert facts.graded(measured, RECORD, GRADE).state is EVALUATED


def test_a_row_keeps_its_earliest_moment_and_that_of_its_state() -> None:
    row = folded(facts.recorded(OWN, RECORD), facts.requested(OWN, 100))
    assert (row.state, row.since_us, row.updated_us) == (RECORDED, 100, 200)
    row = fold(row, facts.settled(OWN, EXCLUDED, 400, reason="stale"))
    assert (row.state, row.reason, row.since_us, row.updated_us) == (EXCLUDED, "stale", 100, 400)
    late = fold(row, facts.settled(OWN, CANCELLED, 300))
    assert late == row
    again = folded(facts.requested(OWN, 100), facts.requested(OWN, 150))
    assert again.updated_us == 100, "the same state again is no news"


def test_the_record_is_that_of_the_recording_and_a_grade_only_fills_the_gap() -> None:
    recorded, graded = facts.recorded(OWN, RECORD), facts.graded(OWN, REPEATED, GRADE)
    assert folded(recorded, graded).record == folded(graded, recorded).record == RECORD
    assert folded(facts.requested(OWN, 100), graded).record == REPEATED
    assert folded(recorded, facts.requested(OWN, 100)).record == RECORD
    assert folded(graded, facts.graded(OWN, REPEATED, replace(GRADE, reward=1.0))).grade == GRADE


def test_two_facts_about_one_gradient_leave_its_earlier_moment() -> None:
    step = facts.trained(OF_STEP, 500, step=2, by_run="run-t")
    group = facts.trained(OF_GROUP, 450, step=2, by_run="run-t")
    for row in (folded(step, group), folded(group, step)):
        assert (row.updated_us, row.since_us, row.trained_step, row.trained_twice) == (450, 450, 3, False)


@pytest.mark.parametrize(
    "second",
    [
        facts.trained(OF_STEP, 400, step=3, by_run="run-t"),
        facts.trained(OF_STEP, 400, step=2, by_run="run-u"),
    ],
)
def test_another_claim_is_counted_and_moves_nothing(second: EpisodeFact) -> None:
    once = folded(facts.trained(OF_STEP, 500, step=2, by_run="run-t"))
    assert fold(once, second) == replace(once, trained_twice=True, since_us=400)


def test_a_step_that_trained_what_was_excluded_is_a_conflict_and_its_claim_is_kept() -> None:
    row = folded(
        facts.settled(OWN, EXCLUDED, 400, reason="stale"), facts.trained(OF_STEP, 500, step=2, by_run="run-t")
    )
    assert (row.state, row.reason, row.step, row.updated_us) == (EXCLUDED, "stale", 0, 400)
    assert (row.in_conflict, row.trained_step, row.trained_by_run) == (True, 3, "run-t")
    again = fold(row, facts.trained(OF_STEP, 300, step=2, by_run="run-t"))
    assert again.updated_us == 400, "it is not trained, so this is no news of its state"


_DENIED = {
    (EXCLUDED, TRAINED),
    (FAILED, TRAINED),
    (CANCELLED, TRAINED),
    (TRAINED, EXCLUDED),
    (TRAINED, FAILED),
    (EVALUATED, EXCLUDED),
    (EVALUATED, FAILED),
}


def test_only_seven_pairs_of_states_deny_one_another() -> None:
    assert {(one, two) for one in LedgerState for two in LedgerState if contradicts(one, two)} == _DENIED


def test_states_only_go_forward_and_an_evaluation_may_train() -> None:
    def may_follow(now: LedgerState, reported: LedgerState) -> bool:
        before = folded(EpisodeFact(OWN, now, 100))
        return fold(before, EpisodeFact(OWN, reported, 100)).state is not now

    unsettled = {(one, two) for one in (REQUESTED, RECORDED, GRADED) for two in LedgerState if two > one}
    found = {(one, two) for one in LedgerState for two in LedgerState if may_follow(one, two)}
    assert found == unsettled | {(EVALUATED, TRAINED)}


def test_what_a_client_graded_stays_that_and_keeps_the_first_step_that_trained_it() -> None:
    """Interactive SFT may take it in many steps: none of them is a contradiction, or a second gradient."""
    row = Episode(OWN, CLIENT_GRADED, "", 0, 100, 100, record=RECORD, grade=GRADE, body_checked=True)
    first = facts.trained(OF_STEP, 500, step=2, by_run="interactive-m")
    claimed = replace(row, trained_step=3, trained_by_run="interactive-m")
    assert fold(row, first) == claimed
    for fact in (
        facts.trained(OF_STEP, 600, step=3, by_run="interactive-m"),
        facts.settled(OWN, EXCLUDED, 400, reason="stale"),
        facts.graded(OWN, REPEATED, replace(GRADE, reward=1.0)),
        facts.requested(OWN, 1),
    ):
        assert fold(claimed, fact) == claimed
    assert [delta.by_label for delta in deltas([(row, claimed)])] == [{}]


def test_who_knows_an_episode_best() -> None:
    assert better_identity(OF_STEP, OF_GROUP) is better_identity(OF_GROUP, OF_STEP) is OF_GROUP
    assert better_identity(OF_GROUP, OWN) is better_identity(OWN, OF_GROUP) is OWN
    assert better_identity(OF_STEP, OWN) is OWN
    assert better_identity(OF_STEP, replace(OF_STEP, run_id="late")) is OF_STEP
    assert better_identity(OWN, replace(OWN, run_id="late")) is OWN


def test_a_reason_is_cut_to_64_characters_and_shown_where_it_is_one_of_few() -> None:
    assert facts.settled(OWN, FAILED, 1, reason="x" * 70).reason == "x" * 64
    assert facts.settled(OWN, CANCELLED, 1).reason == ""
    assert [label_of(state, "why") for state in (EXCLUDED, FAILED, CANCELLED)] == [
        "excluded(why)",
        "failed(why)",
        "cancelled",
    ]
    assert label_of(FAILED, "") == "failed"


def test_counters_of_two_runs_change_apart_and_a_count_that_ends_at_nothing_is_left_out() -> None:
    own = folded(facts.requested(OWN, 1))
    other = folded(facts.requested(replace(OWN, run_id="run-2"), 1))
    failed = fold(own, facts.settled(OWN, FAILED, 2, reason="timeout"))
    odd = replace(failed, in_conflict=True, trained_twice=True)
    assert deltas([(None, own), (None, own), (None, other), (own, failed), (failed, odd)]) == [
        CounterDelta("default", "run-e", {(REQUESTED, ""): 1, (FAILED, "timeout"): 1}, 1, 1),
        CounterDelta("default", "run-2", {(REQUESTED, ""): 1}, 0, 0),
    ]
    assert deltas([(odd, failed)]) == [CounterDelta("default", "run-e", {}, -1, -1)]
    excluded = fold(own, facts.settled(OWN, EXCLUDED, 2, reason="stale"))
    cancelled = fold(own, facts.settled(OWN, CANCELLED, 2, reason="run_over"))
    assert deltas([(None, excluded), (None, cancelled)]) == [
        CounterDelta("default", "run-e", {(EXCLUDED, "stale"): 1, (CANCELLED, ""): 1}, 0, 0)
    ]
