"""Results of the calls of interactive training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from upcycle.api.training.v1 import interactive_pb2 as pb


_PERSIST_NAMES: Final = {1: "checkpoint", 2: "weights", 3: "none"}


@dataclass(frozen=True, slots=True)
class DatumTensors:
    """One row of a batch. The arrays have one value per token from the second token on, 0 where mask is 0.

    reward: of the trajectory, scaled; advantage: of the trajectory within its group. group_index: None
    without groups. logprobs: under the policy in training; sampling_logprobs: under the policy that sampled.
    """

    reward: float
    advantage: float
    input_index: int
    group_index: int | None
    logprobs: Sequence[float]
    sampling_logprobs: Sequence[float]
    mask: Sequence[float]
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Forward:
    """A forward pass with the weights of `version`. forward_id: for `backward`, until the weights change."""

    forward_id: str
    version: int
    data: Sequence[DatumTensors]


@dataclass(frozen=True, slots=True)
class ForwardBackwardResult:
    """A gradient was accumulated. num_datums: rows that were trained. metrics["untrainable"]: how many inputs
    have no trainable token; their rewards still count in their groups. metrics["without_task"]: how many
    name no task, so that it was not checked whether theirs is held out.

    logprobs: if asked for, per datum, of each of its tokens from the second on, under the weights that the
    gradient is of; 0 where a token is not trained. The order is that of `forward`."""

    metrics: Mapping[str, float]
    num_datums: int
    logprobs: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class OptimStepResult:
    """An update. sampler_path: object key of the weights' manifest; state_path: object key of the training
    state; is_head: whether head moved to this version. persist: what was saved: the ids and paths of the rest
    are empty, and with `none` the version is the newest that was published before."""

    step: int
    version: int
    checkpoint_id: str
    sampler_path: str
    state_path: str
    model: str
    metrics: Mapping[str, float]
    is_head: bool
    persist: str = "checkpoint"


@dataclass(frozen=True, slots=True)
class StepResult(OptimStepResult):
    """A forward and backward pass and the update after it. num_datums: rows that were trained."""

    num_datums: int = 0


def datum_of(message: "pb.Datum") -> DatumTensors:
    """From the wire."""
    return DatumTensors(
        reward=message.reward,
        advantage=message.advantage,
        input_index=message.input_index,
        group_index=message.group_index if message.HasField("group_index") else None,
        logprobs=list(message.logprobs),
        sampling_logprobs=list(message.sampling_logprobs),
        mask=list(message.mask),
        token_ids=list(message.token_ids),
    )


def optim_step_of(message: "pb.OptimStepResult") -> OptimStepResult:
    """From the wire."""
    return OptimStepResult(**_update(message, {}))


def step_of(message: "pb.OptimStepResult", metrics: Mapping[str, float], num_datums: int) -> StepResult:
    """From the wire; merges the metrics of the pass and of the update."""
    return StepResult(**_update(message, metrics), num_datums=num_datums)


def _update(message: "pb.OptimStepResult", metrics: Mapping[str, float]) -> dict[str, Any]:
    """Arguments of an OptimStepResult. metrics: of the pass before it."""
    return {
        "step": message.step,
        "version": message.version,
        "checkpoint_id": message.checkpoint_id,
        "sampler_path": message.sampler_path,
        "state_path": message.state_path,
        "model": message.model,
        "metrics": {**metrics, **message.metrics},
        "is_head": message.is_head,
        "persist": _PERSIST_NAMES.get(message.persist, "checkpoint"),
    }
