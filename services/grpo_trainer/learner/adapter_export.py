"""A version's adapter as files beside its merged weights: engines that serve its base can hold it so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from policy_files.adapters import ADAPTER_CONFIG, ADAPTER_FOLDER, ADAPTER_WEIGHTS

_PEFT_PREFIX = "base_model.model."
_DOWN = ".lora_A.weight"


def export_adapter(base: Path, directory: Path, adapter: Mapping[str, Tensor], merge_scale: float) -> None:
    """Write what `merged_state` adds to the base, in PEFT's format.

    base: the folder of the version it is added to, which its digest names. adapter: by
    Adapter.parameters' names.
    """
    downs = {name: tensor for name, tensor in adapter.items() if name.endswith(_DOWN)}
    (rank,) = {tensor.shape[0] for tensor in downs.values()}
    folder = directory / ADAPTER_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": rank,
        "lora_alpha": merge_scale * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.removesuffix(_DOWN).rpartition(".")[2] for name in downs}),
    }
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    tensors = {_PEFT_PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in adapter.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
