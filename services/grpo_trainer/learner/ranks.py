"""This process among those that compute one step together, and its sums over all of them.

Every rank calls the same functions in the same order; a single rank exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """index: of this process, 0..size-1; the process group of torch.distributed is up where size > 1."""

    index: int = 0
    size: int = 1

    def total(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all ranks, in float64."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """The largest of all ranks' values."""
        return self._reduced([value], dist.ReduceOp.MAX)[0]

    def _reduced(self, values: Sequence[float], how: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=collective_device())
        dist.all_reduce(numbers, how)
        result: list[float] = numbers.tolist()
        return result

    def joined(self, values: Tensor) -> Tensor:
        """[n] values of every rank as one [sum of n] tensor, in the order of ranks."""
        if self.size == 1:
            return values
        parts: list[Tensor | None] = [None] * self.size
        dist.all_gather_object(parts, values.detach().cpu())
        return torch.cat([part for part in parts if part is not None]).to(values.device)


ALONE: Final = Ranks()


def collective_device() -> torch.device:
    """Where the process group wants its tensors."""
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
