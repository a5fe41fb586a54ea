"""Parameters spread over ranks (FSDP2), and the way back to whole tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from grpo_trainer.learner.ranks import Ranks

_DIVIDE_BY: Final = 1.0
"""Losses are divided by totals of the whole step already, so gradients are summed over ranks."""


def shard(root: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks, device: torch.device) -> None:
    """Spread the parameters of `blocks`, then what is left of `root`, over all ranks. In place."""
    mesh = init_device_mesh(device.type, (ranks.size,))
    parts = [*blocks, root]
    for part in parts:
        # Also the root, so that between two passes every parameter is the optimizer's, and nothing else.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for part in parts:
        assert isinstance(part, FSDPModule)  # noqa: S101 - fully_shard changed its class
        part.set_gradient_divide_factor(_DIVIDE_BY)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum


def whole(tensor: Tensor) -> Tensor:
    """The full value of a tensor, on every rank; all ranks must ask for it. A plain tensor is returned."""
    if isinstance(tensor, DTensor):
        full: Tensor = tensor.full_tensor()
        return full.detach()
    return tensor.detach()


def spread_like(full: Tensor, parameter: Tensor) -> Tensor:
    """`full`, the same on every rank, laid out over the ranks as `parameter` is; on its device."""
    if isinstance(parameter, DTensor):
        moved = full.to(parameter.device)
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements, src_data_rank=None)
    return full.to(parameter.device)


@torch.no_grad()
def assign(parameter: Tensor, full: Tensor) -> None:
    """Set a parameter to a whole value that is the same on every rank."""
    parameter.copy_(spread_like(full, parameter))
