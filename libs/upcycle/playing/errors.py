"""Why an episode cannot be played: before it begins (usage), or because its player gave up."""

from upcycle.errors import Failed, UpcycleError


class PlayRefused(UpcycleError, ValueError):
    """The task or the player is named in a way that cannot be played."""

    kind = "play_refused"


class PlayerFailed(Failed):
    """The player has no next turn: its script is over, its server refused, a person left."""

    kind = "player_failed"


class DemonstrationFailed(Failed):
    """The reference player did not solve a task: its conversation would teach a mistake."""

    kind = "demonstration_failed"


class AgentRefused(PlayerFailed):
    """Its server takes no request of ours: a wrong key, a missing permission, an unknown model. No other
    episode will go better."""

    kind = "agent_refused"
