"""Model, optimizer, scheduler and random state of a session: copied to the host, and back, bit for bit. In
files they are as `training_states` writes them.

Names in the files: `model/<parameter>`, `optimizer/<parameter>/<key>`, `options/<group>`,
`scheduler/state`, `random/<generator>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.learner.random_state import RandomState
from grpo_trainer.learner.rate_schedule import RateSchedule
from grpo_trainer.learner.sharding import assign, spread_like, whole
from training_states import InvalidStateFiles
from training_states.files import read_tensors

_MODEL: Final = "model/"
_OPTIMIZER: Final = "optimizer/"
_OPTIONS: Final = "options/"
_SCHEDULER: Final = "scheduler/"
_RANDOM: Final = "random/"
_COUNT: Final = "step"
"""What an optimizer keeps of a parameter beside values of its shape: how many steps there were."""
_UNUSABLE: Final = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What json, torch and numpy raise for values that they cannot use."""

Parameters = Mapping[str, nn.Parameter]
"""What a session trains, by names that are the same in every process."""


def host_copy(
    parameters: Parameters, optimizer: Optimizer, rates: RateSchedule, random: RandomState
) -> dict[str, Tensor]:
    """Everything that the next step depends on, on the host; later steps do not change it."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"{_MODEL}{name}"] = _copied(parameter)
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{_OPTIMIZER}{name}/{key}"] = _copied(value)
    for index, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        data = json.dumps(options, sort_keys=True).encode()
        tensors[f"{_OPTIONS}{index}"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    tensors.update({f"{_SCHEDULER}{name}": state for name, state in rates.tensors().items()})
    tensors.update({f"{_RANDOM}{name}": state for name, state in random.tensors().items()})
    return tensors


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained parameters of a host copy, by name."""
    return _below(_MODEL, tensors)


def read_state(directory: Path) -> dict[str, Tensor]:
    """The host copy that was written to a folder. Raises BrokenArtifact."""
    try:
        return read_tensors(directory)
    except InvalidStateFiles as error:
        raise BrokenArtifact(
            f"{directory.name} holds no training state that this trainer reads: {error}"
        ) from error


def load_tensors(
    tensors: Mapping[str, Tensor],
    parameters: Parameters,
    optimizer: Optimizer,
    rates: RateSchedule,
    random: RandomState,
) -> None:
    """Put a host copy back, in place. Raises BrokenArtifact where a tensor has another name, shape or type
    than in the model, or the optimizer's options, the schedule or the random state cannot be used."""
    weights = weights_of(tensors)
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[:3]
        raise BrokenArtifact(f"the training state and the model disagree about parameters {odd}")
    moments = _moments(tensors)
    for name, parameter in parameters.items():
        _refuse_unlike(f"parameter {name}", weights[name], parameter)
        for key, value in moments.get(name, {}).items():
            if key != _COUNT:
                _refuse_unlike(f"{key} of parameter {name}", value, parameter)
    for name, parameter in parameters.items():
        assign(parameter, weights[name])
        if name in moments:
            optimizer.state[parameter] = {
                key: spread_like(value, parameter)
                if value.shape == parameter.shape
                else value.to(parameter.device)
                for key, value in moments[name].items()
            }
    with _named_in_errors("options of the optimizer"):
        for index, data in _below(_OPTIONS, tensors).items():
            optimizer.param_groups[int(index)].update(json.loads(data.numpy().tobytes()))
    with _named_in_errors("place in the schedule"):
        rates.restore(_below(_SCHEDULER, tensors))
    with _named_in_errors("random state"):
        random.restore(_below(_RANDOM, tensors))
        with random.active():  # a state that no generator takes fails here, not in the first step
            pass


def _moments(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """What the optimizer knows of each parameter, by its name."""
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in _below(_OPTIMIZER, tensors).items():
        parameter_name, _, key = name.rpartition("/")
        moments.setdefault(parameter_name, {})[key] = value
    return moments


def _refuse_unlike(what: str, stored: Tensor, parameter: Tensor) -> None:
    """Raises BrokenArtifact for another shape or type: torch would spread one value over the whole parameter,
    and round values of another type."""
    if (stored.shape, stored.dtype) != (parameter.shape, parameter.dtype):
        raise BrokenArtifact(
            f"{what} is {_kind(stored)} in the training state, and {_kind(parameter)} in the model; put back "
            "what a backup has, or begin a new run from a checkpoint"
        )


def _kind(one: Tensor) -> str:
    return f"{str(one.dtype).removeprefix('torch.')} of shape {list(one.shape)}"


@contextmanager
def _named_in_errors(what: str) -> Iterator[None]:
    """Raises BrokenArtifact, which names the part, where what is put back inside cannot be used."""
    try:
        yield
    except _UNUSABLE as error:
        raise BrokenArtifact(
            f"the {what} in the training state cannot be put back ({type(error).__name__}: {error}); "
            "put back what a backup has, or begin a new run from a checkpoint"
        ) from error


def _copied(value: Tensor) -> Tensor:
    return whole(value).to("cpu", copy=True).contiguous()


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
