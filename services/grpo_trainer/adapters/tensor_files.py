"""Model, optimizer and random state in one safetensors file, bit for bit."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.optim import Optimizer

_MODEL: Final = "model/"
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_STEP: Final = "adam_step"
_RNG: Final = "torch_rng"


def save_tensors(path: Path, module: Any, optimizer: Optimizer) -> None:
    """Write everything that the next step depends on."""
    tensors: dict[str, torch.Tensor] = {}
    step = 0
    for name, parameter in module.named_parameters():
        tensors[f"{_MODEL}{name}"] = parameter.detach().cpu().contiguous()
        state = optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"{moment}/{name}"] = state[moment].detach().cpu().contiguous()
        step = max(step, int(state.get("step", 0)))
    rng = base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()
    save_file(tensors, path, metadata={_STEP: str(step), _RNG: rng})


def load_tensors(path: Path, module: Any, optimizer: Optimizer) -> None:
    """Put everything back. Raises ValueError where the file is of another architecture."""
    parameters = dict(module.named_parameters())
    with safe_open(path, framework="pt") as file:
        held = {name.removeprefix(_MODEL) for name in file.keys() if name.startswith(_MODEL)}  # noqa: SIM118
        if held != parameters.keys():
            odd = sorted(held ^ parameters.keys())[:3]
            raise ValueError(f"{path.name} and the model disagree about parameters {odd}")
        metadata = file.metadata()
        for name, parameter in parameters.items():
            with torch.no_grad():
                parameter.copy_(file.get_tensor(f"{_MODEL}{name}"))
            moments = {m: f"{m}/{name}" for m in _MOMENTS}
            if int(metadata[_STEP]):
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(metadata[_STEP]), device=parameter.device),
                    **{m: file.get_tensor(key).to(parameter.device) for m, key in moments.items()},
                }
    rng = bytearray(base64.b64decode(metadata[_RNG]))
    torch.set_rng_state(torch.frombuffer(rng, dtype=torch.uint8))
