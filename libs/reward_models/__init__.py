"""Outcome reward models: how likely an episode succeeded, from what the policy saw and wrote. Modules that
need torch are imported where they are used: `reward_models.model`, `reward_models.training`."""

from reward_models.conversations import EpisodeConversation, GradedConversation, conversation_of
from reward_models.errors import RewardModelRefused
from reward_models.folder import RewardModelFacts, read_facts

__all__ = [
    "EpisodeConversation",
    "GradedConversation",
    "RewardModelFacts",
    "RewardModelRefused",
    "conversation_of",
    "read_facts",
]
