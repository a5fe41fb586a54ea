"""Accumulated gradients of interactive training, and the update that applies them.

Gradients of built-in losses are kept as sums over trained tokens and divided by the tokens of the whole step
at its end, so that several small batches are one big one; gradients that a caller worked out, and sums that
are to stay sums, stay as given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_trainer.domain.errors import Diverged
from grpo_trainer.learner.prepared import Adam, Normalize

T = TypeVar("T")


class GradientSums:
    """Gradients of one session's trained parameters; a pass that fails leaves them as they were."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters: list[nn.Parameter] = [
            p for group in optimizer.param_groups for p in group["params"]
        ]
        self._token_sums: list[Tensor | None] = [None] * len(self._parameters)
        self._as_given: list[Tensor | None] = [None] * len(self._parameters)
        self._num_tokens = 0

    def of_tokens(self, passes: list[Callable[[], tuple[T, int]]], normalize: Normalize) -> list[T]:
        """Do passes that each leave the mean gradient over their tokens; they return a result and that
        number. All count, or none does. normalize: whether the update divides their sum."""
        added: list[Tensor | None] = [None] * len(self._parameters)
        results, count = [], 0
        try:
            for one in passes:
                self._clear()
                result, tokens = one()
                self._add_into(added, scale=float(tokens))
                results.append(result)
                count += tokens
        finally:
            self._clear()
        if normalize is Normalize.SUM:
            _merge(self._as_given, added)
        else:
            _merge(self._token_sums, added)
            self._num_tokens += count
        return results

    def as_given(self, one: Callable[[], T]) -> T:
        """Do a pass whose gradient is not divided by anything."""
        added: list[Tensor | None] = [None] * len(self._parameters)
        try:
            self._clear()
            result = one()
            self._add_into(added, scale=1.0)
        finally:
            self._clear()
        _merge(self._as_given, added)
        return result

    def apply(self, adam: Adam) -> float:
        """One update; returns the norm of its gradient before it was bounded, and nothing is accumulated any
        more. Raises Diverged, with weights and moments untouched, where that is not finite."""
        try:
            for at, parameter in enumerate(self._parameters):
                parameter.grad = self._total(at)
            bound = adam.max_grad_norm or float("inf")
            norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, bound))
            if not torch.isfinite(torch.tensor(norm)):
                raise Diverged(f"gradient norm {norm}: the step was not applied, its gradients are dropped")
            for group in self._optimizer.param_groups:
                group["lr"], group["betas"] = adam.learning_rate, (adam.beta1, adam.beta2)
                group["eps"], group["weight_decay"] = adam.eps, adam.weight_decay
            self._optimizer.step()
        finally:
            self.drop()
        return norm

    def drop(self) -> None:
        """Forget everything."""
        self._clear()
        self._token_sums = [None] * len(self._parameters)
        self._as_given = [None] * len(self._parameters)
        self._num_tokens = 0

    def _total(self, at: int) -> Tensor | None:
        sums, given = self._token_sums[at], self._as_given[at]
        mean = None if sums is None else sums / max(self._num_tokens, 1)
        if mean is None or given is None:
            return given if mean is None else mean
        return mean + given

    def _clear(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _add_into(self, added: list[Tensor | None], *, scale: float) -> None:
        own = [None if p.grad is None else p.grad.detach() * scale for p in self._parameters]
        _merge(added, own)


def _merge(into: list[Tensor | None], added: list[Tensor | None]) -> None:
    for at, tensor in enumerate(added):
        known = into[at]
        if tensor is not None:
            into[at] = tensor if known is None else known + tensor
