"""The same attention as `packed_attention` in one kernel: flex attention with a block mask, for GPUs.

Rows lie in the order of a stack: each row keeps a prefix of the row before it and adds its own tokens. So a
key is on a query's path exactly if it comes no later and if the query's row still keeps it.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import torch._dynamo
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from grpo_math.packed_attention import AttentionPlan

MIN_TOKENS: Final = 129
"""Fewest unique tokens that the fused kernel is for. Up to 128, one of its blocks, torch chooses a kernel for
decoding instead, and fails where that has no configuration for the model's heads."""
_MAX_VARIANTS: Final = 64
"""Kernels that a process may compile: one for each shape of heads, dtype, and with or without gradient. Past
its limit, 8 by itself, torch computes unfused, and holds all scores."""


def flex_mask(plan: AttentionPlan) -> BlockMask:
    """The mask of a microbatch, on the plan's device; the same for every layer."""
    row_of, last_row = plan.row_of, plan.last_row

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (row_of[query] <= last_row[key])

    length = row_of.shape[0]
    return create_block_mask(visible, None, None, length, length, device=str(row_of.device))


@cache
def _kernel(device_type: str) -> Any:
    """Fused on a GPU. On a CPU torch has no backward for it: tests use the unfused kernel, which materialises
    the full score matrix."""
    if device_type != "cuda":
        return flex_attention
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MAX_VARIANTS)
    return torch.compile(flex_attention, dynamic=True)


def flex_packed_attention(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """query [1, Hq, U, D], key and value [1, Hkv, U, D] -> [1, U, Hq, D]. Hq is a multiple of Hkv."""
    attend = _kernel(query.device.type)
    mixed: Tensor = attend(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
    return mixed.transpose(1, 2)
