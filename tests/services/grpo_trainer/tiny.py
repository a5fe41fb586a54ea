"""The smallest policies that are still transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, Qwen3Config

from grpo_trainer.learner.packed_model import PackedModel, new_module

VOCAB = 64


def tiny_config(architecture: str = "qwen3", **changes: Any) -> Any:
    """Two layers, a few thousand parameters. changes: fields of the configuration."""
    shape: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    }
    return {"qwen3": Qwen3Config, "llama": LlamaConfig}[architecture](**{**shape, **changes})


def new_model(config: Any, *, dtype: torch.dtype = torch.float32) -> PackedModel:
    """A model with fresh random weights."""
    return PackedModel(new_module(config, dtype=dtype))
