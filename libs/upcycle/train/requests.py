"""Options of the calls of interactive training, and how the calls are written on the wire."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict, cast

from upcycle.errors import UpcycleError
from upcycle.train.inputs import Lora, TrainingInput, input_to_wire

DEFAULT_LOSS: Final = "importance_sampling"

Normalize = Literal["tokens", "sum"]
"""What the gradient of a pass is divided by: the trained tokens of all such passes of a step, or nothing."""
Persist = Literal["checkpoint", "weights", "none"]
"""What of an optimizer step outlives the trainer's process: training state, weights and a checkpoint; the
weights, as a published version; nothing."""
_NORMALIZE_NUMBERS: Final = {"tokens": 0, "sum": 2}
_PERSIST_NUMBERS: Final = {"checkpoint": 0, "weights": 2, "none": 3}
"""As the wire has it. A default is not sent: a trainer of the version before knows no such field."""


class AdamOptions(TypedDict, total=False):
    """Options of an AdamW update beside its learning rate. Defaults: beta1 0.9, beta2 0.95, eps 1e-8,
    weight_decay 0, max_grad_norm 1 (0: no bound)."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float


class PassOptions(TypedDict, total=False):
    """Options of a pass.

    reward_scale: multiplies rewards. num_substeps: the pass is computed in so many slices, which needs less
    memory and gives the same gradient. advantage: how rewards of a group become credit, by default `dr_grpo`.
    normalize: `tokens`, the default: the gradient is the mean over the trained tokens of all such passes of
    the step; `sum`: it is the sum over the tokens of this pass. Both kinds add up; max_grad_norm bounds the
    norm of what they add up to."""

    reward_scale: float
    num_substeps: int
    advantage: str
    normalize: Normalize


class StepOptions(AdamOptions, PassOptions, total=False):
    """Options of a step: those of the update, those of the pass before it, and what of it is saved."""

    persist: Persist


def pass_options(given: Any) -> PassOptions:
    """Takes the options of the pass out of those of a call."""
    options: MutableMapping[str, Any] = given
    return cast(
        "PassOptions", {name: options.pop(name) for name in PassOptions.__annotations__ if name in options}
    )


def refuse_unknown(left: Mapping[str, Any]) -> None:
    """Raises UpcycleError for an option that a pass does not have."""
    if left:
        known = ", ".join(PassOptions.__annotations__)
        raise UpcycleError(f"unknown argument {min(left)!r}", f"a pass has {known}")


@dataclass(frozen=True, slots=True)
class PassRequest:
    """A forward and backward pass with a built-in loss."""

    inputs: Sequence[TrainingInput]
    group_size: int | None
    loss_fn: str
    loss_fn_config: Mapping[str, float] | None
    options: PassOptions

    @property
    def num_substeps(self) -> int:
        """Slices."""
        return self.options.get("num_substeps", 1)

    def batch(self) -> Any:
        """Of the wire. Raises InputInvalid."""
        scale, advantage = self.options.get("reward_scale", 1.0), self.options.get("advantage", "")
        return batch_to_wire(self.inputs, self.group_size, scale, advantage)

    def loss(self) -> Any:
        """Of the wire."""
        from upcycle.api.training.v1 import interactive_pb2 as pb

        normalize = _number("normalize", self.options.get("normalize", "tokens"), _NORMALIZE_NUMBERS)
        return pb.Loss(name=self.loss_fn, config=dict(self.loss_fn_config or {}), normalize=normalize)


def batch_to_wire(
    inputs: Sequence[TrainingInput], group_size: int | None, reward_scale: float, advantage: str
) -> Any:
    """Raises InputInvalid."""
    from upcycle.api.training.v1 import interactive_pb2 as pb

    return pb.Batch(
        inputs=[input_to_wire(one) for one in inputs],
        group_size=group_size,
        reward_scale=reward_scale,
        advantage=advantage,
    )


def persist_to_wire(persist: str) -> Any:
    """Raises UpcycleError for another word."""
    return _number("persist", persist, _PERSIST_NUMBERS)


def _number(argument: str, value: str, numbers: Mapping[str, int]) -> Any:
    if value not in numbers:
        raise UpcycleError(f"{argument} is {value!r}", f"it is one of {', '.join(numbers)}")
    return numbers[value]


def lora_to_wire(given: Lora | None) -> Any:
    """None where the model's last choice is to stay."""
    from upcycle.api.training.v1 import interactive_pb2 as pb

    if given is None:
        return None
    return pb.LoraOptions(rank=given.rank, alpha=given.alpha, targets=given.targets)


def adam_to_wire(learning_rate: float, given: Mapping[str, Any]) -> Any:
    """Raises UpcycleError for an argument that the optimizer does not have."""
    from upcycle.api.training.v1 import interactive_pb2 as pb

    names = [field.name for field in pb.AdamParameters.DESCRIPTOR.fields]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UpcycleError(f"unknown argument {unknown[0]!r}", f"the optimizer has {', '.join(names)}")
    return pb.AdamParameters(learning_rate=learning_rate, **given)
