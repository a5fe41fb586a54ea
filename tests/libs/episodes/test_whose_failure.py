"""The one table that says whose failure each kind is."""

import pytest

from episodes import ATTRIBUTABLE, MISSING, EpisodeBroken, EpisodeFailure, policy_failure


def test_each_kind_is_either_missing_or_attributable() -> None:
    assert set(MISSING) | set(ATTRIBUTABLE) == set(EpisodeFailure)
    assert not set(MISSING) & set(ATTRIBUTABLE)
    assert [kind.value for kind in EpisodeFailure if kind in ATTRIBUTABLE] == [
        "policy_unreadable",
        "context_spent",
        "tool_timeout",
        "process_ended",
        "answer_error",
    ]


def test_a_word_of_an_environment_is_missing() -> None:
    assert not EpisodeBroken("my_own_word", "x").is_attributable
    assert EpisodeBroken("process_ended", "x").is_attributable
    assert EpisodeFailure.label("my_own_word") == "other"


def test_the_failure_names_its_rule_and_keeps_the_end_of_a_long_traceback() -> None:
    failure = policy_failure("answer_error", "x" * 10_000 + "\x00 KeyError: 'score'")
    assert failure.rule == ATTRIBUTABLE[EpisodeFailure.ANSWER_ERROR]
    assert len(failure.detail) == 8000
    assert failure.detail.endswith("\ufffd KeyError: 'score'")


@pytest.mark.parametrize("kind", ["timeout", "my_own_word"])
def test_what_is_missing_has_no_policy_to_blame(kind: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        policy_failure(kind, "x")
