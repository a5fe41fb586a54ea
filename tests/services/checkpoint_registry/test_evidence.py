"""Evidence on values alone: how evaluations add up, when they are enough, which may be compared."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from checkpoint_registry.domain.evidence import Evaluation, Evidence, SamplingProfile, Tally, combine

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def evaluation(run_id: str, hours: int, num_tasks: int, tallies: Mapping[str, Tally]) -> Evaluation:
    at = NOON + timedelta(hours=hours)
    return Evaluation(run_id, "ckpt", "held-out", "digest", "t1", num_tasks, tallies, at)


def test_evaluations_are_added_up_by_task_in_the_order_in_which_they_ended() -> None:
    last = evaluation("run-a", 3, 3, {"x": Tally("f", 1, 2, 5), "y": Tally("g", 0, 4)})
    first = evaluation("run-d", 1, 2, {"x": Tally("f", 2, 3, 1)})
    tie = evaluation("run-c", 1, 1, {"x": Tally("f", 4, 4)})
    assert combine("ckpt", iter([last, first, tie])) == Evidence(
        "ckpt", ("run-c", "run-d", "run-a"), 3, {"x": Tally("f", 7, 9, 6), "y": Tally("g", 0, 4)}
    )


def test_only_what_one_source_judged_is_added_up() -> None:
    before = evaluation("run-a", 1, 2, {"x": Tally("f", 4, 4), "y": Tally("f", 1, 4)})
    after = replace(evaluation("run-b", 2, 1, {"x": Tally("f", 1, 4)}), source_digest="edited")
    assert combine("ckpt", [before, after], "edited") == Evidence(
        "ckpt", ("run-b",), 1, {"x": Tally("f", 1, 4)}, "edited"
    )
    assert combine("ckpt", [before, after]).run_ids == ("run-a",)
    assert combine("ckpt", [before, after], "another").run_ids == ()


def test_no_evaluation_is_evidence_of_nothing() -> None:
    assert combine("ckpt", []) == Evidence("ckpt", (), 0, {})


def test_the_key_of_a_profile_names_all_that_makes_evidence_comparable() -> None:
    profile = SamplingProfile(0.7, 0.95, 8, 256, 2048)
    assert profile.key() == "t0.7/p0.95/n8/k256/e2048"
    assert replace(profile, thinking="off").key() == "t0.7/p0.95/n8/k256/e2048/think-off"
