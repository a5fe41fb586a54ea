"""A model in training as a HF directory: the base's files with new weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_WEIGHTS: Final = "model.safetensors"
_DTYPES: Final = {torch.float32: "F32", torch.bfloat16: "BF16"}


def export_policy(module: Any, base: Path, directory: Path) -> None:
    """Write a directory that `from_pretrained` and engines read. Equal weights give equal bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in base.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
            shutil.copyfile(path, directory / path.name)
    names = _names_in_base(base, module)
    if names is None:  # sharded, or stored otherwise than the model names its tensors
        module.save_pretrained(directory)
        return
    state = module.state_dict()
    tensors = {name: state[name].detach().cpu().contiguous() for name in names}
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})


def _names_in_base(base: Path, module: Any) -> list[str] | None:
    """Tensor names of the base's only weight file, if the model has exactly these, in the same dtype."""
    if [path.name for path in base.glob("*.safetensors")] != [_WEIGHTS]:
        return None
    state = module.state_dict()
    with safe_open(base / _WEIGHTS, framework="pt") as file:
        names = list(file.keys())
        wanted = _DTYPES.get(next(module.parameters()).dtype)
        same = all(n in state and file.get_slice(n).get_dtype() == wanted for n in names)
    tied = {id(p): n for n, p in module.named_parameters()}
    covered = {id(state[n]) for n in names if n in state} | {state[n].data_ptr() for n in names if n in state}
    whole = all(p.data_ptr() in covered for p in module.parameters()) and len(tied) > 0
    return names if same and whole else None
