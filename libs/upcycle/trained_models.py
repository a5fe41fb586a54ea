"""Models that this process trains and whose head it does not move, because a gate decides about it.

Their agents play the newest published weights: with head they would sample the first policy for ever.
"""

_ahead_of_head: set[str] = set()


def stepped(model: str, *, is_head: bool) -> None:
    """Note where a step that was to move head left it."""
    if is_head:
        _ahead_of_head.discard(model)
    else:
        _ahead_of_head.add(model)


def head_was_set(model: str) -> None:
    """Note that a person set head: the next step continues it, so agents play it."""
    _ahead_of_head.discard(model)


def is_ahead_of_head(model: str) -> bool:
    """True if the newest weights of the model are those that the next step of this process continues."""
    return model in _ahead_of_head
