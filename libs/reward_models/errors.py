"""What can be wrong with a reward model, its training data, or what it is to score."""

from upcycle.errors import UpcycleError


class RewardModelRefused(UpcycleError, ValueError):
    """The folder is no reward model, the data trains none, or the episode is nothing that it can read."""

    kind = "reward_model_refused"
