"""The forward pass over a slot cache, for two kinds of batches.

Shapes: T tokens in the pass, N query heads, K key-value heads, G = N / K, D head size, S slots, L positions.
Every projection runs on all T tokens at once; only attention knows about rows.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from policy_engine.embedded.weights import LayerWeights, ModelConfig, Weights


class KeyValueCache:
    """Keys and values of every slot: [layer, key|value, slot, kv head, position, D], zero until written.

    The memory is reserved, not touched: pages become resident when a position is first written.
    """

    def __init__(self, config: ModelConfig, num_slots: int, max_len: int) -> None:
        shape = (config.num_layers, 2, num_slots, config.num_kv_heads, max_len, config.head_dim)
        # numpy asks for zeroed pages lazily; torch.zeros would write (and so commit) all of them.
        self.data = torch.from_numpy(np.zeros(shape, dtype=np.float32))
        self.num_slots = num_slots
        self.max_len = max_len
        self._heads = config.num_kv_heads
        kinds = torch.arange(2).view(1, 2, 1) * (num_slots * config.num_kv_heads * max_len)
        heads = torch.arange(config.num_kv_heads).view(1, 1, -1) * max_len
        self._offsets = (kinds + heads).view(1, -1)

    def write_index(self, slots: Tensor, positions: Tensor) -> Tensor:
        """Flat rows, for `rows_of`, where key and value of token t go: [T * 2K]."""
        start = slots * (self._heads * self.max_len) + positions
        return (start[:, None] + self._offsets).flatten()

    def rows_of(self, layer: int) -> Tensor:
        """One layer as [2 S K L, D], which `write_index` points into."""
        return self.data[layer].view(-1, self.data.shape[-1])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a slot into another."""
        self.data[:, :, target, :, :length].copy_(self.data[:, :, source, :, :length])


