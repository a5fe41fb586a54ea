"""Whether the device that the settings name is on this machine: asked before any run begins."""

from __future__ import annotations

import torch

from grpo_trainer.domain.errors import InvalidTrainingSpec


def check_device(name: str, ranks: int) -> None:
    """ranks: processes that compute on it; "cuda" gives each a GPU of its own. Raises InvalidTrainingSpec."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise _refused(name, str(error).partition("\n")[0]) from error
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise _refused(name, "the trainer computes on cpu and cuda")
    if not torch.cuda.is_available():
        raise _refused(name, f"torch {torch.__version__} sees no CUDA device on this machine; set cpu")
    if ranks > 1 and device.index is not None:
        raise _refused(name, f"{ranks} ranks need a GPU each; set cuda")
    count, wanted = torch.cuda.device_count(), max(ranks, 1 + (device.index or 0))
    if wanted > count:
        raise _refused(name, f"{wanted} GPUs are needed, and this machine has {count}")


def _refused(name: str, why: str) -> InvalidTrainingSpec:
    return InvalidTrainingSpec(f"GRPO_TRAINER_DEVICE {name!r} cannot be used: {why}")
