"""How episodes, groups and training sessions end. The values are contract: they travel in events."""

from enum import StrEnum


class EpisodeFailure(StrEnum):
    """`episode.failed`, kind: why an episode has no reward. The planner refills its place in the group."""

    ENVIRONMENT_BROKEN = "environment_broken"
    ENVIRONMENT_LOST = "environment_lost"
    SCENARIO_ERROR = "scenario_error"
    ENGINE_ERROR = "engine_error"
    TIMEOUT = "timeout"
    CONTEXT_OVERFLOW = "context_overflow"
    POLICY_UNREADABLE = "policy_unreadable"
    SAMPLER_ERROR = "sampler_error"
    REWARD_INVALID = "reward_invalid"
    BODY_CORRUPT = "body_corrupt"
    GRADER_ERROR = "grader_error"

    @classmethod
    def label(cls, kind: str) -> str:
        """For a metric, whose labels must be few: the kind, or `other` for the word of an environment."""
        return kind if kind in ("", *cls) else "other"


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


class SessionFailure(StrEnum):
    """`session.failed`, kind: why the trainer ended a run."""

    INVALID_SPEC = "invalid_spec"
    BROKEN_ARTIFACT = "broken_artifact"
    LINEAGE_TAKEN = "lineage_taken"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    ERROR = "error"
