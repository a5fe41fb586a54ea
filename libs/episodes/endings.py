"""How episodes, groups and training sessions end. The values are contract: they travel in events."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class EpisodeFailure(StrEnum):
    """What went wrong in an episode. MISSING and ATTRIBUTABLE say of each whose failure it was."""

    SCENARIO_ERROR = "scenario_error"
    CONTEXT_OVERFLOW = "context_overflow"
    ENVIRONMENT_BROKEN = "environment_broken"
    ENVIRONMENT_LOST = "environment_lost"
    EXTERNAL_FAILURE = "external_failure"
    TIMEOUT = "timeout"
    ENGINE_ERROR = "engine_error"
    SAMPLER_ERROR = "sampler_error"
    BODY_CORRUPT = "body_corrupt"
    REWARD_INVALID = "reward_invalid"
    GRADER_ERROR = "grader_error"
    POLICY_UNREADABLE = "policy_unreadable"
    CONTEXT_SPENT = "context_spent"
    TOOL_TIMEOUT = "tool_timeout"
    PROCESS_ENDED = "process_ended"
    ANSWER_ERROR = "answer_error"

    @classmethod
    def label(cls, kind: str) -> str:
        """For a metric, whose labels must be few: the kind, or `other` for the word of an environment."""
        return kind if kind in ("", *cls) else "other"


MISSING: Final[Mapping[EpisodeFailure, str]] = {
    EpisodeFailure.SCENARIO_ERROR: "the scenario failed before its prompt, so before the first sampled token",
    EpisodeFailure.CONTEXT_OVERFLOW: "the scenario's prompt leaves no room for an answer",
    EpisodeFailure.ENVIRONMENT_BROKEN: "the environment cannot be loaded, or its scenario raises before its "
    "prompt each time (a fresh instance did at once), or whatever is answered: a fresh instance raised on an "
    "empty answer too, or it names a judge that the reward grader does not have. Played once",
    EpisodeFailure.ENVIRONMENT_LOST: "a process or host of the platform died: the runner, the zygote, or an "
    "environment before any call of the policy. Or no grader asked for the reward before the lease of its "
    "environment ended",
    EpisodeFailure.EXTERNAL_FAILURE: "a scenario or tool raised an exception that its environment declares "
    "as one of its outside world (`external_errors`: ConnectionError, an MCP server that is lost, or away "
    "at its URL, upcycle.InfrastructureError), or the model that it asks as its judge gave no verdict",
    EpisodeFailure.TIMEOUT: "the deadline passed while the episode waited: for an engine, a slot, the store, "
    "the network, the policy's tokens, or a call whose environment said nothing",
    EpisodeFailure.ENGINE_ERROR: "an engine refused the request: another one would refuse it too",
    EpisodeFailure.SAMPLER_ERROR: "a bug of the sampler",
    EpisodeFailure.BODY_CORRUPT: "the stored trajectory could not be read",
    EpisodeFailure.REWARD_INVALID: "a grade that is no reward left the runner",
    EpisodeFailure.GRADER_ERROR: "a grader of the deployment, or the reward grader itself, failed",
}
"""Failures that the policy did not cause: no reward exists, the member is played again."""

ATTRIBUTABLE: Final[Mapping[EpisodeFailure, str]] = {
    EpisodeFailure.POLICY_UNREADABLE: "the conversation cannot go on after a turn of the policy",
    EpisodeFailure.CONTEXT_SPENT: "the conversation outgrew the model's context after a turn of the policy. "
    "A budget of the run (`max_turns`, `max_tokens_per_turn`, `max_tokens_per_episode`) that is spent is no "
    "failure: the scenario grades what the turns left",
    EpisodeFailure.TOOL_TIMEOUT: "a tool that the policy called blocked its environment beyond the tool's "
    "time, used up the processor time, or took most of the time until the episode's deadline, also where it "
    "was still running then and its environment said so",
    EpisodeFailure.PROCESS_ENDED: "the environment's process ended, or was killed (for its memory, or by "
    "what a call left behind), in a call of the policy or after one",
    EpisodeFailure.ANSWER_ERROR: "the scenario raised, yielded no valid reward, hung or died on this answer, "
    "and a fresh instance of it graded an empty answer",
}
"""Failures that the policy caused: reward 0, at the first attempt."""


class GroupOutcome(StrEnum):
    """`group.settled`, outcome."""

    TRAINED = "trained"
    EXCLUDED = "excluded"
    RELEASED = "released"
    """A group of an evaluation that was offered and not trained: its episodes stay evaluated."""


class GroupReason(StrEnum):
    """`group.settled`, reason: why a group was excluded, released or never offered; NONE: it trained."""

    NONE = ""
    STALE = "stale"
    ZERO_SPREAD = "zero_spread"
    SHORT_GROUP = "short_group"
    HELD_OUT = "held_out"
    QUARANTINED = "quarantined"
    RUN_OVER = "run_over"
    VERSION = "version"
    TOKENIZER = "tokenizer"
    TOO_LARGE = "too_large"
    UNTRAINABLE = "untrainable"
    UNASSIGNED = "unassigned"
    OTHER_ENVIRONMENT = "other_environment"
    INCOMPLETE_GROUP = "incomplete_group"
    GROUP_OF_ONE = "group_of_one"
    NO_TOKENS = "no_tokens"
    ALREADY_TRAINED = "already_trained"
    BEYOND_BOUNDS = "beyond_bounds"


class SessionFailure(StrEnum):
    """`session.failed`, kind: why the trainer ended a run."""

    INVALID_SPEC = "invalid_spec"
    BROKEN_ARTIFACT = "broken_artifact"
    LINEAGE_TAKEN = "lineage_taken"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    ERROR = "error"
