"""Log-probabilities and entropies of chosen positions, without ever holding the [N, V] logits of a step."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_MAX_CHUNK: Final = 4096
"""Most positions whose logits exist at once."""
_MAX_LOGITS: Final = 1 << 27
"""Most logits that exist at once: 512 MiB in float32, of which backward holds three. A vocabulary of 152
thousand tokens would make 4,096 positions five times as large."""


def default_chunk(vocabulary: int) -> int:
    """Positions whose logits exist at once, for a vocabulary of so many tokens."""
    return max(1, min(_MAX_CHUNK, _MAX_LOGITS // vocabulary))


def _logits(hidden: Tensor, head: Tensor, temperature: Tensor) -> Tensor:
    """[n, V] logits at the sampling temperature, in float32 (float64 where the model is float64)."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    return (hidden @ head.t()).to(wide).div_(temperature[:, None].to(wide))


class _ChunkedLogprob(torch.autograd.Function):
    """Forward keeps hidden states only; backward computes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, labels: Tensor, temperature: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logprobs = hidden.new_empty(hidden.shape[0], dtype=wide)
        entropies = torch.empty_like(logprobs)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            log_p = torch.log_softmax(_logits(hidden[part], head, temperature[part]), dim=-1)
            logprobs[part] = log_p.gather(1, labels[part, None]).squeeze(1)
            entropies[part] = -log_p.exp().mul_(log_p).sum(dim=1)
        ctx.save_for_backward(hidden, head, labels, temperature)
        ctx.chunk = chunk
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        grad_logprobs, grad_entropies = grads
        hidden, head, labels, temperature = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_head = torch.zeros_like(head, dtype=grad_logprobs.dtype)
        for start in range(0, hidden.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            log_p = torch.log_softmax(_logits(hidden[part], head, temperature[part]), dim=-1)
            p = log_p.exp()
            # d logprob / d logits = onehot - p;  d entropy / d logits = -p (log p + entropy)
            entropy = -(p * log_p).sum(dim=1, keepdim=True)
            # In place: each of these is as large as the logits.
            grad = log_p.add_(entropy).mul_(-grad_entropies[part, None]).sub_(grad_logprobs[part, None])
            grad.mul_(p).scatter_add_(1, labels[part, None], grad_logprobs[part, None])
            grad /= temperature[part, None].to(grad.dtype)
            grad_hidden[part] = (grad.to(head.dtype) @ head).to(hidden.dtype)
            grad_head += grad.t() @ hidden[part].to(grad.dtype)
        return grad_hidden, grad_head.to(head.dtype), None, None, None


def token_logprobs(
    hidden: Tensor, head: Tensor, labels: Tensor, *, temperature: Tensor, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Log-probability of each label and entropy of each distribution, both in nats and both differentiable.

    hidden: [N, H] last hidden state of the position *before* each label; head: [V, H]; labels: [N] int64;
    temperature: [N] > 0. returns: ([N], [N]), float32 or float64. chunk: positions at once, by default
    `default_chunk`; memory is chunk * V instead of N * V.
    """
    chunk = chunk or default_chunk(head.shape[0])
    logprobs, entropies = _ChunkedLogprob.apply(hidden, head, labels, temperature, chunk)  # type: ignore[no-untyped-call]
    return logprobs, entropies
