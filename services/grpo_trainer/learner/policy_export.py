"""A model in training as a HF directory: the base's files with new weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

_WEIGHTS: Final = "model.safetensors"
_DTYPES: Final = {torch.float32: "F32", torch.bfloat16: "BF16"}


def export_policy(
    module: Any, base: Path, directory: Path, state: Mapping[str, Tensor] | None = None
) -> None:
    """Write a directory that `from_pretrained` and engines read. Equal weights give equal bytes.

    state: weights by the module's names, tied names sharing one tensor; None: the module's own.
    """
    if state is None:
        state = module.state_dict()
    directory.mkdir(parents=True, exist_ok=True)
    for path in base.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copyfile(path, directory / path.name)
    names = _names_in_base(base, state)
    if names is None:  # sharded, or stored otherwise than the model names its tensors
        module.save_pretrained(directory, state_dict=dict(state))
        return
    tensors = {name: state[name].detach().cpu().contiguous() for name in names}
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})


def _names_in_base(base: Path, state: Mapping[str, Tensor]) -> list[str] | None:
    """Tensor names of the base's only weight file, if the model has exactly these, in the same dtype."""
    if [path.name for path in base.glob("*.safetensors")] != [_WEIGHTS]:
        return None
    with safe_open(base / _WEIGHTS, framework="pt") as file:
        names = list(file.keys())
        same = all(
            name in state and file.get_slice(name).get_dtype() == _DTYPES.get(state[name].dtype)
            for name in names
        )
    held = {state[name].data_ptr() for name in names if name in state}
    return names if same and held.issuperset(tensor.data_ptr() for tensor in state.values()) else None
