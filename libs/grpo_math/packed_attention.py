"""Causal attention over packed rows that may share prefixes: exact, no tokens of one row seen by another.

Each row's own tokens are its queries; its keys are its whole path, shared tokens included. Rows of similar
size are padded together into a bucket and go through one fused attention call, so the waste is inside
attention alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

_MAX_WASTE: Final = 0.35
"""A bucket grows while at most this share of its query-key area is padding."""


@dataclass(frozen=True, slots=True)
class RowSpan:
    """path [L]: where each token of a row lies among the unique tokens; the first `shared` belong to
    earlier rows."""

    path: Tensor
    shared: int

    @property
    def num_own(self) -> int:
        return self.path.shape[0] - self.shared

    @property
    def area(self) -> int:
        return self.num_own * self.path.shape[0]


@dataclass(frozen=True)
class _Bucket:
    """B rows: queries [B, S] and keys [B, K] as indices among the unique tokens, padded with a token of the
    row.

    own [sum of own lengths]: which of the B * S outputs are real. shared [B]: how many keys of each row are
    of earlier rows, or None: of no row any, so attention is plain causal.
    """

    queries: Tensor
    keys: Tensor
    own: Tensor
    shared: Tensor | None
    _masks: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def to(self, device: torch.device | str) -> _Bucket:
        """The same bucket on another device."""
        shared = None if self.shared is None else self.shared.to(device)
        return _Bucket(self.queries.to(device), self.keys.to(device), self.own.to(device), shared)

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """[B, 1, S, K], 0 or -inf, to add to the scores; made at its first use, and the same for every layer:
        each keeps what it was given until its backward. None: plain causal."""
        if self.shared is None:
            return None
        if dtype not in self._masks:
            self._masks[dtype] = self._made(self.shared, dtype)
        return self._masks[dtype]

    def _made(self, shared: Tensor, dtype: torch.dtype) -> Tensor:
        (rows, width), length, device = self.queries.shape, self.keys.shape[1], shared.device
        last = shared[:, None, None] + torch.arange(width, device=device)[None, :, None]
        hidden = torch.arange(length, device=device)[None, None, :] > last
        # Rows of memory at multiples of 8 elements: fused kernels of GPUs copy any other mask in each layer.
        stored = torch.zeros(rows, 1, width, -(-length // 8) * 8, dtype=dtype, device=device)
        return stored[..., :length].masked_fill_(hidden[:, None], -torch.inf)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Buckets, and `order` [U]: where in their joined outputs each unique token's value is.

    row_of, last_row [U]: which row owns a unique token, and the last row whose path it lies on. longest:
    tokens of the longest path.
    """

    buckets: tuple[_Bucket, ...]
    order: Tensor
    row_of: Tensor
    last_row: Tensor
    longest: int

    def to(self, device: torch.device | str) -> AttentionPlan:
        """The same plan with its indices on another device."""
        moved = tuple(bucket.to(device) for bucket in self.buckets)
        order, row_of, last_row = (t.to(device) for t in (self.order, self.row_of, self.last_row))
        return AttentionPlan(moved, order, row_of, last_row, self.longest)


def _pad(paths: Sequence[Tensor]) -> Tensor:
    """[B, longest]: rows padded on the right with their own first index."""
    width = max(path.shape[0] for path in paths)
    padded = torch.stack([path[:1].expand(width) for path in paths]).clone()
    for row, path in enumerate(paths):
        padded[row, : path.shape[0]] = path
    return padded


def _bucket(spans: Sequence[RowSpan]) -> _Bucket:
    queries = _pad([span.path[span.shared :] for span in spans])
    keys = _pad([span.path for span in spans])
    width = queries.shape[1]
    own = torch.cat([torch.arange(span.num_own) + row * width for row, span in enumerate(spans)])
    if all(span.shared == 0 for span in spans):
        return _Bucket(queries, keys, own, None)
    return _Bucket(queries, keys, own, torch.tensor([span.shared for span in spans]))


def _grouped(spans: Sequence[RowSpan]) -> list[list[RowSpan]]:
    """Rows of similar size together, sharing rows apart from whole ones, which need no mask."""
    ordered = sorted(spans, key=lambda s: (s.shared > 0, s.num_own, s.path.shape[0]))
    groups: list[list[RowSpan]] = []
    for span in ordered:
        if groups and (groups[-1][0].shared > 0) == (span.shared > 0):
            joined = [*groups[-1], span]
            padded = len(joined) * max(s.num_own for s in joined) * max(s.path.shape[0] for s in joined)
            if sum(s.area for s in joined) >= (1 - _MAX_WASTE) * padded:
                groups[-1].append(span)
                continue
        groups.append([span])
    return groups


def plan_attention(spans: Sequence[RowSpan]) -> AttentionPlan:
    """The plan for rows in pack order. Rows that own nothing (equal to the row before) need no attention."""
    groups = _grouped([span for span in spans if span.num_own])
    buckets = tuple(_bucket(group) for group in groups)
    placed = torch.cat([b.queries.flatten()[b.own] for b in buckets])
    order = torch.empty_like(placed)
    order[placed] = torch.arange(placed.shape[0])
    row_of = torch.arange(len(spans)).repeat_interleave(torch.tensor([span.num_own for span in spans]))
    last_row = row_of.clone()
    for index, span in enumerate(spans):
        last_row[span.path[: span.shared]] = index
    longest = max(span.path.shape[0] for span in spans)
    return AttentionPlan(buckets, order, row_of, last_row, longest)


def packed_attention(query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """query [1, Hq, U, D], key and value [1, Hkv, U, D] -> [1, U, Hq, D]. Hq is a multiple of Hkv."""
    outputs = []
    groups = query.shape[1] // key.shape[1]
    for bucket in plan.buckets:
        q, k, v = _take(query, bucket.queries), _take(key, bucket.keys), _take(value, bucket.keys)
        mask = bucket.mask(q.dtype)
        if q.is_cuda and (mask is not None or q.dtype == torch.float32):
            # The fused kernel for these takes no grouped heads; what takes them holds all scores at once.
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=k.shape[1] < q.shape[1]
        )
        outputs.append(mixed.transpose(1, 2).flatten(0, 1).index_select(0, bucket.own))
    return torch.cat(outputs).index_select(0, plan.order)[None]


def _take(states: Tensor, index: Tensor) -> Tensor:
    """[1, H, U, D] and [B, S] -> [B, H, S, D]."""
    taken = states[0].index_select(1, index.flatten())
    return taken.view(states.shape[1], *index.shape, states.shape[3]).transpose(0, 1)
