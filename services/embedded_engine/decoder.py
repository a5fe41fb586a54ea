"""The forward pass over a slot cache, for two kinds of batches.

Shapes: T tokens in the pass, N query heads, K key-value heads, G = N / K, D head size, S slots, L positions.
Every projection runs on all T tokens at once; only attention knows about rows.
"""

import contextlib
import math
import mmap
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embedded_engine.weights import CPU, LayerWeights, ModelConfig, ModelWeights

_MAX_GAP = 4
"""Slots between two rows that are attended to with them: a call of its own costs as much."""
_MAX_SEGMENTS = 8
"""From here on copying keys and values costs less than so many calls."""


class KeyValueCache:
    """Keys and values of every slot: [layer, key|value, slot, kv head, position, D], zero until written.

    On a CPU the memory is reserved, not touched: pages become resident when a position is first written.
    """

    def __init__(self, config: ModelConfig, num_slots: int, max_len: int, device: torch.device = CPU) -> None:
        shape = (config.num_layers, 2, num_slots, config.num_kv_heads, max_len, config.head_dim)
        if device.type == "cpu":
            self.data = torch.from_numpy(_zeros_on_touch(shape))
        else:
            self.data = torch.zeros(shape, device=device)
        self.device = device
        self.max_len = max_len
        # What decoding may attend to, 0 or -inf; position 0 always, so that no row is without any.
        self._visible = np.full((num_slots, 1, 1, max_len), -np.inf, dtype=np.float32)
        self._visible[..., 0] = 0.0
        self._visible_T = torch.from_numpy(self._visible)
        heads, kinds = config.num_kv_heads, num_slots * config.num_kv_heads * max_len
        own = np.arange(num_slots)[:, None, None] * (heads * max_len)
        inner = np.arange(2)[:, None] * kinds + np.arange(heads) * max_len
        self._first_row = (own + inner).reshape(num_slots, 2 * heads)

    def write_index(self, slots: np.ndarray, positions: np.ndarray) -> Tensor:
        """Flat rows, for `rows_of`, where key and value of token t go: [T * 2K]."""
        return self.tensor((self._first_row[slots] + positions[:, None]).reshape(-1))

    def begin(self, slot: int, length: int) -> None:
        """A sequence moves in with `length` positions computed."""
        self._visible[slot, 0, 0, :length] = 0.0
        self._visible[slot, 0, 0, max(length, 1) :] = -np.inf

    def extend(self, slot: int, start: int, end: int) -> None:
        """Positions start..end are being computed."""
        self._visible[slot, 0, 0, start:end] = 0.0

    def extend_each(self, slots: np.ndarray, positions: np.ndarray) -> None:
        """One more position per slot."""
        self._visible[slots, 0, 0, positions] = 0.0

    def visible(self, slots: slice | np.ndarray, max_len: int) -> Tensor:
        """The attention mask of some slots: [S', 1, 1, max_len]."""
        return self._visible_T[slots, :, :, :max_len].to(self.device)

    def tensor(self, values: np.ndarray) -> Tensor:
        """An array of the host where the cache is; on a CPU it is the same memory."""
        return torch.from_numpy(values).to(self.device)

    def rows_of(self, layer: int) -> Tensor:
        """One layer as [2 S K L, D], which `write_index` points into."""
        return self.data[layer].view(-1, self.data.shape[-1])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a slot into another."""
        self.data[:, :, target, :, :length].copy_(self.data[:, :, source, :, :length])


def _zeros_on_touch(shape: tuple[int, ...]) -> np.ndarray:
    """float32. Small pages: of huge ones, which numpy asks for, the first write to a row of the cache commits
    and zeroes 2 MiB, most of which is never used."""
    memory = mmap.mmap(-1, math.prod(shape) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel that has no huge pages refuses the advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)


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


class DecoderModel:
    """Runs one policy's weights. Stateless but for the rotary table."""

    def __init__(self, weights: ModelWeights, max_len: int) -> None:
        self.weights = weights
        self.config = weights.config
        config, device = weights.config, weights.device
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), 1.0 / config.rope_theta**half)
        # Worked out on the host, so that every device rotates by the same numbers.
        self._rotation = torch.polar(torch.ones_like(angles), angles).to(device)  # [L, D / 2] complex
        # Mean of squares as a matrix product: half the time of torch's own rms_norm on a CPU.
        self._mean_H = torch.full((config.hidden_size, 1), 1.0 / config.hidden_size, device=device)
        self._eps = torch.full((1, 1), config.norm_eps, device=device)

    def hidden(self, batch: Batch, cache: KeyValueCache) -> Tensor:
        """Last hidden states, normed: [T, H]. Writes keys and values of the batch into the cache."""
        weights = self.weights
        rotation = self._rotation.index_select(0, batch.positions).unsqueeze(1)
        states = weights.embedding.index_select(0, batch.token_ids)
        for index, layer in enumerate(weights.layers):
            attended = self._attend(self._normed(states), layer, index, rotation, batch, cache)
            states = torch.addmm(states, attended, layer.out)
            gate, up = torch.mm(self._normed(states), layer.gate_up).chunk(2, dim=1)
            states = torch.addmm(states, F.silu(gate).mul_(up), layer.down)
        return self._normed(states)

    def _normed(self, states: Tensor) -> Tensor:
        """RMS norm without its weight, which is part of the next matrix: [T, H] -> [T, H]."""
        return states * torch.addmm(self._eps, states * states, self._mean_H).rsqrt_()

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
            size = torch.linalg.vector_norm(qk, dim=2, keepdim=True)
            qk.mul_(torch.addcmul(self._eps, size, size, value=1.0 / config.head_dim).rsqrt_())
        qk.mul_(layer.qk_scale)
        torch.view_as_complex(qk.view(tokens, rotated, config.head_dim // 2, 2)).mul_(rotation)
        cache.rows_of(index).index_copy_(
            0, batch.write_index, qkv[:, config.num_heads :].reshape(-1, config.head_dim)
        )
        return batch.attend(qk[:, : config.num_heads], cache.data[index, 0], cache.data[index, 1])


def decode_attention(slots: np.ndarray, max_len: int, cache: KeyValueCache) -> Attention:
    """One new token per row; row i of the pass sits in slot `slots[i]`, ascending, and sees at most max_len
    positions. Slots between the rows cost as much as rows, so what lies far apart is attended to apart."""
    gaps = np.flatnonzero(np.diff(slots) > _MAX_GAP) + 1
    firsts, lasts = slots[np.append(0, gaps)], slots[np.append(gaps - 1, -1)]
    if len(firsts) > _MAX_SEGMENTS:
        return GatheredAttention(cache.tensor(slots), max_len, cache.visible(slots, max_len))
    sizes = lasts - firsts + 1
    begins = np.cumsum(sizes) - sizes
    rows = slots + np.repeat(begins - firsts, np.diff(np.append(np.append(0, gaps), len(slots))))
    segments = tuple((int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True))
    is_full = int(sizes.sum()) == len(slots)
    masks = tuple(cache.visible(slice(*segment), max_len) for segment in segments)
    return SegmentAttention(segments, masks, None if is_full else cache.tensor(rows), max_len)


@dataclass(frozen=True, slots=True)
class SegmentAttention:
    """One new token per row, whose slots lie in a few segments of the cache."""

    segments: tuple[tuple[int, int], ...]  # slots start..end of each
    masks: tuple[Tensor, ...]  # of each: [end - start, 1, 1, max_len] 0 or -inf
    rows: Tensor | None  # [T] place of each row in the segments end to end; None when they hold nothing else
    max_len: int

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        _, heads, dim = query.shape
        sizes = [end - start for start, end in self.segments]
        if self.rows is not None:
            query = query.new_zeros(sum(sizes), heads, dim).index_copy_(0, self.rows, query)
        found = [
            _one_each(part, keys[start:end, :, : self.max_len], values[start:end, :, : self.max_len], mask)
            for part, (start, end), mask in zip(
                torch.split(query, sizes), self.segments, self.masks, strict=True
            )
        ]
        attended = found[0] if len(found) == 1 else torch.cat(found)
        return attended if self.rows is None else attended.index_select(0, self.rows)


@dataclass(frozen=True, slots=True)
class GatheredAttention:
    """One new token per row, whose slots lie all over the cache: their keys and values are copied first."""

    slots: Tensor  # [T]
    max_len: int
    mask: Tensor  # [T, 1, 1, max_len] 0 or -inf

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        its_keys = keys[:, :, : self.max_len].index_select(0, self.slots)
        its_values = values[:, :, : self.max_len].index_select(0, self.slots)
        return _one_each(query, its_keys, its_values, self.mask)


def _one_each(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """query: [T, N, D]; keys, values: [T, K, max_len, D]; mask: [T, 1, 1, max_len]. Returns [T, N * D]."""
    num_rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    # The G query heads of one key-value head attend to the same positions: G queries of one head.
    grouped = query.view(num_rows, kv_heads, heads // kv_heads, dim)
    found = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=1.0)
    return found.reshape(num_rows, heads * dim)


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
    def over(
        cls, slots: list[int], starts: list[int], counts: list[int], groups: int, device: torch.device = CPU
    ) -> "PrefillAttention":
        """Row p computes `counts[p]` tokens from position `starts[p]` in slot `slots[p]`."""
        width = max(counts)
        max_len = max(start + count for start, count in zip(starts, counts, strict=True))
        slot_P, start_P, count_P = torch.tensor([slots, starts, counts], device=device)
        offsets = torch.arange(width, device=device)
        real = offsets < count_P.unsqueeze(1)  # [P, W]
        scatter = real.flatten().nonzero().squeeze(1)
        gather = torch.zeros(real.numel(), dtype=torch.long, device=device)
        gather[scatter] = torch.arange(scatter.shape[0], device=device)
        last = (start_P.unsqueeze(1) + offsets).clamp_(max=max_len - 1)  # [P, W]
        hidden = torch.arange(max_len, device=device) > last.unsqueeze(2)
        mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -math.inf)
        mask = mask.unsqueeze(1).expand(-1, groups, -1, -1).reshape(len(slots), 1, groups * width, max_len)
        return cls(slot_P, gather, scatter, width, max_len, mask)

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
