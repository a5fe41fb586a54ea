"""Drawing one token per row, exactly, for rows with different settings in one batch.

A row's draw depends on its seed and on how many tokens it has drawn, never on its neighbours: one uniform
number per token (splitmix64 of seed and position) through the inverse cumulative distribution, summed in
float64. Log-probabilities are those of the distribution that was drawn from: after temperature, min-p, top-k
and top-p (as vLLM's `processed_logprobs`); greedy rows report the unscaled distribution.
"""

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy, as in vLLM."""
_BLOCK = 32
_BELOW_ONE = 1.0 - 2.0**-40


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one sequence is sampled; checked at the HTTP edge."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    unsaid_stops: frozenset[int | str] = frozenset()
    """Of `stop` and `stop_token_ids`, those that the client did not name."""
    min_tokens: int = 0
    min_p: float = 0.0
    adjusted_by: tuple[str, ...] = ()
    """Fields of the request that made its tokens come from another distribution than the policy's at this
    temperature: with them the log-probabilities are no policy's."""
    num_top_logprobs: int | None = None
    """None: no logprobs wanted; 0: of the sampled token only; n: and of the n likeliest."""
    num_prompt_logprobs: int | None = None

    @property
    def named_stop_ids(self) -> tuple[int, ...]:
        """Those that `min_tokens` keeps from being drawn."""
        return tuple(self.stop_token_ids.difference(self.unsaid_stops))


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """The likeliest tokens at one position, likeliest first."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Of the sampled token, 1 is the likeliest."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One drawn token per row."""

    token_ids: list[int]
    logprobs: list[float]
    distribution: Tensor
    """[B, V] log-probabilities that were drawn from."""

    def top(self, row: int, count: int) -> TopLogprobs:
        """The `count` likeliest tokens of a row."""
        found = torch.topk(self.distribution[row], min(count, self.distribution.shape[1]))
        rank = int((self.distribution[row] > self.logprobs[row]).sum()) + 1
        return TopLogprobs(found.indices.tolist(), found.values.tolist(), rank)


class SamplingTable:
    """Sampling settings by slot, as arrays, so that a batch is sampled without a loop over rows."""

    def __init__(self, num_slots: int) -> None:
        self._temperature = np.ones(num_slots, dtype=np.float32)
        self._top_p = np.ones(num_slots, dtype=np.float32)
        self._top_k = np.zeros(num_slots, dtype=np.int64)
        self._min_p = np.zeros(num_slots, dtype=np.float32)
        self._seed = np.zeros(num_slots, dtype=np.uint64)

    def set(self, slot: int, spec: SamplingSpec) -> None:
        """Take over the settings of the sequence that occupies `slot`."""
        self._temperature[slot] = spec.temperature
        self._top_p[slot] = spec.top_p
        self._top_k[slot] = spec.top_k
        self._min_p[slot] = spec.min_p
        self._seed[slot] = np.uint64(spec.seed & 0xFFFFFFFFFFFFFFFF)

    def sample(
        self, logits: Tensor, slots: np.ndarray, drawn: np.ndarray, banned: Rows[Rows[int]]
    ) -> Sampled:
        """logits: [B, V], overwritten. slots, drawn: [B] slot and number of tokens drawn before, per row.

        `banned`: per row the token ids that it must not draw (empty outer sequence: none at all).
        """
        for row, tokens in enumerate(banned):
            if known := [token for token in tokens if 0 <= token < logits.shape[1]]:
                logits[row, known] = -math.inf
        temperature = self._temperature[slots]
        greedy = temperature < GREEDY_BELOW
        any_greedy, scale = bool(greedy.any()), np.where(greedy, np.float32(1.0), temperature)
        if bool((scale != 1.0).any()):
            logits.div_(_column(scale, logits))
        self._drop_unlikely(logits, slots, greedy)
        self._restrict(logits, slots, greedy)
        distribution = torch.log_softmax(logits, dim=-1)
        if bool(greedy.all()):
            chosen = distribution.argmax(dim=-1, keepdim=True)
        else:
            chosen = _draw(distribution, _uniform(self._seed[slots], drawn))
            if any_greedy:
                likeliest = distribution.argmax(dim=-1, keepdim=True)
                chosen = torch.where(_column(greedy, logits), likeliest, chosen)
        logprobs = distribution.gather(1, chosen)
        return Sampled(chosen.squeeze(1).tolist(), logprobs.squeeze(1).tolist(), distribution)

    def _drop_unlikely(self, logits: Tensor, slots: np.ndarray, greedy: np.ndarray) -> None:
        """Tokens less likely than `min_p` times the likeliest one."""
        limited = (self._min_p[slots] > 0) & ~greedy
        if not bool(limited.any()):
            return
        rows = torch.from_numpy(limited.nonzero()[0]).to(logits.device)
        chosen = logits[rows]
        floor = chosen.amax(dim=1, keepdim=True) + _column(self._min_p[slots][limited], logits).log()
        logits[rows] = chosen.masked_fill_(chosen < floor, -math.inf)

    def _restrict(self, logits: Tensor, slots: np.ndarray, greedy: np.ndarray) -> None:
        top_k, top_p = self._top_k[slots], self._top_p[slots]
        limited = ((top_k > 0) | (top_p < 1.0)) & ~greedy
        if not bool(limited.any()):
            return
        rows = torch.from_numpy(limited.nonzero()[0]).to(logits.device)
        vocab = logits.shape[1]
        width = np.where(top_k > 0, np.minimum(top_k, vocab), vocab)[limited]
        ascending, order = logits[rows].sort(dim=-1)
        floor = ascending.gather(1, _column(vocab - width, logits))
        ascending.masked_fill_(ascending < floor, -math.inf)
        below = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - _column(top_p[limited], logits)
        below[:, -1] = False
        ascending.masked_fill_(below, -math.inf)
        logits[rows] = torch.empty_like(ascending).scatter_(1, order, ascending)


