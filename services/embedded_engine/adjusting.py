"""What a request changes in the scores of its next token, row by row: penalties and biases, as vLLM has them.

The log-probabilities that are reported are those of the changed distribution, because it is what sampled: a
sequence that was adjusted names the fields in `SamplingSpec.adjusted_by`.
"""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Adjustment(Protocol):
    """Of one sequence; used by the decode thread only."""

    def apply(self, scores: Tensor) -> None:
        """Change the scores [V] of the next token in place. Raises BadRequest: the sequence cannot go on."""

    def accept(self, token: int) -> None:
        """The token was drawn. Raises BadRequest."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """repetition: divides positive scores of tokens in prompt and answer, and multiplies negative ones.
    frequency: taken off per earlier draw of the token. presence: taken off once it was drawn."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    @property
    def is_neutral(self) -> bool:
        """Whether they change nothing."""
        return self == Penalties()


class Penalised(Adjustment):
    """Penalties of one sequence, with the tokens that it has so far."""

    def __init__(self, penalties: Penalties, prompt: Rows[int], vocab: int, device: torch.device) -> None:
        self._penalties = penalties
        self._drawn = torch.zeros(vocab, device=device)
        self._seen = torch.zeros(vocab, dtype=torch.bool, device=device)
        self._seen[torch.tensor(prompt, device=device)] = True

    def apply(self, scores: Tensor) -> None:
        """Repetition first, then frequency and presence."""
        repetition = self._penalties.repetition
        if repetition != 1.0:
            divided = torch.where(scores > 0, scores / repetition, scores * repetition)
            torch.where(self._seen, divided, scores, out=scores)
        if self._penalties.frequency:
            scores.sub_(self._drawn, alpha=self._penalties.frequency)
        if self._penalties.presence:
            scores.sub_(self._drawn.clamp(max=1), alpha=self._penalties.presence)

    def accept(self, token: int) -> None:
        """Count it."""
        self._drawn[token] += 1
        self._seen[token] = True


class Biased(Adjustment):
    """Numbers that are added to the scores of some tokens."""

    def __init__(self, bias: dict[int, float], device: torch.device) -> None:
        self._tokens = torch.tensor(list(bias), device=device)
        self._values = torch.tensor(list(bias.values()), device=device)

    def apply(self, scores: Tensor) -> None:
        """Add them."""
        scores.index_add_(0, self._tokens, self._values)

    def accept(self, token: int) -> None:
        """A bias does not depend on what was drawn."""
