"""Which sequence owns which slot of the key-value cache, and whose keys and values the free slots still hold.

A finished sequence leaves its keys and values behind. A later prompt that begins with the same tokens,
under the same weights, takes them over: in place when it extends the whole sequence (the next turn of a
conversation), by a copy when it shares only a beginning (another rollout of the same task).
"""

from dataclasses import dataclass

import numpy as np

from embedded_engine.sequences import Sequence

_DEFER_BELOW = (
    32  # tokens; a prefix about to be computed by another sequence is worth waiting for from here on
)
_COPY_FROM = 16  # tokens; below this computing again is as fast as copying


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence goes and how much of its prompt is there already."""

    slot: int
    num_cached: int
    copy_from: int | None


class KvSlots:
    """Tokens by slot, so that shared beginnings are found with one comparison. S slots, L positions."""

    def __init__(self, num_slots: int, max_len: int) -> None:
        self.owner: list[Sequence | None] = [None] * num_slots
        self.tokens = np.zeros((num_slots, max_len), dtype=np.int32)
        """What is, or is about to be, in the cache."""
        self.kv_len = np.zeros(num_slots, dtype=np.int64)
        """Positions whose keys and values are computed."""
        self.planned = np.zeros(num_slots, dtype=np.int64)
        """Positions that the owner's prompt will fill."""
        self.epoch = np.zeros(num_slots, dtype=np.int64)
        """Weights that all of the slot's keys and values come from; -1 when they come from several."""
        self.used = np.zeros(num_slots, dtype=np.int64)
        self._clock = 0
        self._high = 0

    @property
    def num_slots(self) -> int:
        """S."""
        return len(self.owner)

    def place(self, sequence: Sequence, epoch: int, *, reuse: bool) -> Placement | None:
        """Choose a slot; None when none is free or a neighbour is about to compute a shared beginning."""
        prompt = np.asarray(sequence.tokens, dtype=np.int32)
        shared = self._shared(prompt, epoch) if reuse else np.zeros(self._high, dtype=np.int64)
        ready = np.minimum(shared, self.kv_len[: self._high])
        best = int(ready.argmax()) if self._high else -1
        length = int(ready[best]) if best >= 0 else 0
        coming = int(np.minimum(shared, self.planned[: self._high]).max(initial=0))
        if coming - length >= _DEFER_BELOW:
            return None
        if length and self.owner[best] is None and length >= self.kv_len[best] - 1:
            return Placement(best, length, None)
        slot = self._free_slot(protect=best if length >= _COPY_FROM else -1)
        if slot is None:
            # The only free slot may be the one to copy from: then the sequence takes it over in place.
            return Placement(best, length, None) if length and self.owner[best] is None else None
        return Placement(slot, length, best) if length >= _COPY_FROM else Placement(slot, 0, None)

    def take(self, sequence: Sequence, placement: Placement, epoch: int) -> None:
        """Give the slot to the sequence."""
        slot, length = placement.slot, len(sequence.tokens)
        self.owner[slot] = sequence
        self.tokens[slot, :length] = sequence.tokens
        self.kv_len[slot] = placement.num_cached
        self.planned[slot] = length
        self.epoch[slot] = epoch
        self._high = max(self._high, slot + 1)
        sequence.slot = slot

    def release(self, sequence: Sequence) -> None:
        """The sequence is over; what it computed stays until the slot is needed."""
        slot = sequence.slot
        self._clock += 1
        self.owner[slot] = None
        self.planned[slot] = 0
        self.used[slot] = self._clock

    def forget(self, *, owned_too: bool) -> None:
        """Drop the contents of free slots; `owned_too`: running sequences compute everything again."""
        for slot, sequence in enumerate(self.owner):
            if sequence is None or owned_too:
                self.kv_len[slot] = 0

    def mark_mixed(self, epoch: int) -> None:
        """Weights change: running sequences keep using what they hold; no later sequence may reuse it."""
        for slot, sequence in enumerate(self.owner):
            if sequence is not None:
                self.epoch[slot] = -1 if self.kv_len[slot] else epoch

    def _shared(self, prompt: np.ndarray, epoch: int) -> np.ndarray:
        """Per slot, how many tokens it shares with the prompt from the start; the last one never counts."""
        limit = len(prompt) - 1
        if limit < 1:
            return np.zeros(self._high, dtype=np.int64)
        differs = self.tokens[: self._high, :limit] != prompt[:limit]
        shared = np.where(differs.any(axis=1), differs.argmax(axis=1), limit)
        shared[self.epoch[: self._high] != epoch] = 0
        return shared

    def _free_slot(self, protect: int) -> int | None:
        """The lowest empty slot, else the one left longest ago."""
        oldest: int | None = None
        for slot, sequence in enumerate(self.owner):
            if sequence is not None or slot == protect:
                continue
            if self.kv_len[slot] == 0:
                return slot
            if oldest is None or self.used[slot] < self.used[oldest]:
                oldest = slot
        return oldest