def _draw(distribution: Tensor, uniform: np.ndarray) -> Tensor:
    """Inverse-CDF draw per row. [B, V] log-probabilities, [B] numbers in [0, 1) -> [B, 1] token ids.

    In two levels, a block of tokens and then a token of the block: a cumulative sum over a whole
    vocabulary is the slowest part of a step otherwise. Sums are float64.
    """
    rows, vocab = distribution.shape
    blocks = -(-vocab // _BLOCK)
    padded = torch.zeros(rows, blocks * _BLOCK, device=distribution.device)
    torch.exp(distribution, out=padded[:, :vocab])
    by_block = padded.view(rows, blocks, _BLOCK)
    # right=True finds the first entry above the target, so nothing of probability zero is ever chosen.
    mass = by_block.sum(dim=2).double().cumsum(dim=1)
    target = _column(uniform, distribution) * mass[:, -1:]
    # The clamps are for rows of NaN only: their logprob is NaN too, which fails the sequence, not the batch.
    block = torch.searchsorted(mass, target, right=True).clamp_(max=blocks - 1)
    upper, size = (
        mass.gather(1, block),
        by_block.gather(1, block.unsqueeze(2).expand(-1, -1, _BLOCK)).squeeze(1),
    )
    inside = size.double().cumsum(dim=1)
    lower = mass.gather(1, (block - 1).clamp_(min=0)).masked_fill_(block == 0, 0.0)
    # The place within the block as a fraction of it: rounding can then not point beyond its last token.
    fraction = ((target - lower) / (upper - lower)).clamp_(max=_BELOW_ONE)
    token = block * _BLOCK + torch.searchsorted(inside, fraction * inside[:, -1:], right=True)
    return token.clamp_(max=vocab - 1)


def _column(values: np.ndarray, beside: Tensor) -> Tensor:
    """[B] of the host as [B, 1], on the device of the rows that they belong to."""
    return torch.from_numpy(values).to(beside.device).unsqueeze(1)


def _uniform(seed: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """splitmix64 (Steele, Lea, Flood 2014) of seed and position, as multiples of 2**-32 in [0, 1)."""
    with np.errstate(over="ignore"):
        mixed = seed * np.uint64(0xD1342543DE82EF95) + (drawn.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    # Coarser than float64 on purpose: uniform * total then stays below total, whatever the rounding.
    uniform: np.ndarray = (mixed >> np.uint64(32)).astype(np.float64) * 2.0**-32
    return uniform
