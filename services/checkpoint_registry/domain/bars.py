"""Which checkpoints a rollback bars: the version that was taken back, and what was trained from it. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from checkpoint_registry.domain.jobs import GATE_ACTOR
from checkpoint_registry.domain.models import HeadMove


def bar_of(checkpoint_id: str, moves: Iterable[HeadMove], parents: Mapping[str, str]) -> HeadMove | None:
    """The rollback that keeps the gate from making a checkpoint head; None: none does.

    moves: of head, oldest first. parents: by checkpoint id; that of a base is empty or of another model. A
    person who makes a checkpoint head takes its line back in: no rollback before that bars it.
    """
    barred: dict[str, HeadMove] = {}
    for move in moves:
        if move.actor != GATE_ACTOR:
            for one in _line(move.to_checkpoint_id, parents):
                barred.pop(one, None)
        elif move.from_checkpoint_id and not move.is_forward:
            barred[move.from_checkpoint_id] = move
    return next((barred[one] for one in _line(checkpoint_id, parents) if one in barred), None)


def _line(checkpoint_id: str, parents: Mapping[str, str]) -> Iterator[str]:
    """A checkpoint, its parent, and so on."""
    seen: set[str] = set()
    while checkpoint_id and checkpoint_id not in seen:
        yield checkpoint_id
        seen.add(checkpoint_id)
        checkpoint_id = parents.get(checkpoint_id, "")
