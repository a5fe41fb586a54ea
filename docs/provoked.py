"""Which test provokes each kind of failure; the page of failures shows them."""

from collections.abc import Mapping
from typing import Final

from episodes import EpisodeFailure

_BLAME: Final = "tests/services/scenario_runner/test_whose_failure.py"
_REFUSED: Final = "tests/services/rollout_sampler/test_engine_refusals.py"
_SAMPLER: Final = "tests/services/rollout_sampler/test_failures.py"
_POLICY: Final = "tests/services/rollout_sampler/test_policy_failures.py"
_EXTRA: Final = "tests/services/reward_grader/test_extra_graders.py"

PROVOKED_BY: Final[Mapping[EpisodeFailure, tuple[str, str]]] = {
    EpisodeFailure.SCENARIO_ERROR: (
        _REFUSED,
        "test_a_prompt_that_the_chat_template_refuses_is_the_scenarios_failure",
    ),
    EpisodeFailure.CONTEXT_OVERFLOW: (
        _REFUSED,
        "test_a_first_prompt_that_the_engine_has_no_room_for_is_a_typed_failure",
    ),
    EpisodeFailure.ENVIRONMENT_BROKEN: (_BLAME, "test_a_scenario_that_raises_whatever_is_answered_is_broken"),
    EpisodeFailure.ENVIRONMENT_LOST: (_BLAME, "test_a_process_that_is_killed_before_any_call_is_lost"),
    EpisodeFailure.EXTERNAL_FAILURE: (_BLAME, "test_an_outage_in_a_tool_ends_the_episode_as_missing"),
    EpisodeFailure.TIMEOUT: (
        _SAMPLER,
        "test_an_episode_that_takes_too_long_times_out_and_lets_its_environment_go",
    ),
    EpisodeFailure.ENGINE_ERROR: (_REFUSED, "test_a_request_that_an_engine_refuses_is_asked_of_no_other"),
    EpisodeFailure.SAMPLER_ERROR: (
        _SAMPLER,
        "test_a_bug_ends_the_episode_after_three_failures_and_a_wait_is_no_failure",
    ),
    EpisodeFailure.BODY_CORRUPT: (_EXTRA, "test_a_body_that_extra_graders_cannot_read_fails_its_episode"),
    EpisodeFailure.REWARD_INVALID: (
        "tests/services/reward_grader/test_grading.py",
        "test_a_reward_that_is_no_number_is_a_failure_and_never_a_reward",
    ),
    EpisodeFailure.GRADER_ERROR: (_EXTRA, "test_an_extra_grader_that_fails_has_not_scored_zero"),
    EpisodeFailure.CONTEXT_SPENT: (
        _REFUSED,
        "test_a_context_that_is_spent_after_turns_is_the_policys_failure_at_the_first_attempt",
    ),
    EpisodeFailure.POLICY_UNREADABLE: (
        _POLICY,
        "test_a_turn_after_which_the_conversation_cannot_go_on_is_the_policys",
    ),
    EpisodeFailure.TOOL_TIMEOUT: (_BLAME, "test_a_call_that_meets_a_limit_of_its_sandbox_is_the_policys"),
    EpisodeFailure.PROCESS_ENDED: (_BLAME, "test_a_call_that_meets_a_limit_of_its_sandbox_is_the_policys"),
    EpisodeFailure.ANSWER_ERROR: (_BLAME, "test_an_answer_that_breaks_the_scenario_is_graded_0"),
}
"""File and function."""
