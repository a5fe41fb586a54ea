"""How a call to an environment fails: one class per reaction.

Beside these, calls raise `episodes.EpisodeBroken` and `upcycle.errors.Unavailable`.
"""

from upcycle.errors import Unavailable


class EpisodeNotPlanned(Exception):
    """The planner does not wait for this episode: it is settled, cancelled or unknown."""


class ReplicaUnreachable(Unavailable):
    """The replica that holds the lease does not answer: it restarts, or is gone with its environments.

    Where the replica answers that something else is unavailable, plain Unavailable is raised.
    """
