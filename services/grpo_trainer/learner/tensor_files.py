"""Model, optimizer, scheduler and random state of a session: copied to the host, and in files of
torch.distributed.checkpoint, bit for bit.

Names in the files: `model/<parameter>`, `optimizer/<parameter>/<key>`, `options/<group>`,
`scheduler/state`, `random/<generator>`.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from grpo_trainer.domain.errors import BrokenArtifact
from grpo_trainer.learner.random_state import RandomState
from grpo_trainer.learner.rate_schedule import RateSchedule
from grpo_trainer.learner.sharding import assign, spread_like, whole
from grpo_trainer.learner.state_reader import StateReader

_MODEL: Final = "model/"
_OPTIMIZER: Final = "optimizer/"
_OPTIONS: Final = "options/"
_SCHEDULER: Final = "scheduler/"
_RANDOM: Final = "random/"
_ALONE: Final = "torch.distributed is disabled, unavailable or uninitialized"

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


def write_tensors(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a host copy. directory: made, or empty."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(directory, single_file_per_rank=True, sync_files=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_ALONE)
        save(dict(tensors), storage_writer=writer, no_dist=True)


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """What `write_tensors` wrote, on the host. Raises BrokenArtifact."""
    try:
        reader = StateReader(directory)
        stored = reader.read_metadata().state_dict_metadata
        tensors = {
            name: torch.empty(one.size, dtype=one.properties.dtype)
            for name, one in stored.items()
            if isinstance(one, TensorStorageMetadata)
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_ALONE)
            load(tensors, storage_reader=reader, no_dist=True)
    except (OSError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
        raise BrokenArtifact(
            f"{directory.name} holds no training state that this trainer reads: {error}"
        ) from error
    return tensors


def load_tensors(
    tensors: Mapping[str, Tensor],
    parameters: Parameters,
    optimizer: Optimizer,
    rates: RateSchedule,
    random: RandomState,
) -> None:
    """Put a host copy back, in place. Raises BrokenArtifact where it is of another architecture, or
    does not know its place in the schedule."""
    weights = weights_of(tensors)
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[:3]
        raise BrokenArtifact(f"the training state and the model disagree about parameters {odd}")
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in _below(_OPTIMIZER, tensors).items():
        parameter_name, _, key = name.rpartition("/")
        moments.setdefault(parameter_name, {})[key] = value
    for name, parameter in parameters.items():
        assign(parameter, weights[name])
        if name in moments:
            optimizer.state[parameter] = {
                key: spread_like(value, parameter)
                if value.shape == parameter.shape
                else value.to(parameter.device)
                for key, value in moments[name].items()
            }
    for index, data in _below(_OPTIONS, tensors).items():
        optimizer.param_groups[int(index)].update(json.loads(data.numpy().tobytes()))
    rates.restore(_below(_SCHEDULER, tensors))
    random.restore(_below(_RANDOM, tensors))


def _copied(value: Tensor) -> Tensor:
    return whole(value).to("cpu", copy=True).contiguous()


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
