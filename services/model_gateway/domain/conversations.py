"""The calls of a session as rows of tokens, by the extension property."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallTokens:
    """The whole prompt of a call, and what was sampled; both are empty where the engine told no tokens."""

    prompt: Sequence[int]
    sampled: Sequence[int]


def rows_of(calls: Sequence[CallTokens]) -> list[list[int]]:
    """Positions of `calls`, which are in the order in which they were answered, in rows.

    A call whose prompt repeats all tokens of a row continues it, the longest such row. Any other begins a
    row: a fork, a parallel call, a compacted context, a sub-agent, an answer whose text was rendered
    otherwise. So each sampled token is in exactly one row, as sampled.
    """
    rows: list[list[int]] = []
    ends: list[bytes] = []  # compared as bytes: a session of a thousand forks is a million comparisons
    for position, call in enumerate(calls):
        prompt = array("q", call.prompt).tobytes()
        extended = [row for row, end in enumerate(ends) if end and prompt.startswith(end)]
        if extended:
            row = max(extended, key=lambda one: len(ends[one]))
            rows[row].append(position)
        else:
            row = len(rows)
            rows.append([position])
            ends.append(b"")
        ends[row] = prompt + array("q", call.sampled).tobytes()
    return rows