class Attention(Protocol):
    """How the tokens of a pass attend to their rows of the cache."""

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query: [T, N, D] scaled; keys, values: [S, K, L, D]. Returns [T, N * D]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass: which tokens, where they stand, where their keys and values go, how they attend."""

    token_ids: Tensor  # [T]
    positions: Tensor  # [T]
    write_index: Tensor  # [T * 2K]
    attend: Attention


class Network:
    """Runs one policy's weights. Stateless but for the rotary table."""

    def __init__(self, weights: Weights, max_len: int) -> None:
        self.weights = weights
        self.config = weights.config
        config = weights.config
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), 1.0 / config.rope_theta**half)
        self._rotation = torch.polar(torch.ones_like(angles), angles)  # [L, D / 2] complex

    def hidden(self, batch: Batch, cache: KeyValueCache) -> Tensor:
        """Last hidden states, normed: [T, H]. Writes keys and values of the batch into the cache."""
        weights, eps = self.weights, self.config.norm_eps
        rotation = self._rotation.index_select(0, batch.positions).unsqueeze(1)
        states = weights.embedding.index_select(0, batch.token_ids)
        for index, layer in enumerate(weights.layers):
            normed = F.rms_norm(states, states.shape[1:], layer.input_norm, eps)
            attended = self._attend(normed, layer, index, rotation, batch, cache)
            states = torch.addmm(states, attended, layer.out)
            normed = F.rms_norm(states, states.shape[1:], layer.post_norm, eps)
            gate, up = torch.mm(normed, layer.gate_up).chunk(2, dim=1)
            states = torch.addmm(states, F.silu(gate).mul_(up), layer.down)
        return F.rms_norm(states, states.shape[1:], weights.final_norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[T, H] -> [T, V]."""
        return torch.mm(hidden, self.weights.head)

    def _attend(
        self,
        normed: Tensor,
        layer: LayerWeights,
        index: int,
        rotation: Tensor,
        batch: Batch,
        cache: KeyValueCache,
    ) -> Tensor:
        config = self.config
        tokens, rotated = normed.shape[0], config.num_heads + config.num_kv_heads
        if layer.qkv_bias is None:
            qkv = torch.mm(normed, layer.qkv)
        else:
            qkv = torch.addmm(layer.qkv_bias, normed, layer.qkv)
        qkv = qkv.view(tokens, rotated + config.num_kv_heads, config.head_dim)
        qk = qkv[:, :rotated]
        if config.has_qk_norm:
            qk.copy_(F.rms_norm(qk, (config.head_dim,), None, config.norm_eps))
        qk.mul_(layer.qk_scale)
        torch.view_as_complex(qk.view(tokens, rotated, config.head_dim // 2, 2)).mul_(rotation)
        cache.rows_of(index).index_copy_(
            0, batch.write_index, qkv[:, config.num_heads :].reshape(-1, config.head_dim)
        )
        return batch.attend(qk[:, : config.num_heads], cache.data[index, 0], cache.data[index, 1])


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """One new token per row; row i of the pass sits in slot `slots[i]`, all slots below `num_slots`."""

    lengths: Tensor  # [S'] tokens to attend to per slot, S' = num_slots; 1 for slots without a token
    slots: Tensor | None  # [T], or None when row i is slot i
    num_slots: int
    max_len: int
    mask: Tensor  # [S', 1, 1, max_len] 0 or -inf

    @classmethod
    def over(cls, lengths: Tensor, slots: Tensor | None, max_len: int) -> "DecodeAttention":
        """Build the mask for `lengths`."""
        beyond = torch.arange(max_len) >= lengths.unsqueeze(1)
        mask = torch.zeros(beyond.shape).masked_fill_(beyond, -math.inf)[:, None, None, :]
        return cls(lengths, slots, lengths.shape[0], max_len, mask)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        _, heads, dim = query.shape
        kv_heads = keys.shape[1]
        if self.slots is not None:
            spread = query.new_zeros(self.num_slots, heads, dim)
            query = spread.index_copy_(0, self.slots, query)
        # The G query heads of one key-value head attend to the same positions: G queries of one head.
        found = F.scaled_dot_product_attention(
            query.view(self.num_slots, kv_heads, heads // kv_heads, dim),
            keys[: self.num_slots, :, : self.max_len],
            values[: self.num_slots, :, : self.max_len],
            attn_mask=self.mask,
            scale=1.0,
        ).reshape(self.num_slots, heads * dim)
        return found if self.slots is None else found.index_select(0, self.slots)


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Several new tokens per row, causal, after what the cache holds of the row already."""

    slots: Tensor  # [P]
    gather: Tensor  # [P * W] index of the pass's token at (row, offset); padding points at token 0
    scatter: Tensor  # [T] position of each token in the padded [P * W]
    width: int
    max_len: int
    mask: Tensor  # [P, 1, G * W, max_len]

    @classmethod
    def over(cls, slots: list[int], starts: list[int], counts: list[int], groups: int) -> "PrefillAttention":
        """Row p computes `counts[p]` tokens from position `starts[p]` in slot `slots[p]`."""
        width = max(counts)
        max_len = max(start + count for start, count in zip(starts, counts, strict=True))
        offsets = torch.arange(width)
        count_P, start_P = torch.tensor(counts), torch.tensor(starts)
        real = offsets < count_P.unsqueeze(1)  # [P, W]
        scatter = real.flatten().nonzero().squeeze(1)
        gather = torch.zeros(real.numel(), dtype=torch.long)
        gather[scatter] = torch.arange(scatter.shape[0])
        last = (start_P.unsqueeze(1) + offsets).clamp_(max=max_len - 1)  # [P, W]
        hidden = torch.arange(max_len) > last.unsqueeze(2)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)
        mask = mask.unsqueeze(1).expand(-1, groups, -1, -1).reshape(len(slots), 1, groups * width, max_len)
        return cls(torch.tensor(slots), gather, scatter, width, max_len, mask)

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        _, heads, dim = query.shape
        kv_heads, rows = keys.shape[1], self.slots.shape[0]
        groups = heads // kv_heads
        padded = query.index_select(0, self.gather).view(rows, self.width, kv_heads, groups, dim)
        found = F.scaled_dot_product_attention(
            padded.permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, groups * self.width, dim),
            keys[:, :, : self.max_len].index_select(0, self.slots),
            values[:, :, : self.max_len].index_select(0, self.slots),
            attn_mask=self.mask,
            scale=1.0,
        )
        by_token = found.view(rows, kv_heads, groups, self.width, dim).permute(0, 3, 1, 2, 4)
        return by_token.reshape(rows * self.width, heads * dim).index_select(0, self.scatter)
