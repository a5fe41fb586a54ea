"""The smallest policies that are still transformers."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, Qwen3Config

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
