"""Custom losses: the client computes the loss with torch and sends one weight per token to the trainer."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from upcycle.errors import UpcycleError
from upcycle.train.results import DatumTensors

if TYPE_CHECKING:
    import torch

CustomLoss = Callable[[list[DatumTensors], "list[torch.Tensor]"], "tuple[torch.Tensor, Mapping[str, Any]]"]
"""(data, the policy's log-probabilities [T] of each datum) -> (scalar loss, metrics)."""


class CustomLossInvalid(UpcycleError, ValueError):
    """The loss function returned no finite scalar that depends on the log-probabilities."""

    kind = "custom_loss_invalid"


def weights_of(
    data: Sequence[DatumTensors], loss_fn: CustomLoss
) -> tuple[list[list[float]], dict[str, float]]:
    """-dLoss/dlogprob of every token, and the metrics of the loss function with `loss` added.

    Raises CustomLossInvalid; UpcycleError where torch is not installed.
    """
    torch = _torch()
    logprobs = [torch.tensor(datum.logprobs, dtype=torch.float32, requires_grad=True) for datum in data]
    answer = loss_fn(list(data), list(logprobs))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise CustomLossInvalid(f"the loss returned {type(answer).__name__}", "return (loss, metrics)")
    loss, metrics = answer
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise CustomLossInvalid(
            "the loss is no scalar tensor that depends on the log-probabilities",
            "compute it from the second argument without detaching it",
        )
    if not torch.isfinite(loss):
        raise CustomLossInvalid(f"the loss is {float(loss.detach())}", "mask tokens, bound the ratio")
    gradients = torch.autograd.grad(loss.reshape(()), logprobs, allow_unused=True)
    weights = [
        [0.0] * len(datum.logprobs) if gradient is None else (-gradient).tolist()
        for datum, gradient in zip(data, gradients, strict=True)
    ]
    return weights, {"loss": float(loss.detach()), **{name: float(value) for name, value in metrics.items()}}


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise UpcycleError(
            "a custom loss is computed here, with torch, which is not installed",
            "in a checkout: pip install './libs[train]'; or use a built-in loss",
        ) from error
    return torch
