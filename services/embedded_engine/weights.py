"""A HF directory's weights in the layout that the forward pass wants.

Compared with the checkpoint: norm weights and projections of equal input are fused, matrices are
transposed for `x @ W`, and the two halves of each rotary head are interleaved, so that rotation is one
complex product. Scores do not change: queries and keys are permuted alike.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embedded_engine.errors import BadWeights, UnsupportedModel

CPU = torch.device("cpu")
_ARCHITECTURES = {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the model; two policies with equal configs can share an engine's caches."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    has_qk_norm: bool
    ties_embeddings: bool


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block. H hidden, N query heads, K key-value heads, D head size, F feed-forward size.

    Norm weights are multiplied into the matrices that follow them.
    """

    qkv: Tensor  # [H, (N + 2K) D]
    qkv_bias: Tensor | None  # [(N + 2K) D]
    qk_scale: Tensor  # [N + K, D]; norm weights, with 1/sqrt(D) in the queries' part
    out: Tensor  # [N D, H]
    gate_up: Tensor  # [H, 2 F]
    down: Tensor  # [F, H]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All tensors of one policy, float32, ready to run on the device that they are on."""

    config: ModelConfig
    embedding: Tensor  # [V, H]
    layers: tuple[LayerWeights, ...]
    head: Tensor  # [H, V], the final norm's weight in it

    @property
    def device(self) -> torch.device:
        """Where the policy runs."""
        return self.embedding.device


def load_config(directory: Path) -> ModelConfig:
    """Read config.json. Raises UnsupportedModel for what this engine cannot run exactly."""
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return _config(raw)
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, UnsupportedModel):
            raise
        raise UnsupportedModel(f"{directory / 'config.json'} cannot be used: {error!r}") from error


def _config(raw: Mapping[str, Any]) -> ModelConfig:
    architecture = str((raw.get("architectures") or ["none"])[0])
    if architecture not in _ARCHITECTURES:
        raise UnsupportedModel(f"architecture {architecture!r}; this engine runs {sorted(_ARCHITECTURES)}")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise UnsupportedModel(f"rope parameters {rope!r}; this engine runs plain rotary embeddings only")
    if raw.get("use_sliding_window") or raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel("sliding windows and activations other than silu are not supported")
    heads = int(raw["num_attention_heads"])
    return ModelConfig(
        architecture=architecture,
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // heads),
        max_positions=int(raw["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
        norm_eps=float(raw["rms_norm_eps"]),
        has_qk_norm=architecture == "Qwen3ForCausalLM",
        ties_embeddings=bool(raw.get("tie_word_embeddings", False)),
    )


def load_weights(directory: Path, device: torch.device = CPU) -> ModelWeights:
    """Read, check and arrange every tensor on `device`. Raises UnsupportedModel, BadWeights."""
    config = load_config(directory)
    source = _Source(directory, _read_all(directory), device)
    embedding = source.take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    layers = tuple(_layer(source, config, index) for index in range(config.num_layers))
    final_norm = source.take("model.norm.weight", (config.hidden_size,))
    if config.ties_embeddings:
        head = embedding
    else:
        head = source.take("lm_head.weight", (config.vocab_size, config.hidden_size))
    return ModelWeights(config, embedding, layers, (head * final_norm).t().contiguous())


def _read_all(directory: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
        except (SafetensorError, OSError) as error:
            raise BadWeights(f"{path} cannot be read: {error}") from error
    if not tensors:
        raise BadWeights(f"{directory} has no .safetensors file with a tensor in it")
    return tensors


class _Source:
    """Hands out checkpoint tensors by name, each checked for shape and finite values."""

    def __init__(self, directory: Path, tensors: dict[str, Tensor], device: torch.device) -> None:
        self.device = device
        self._directory = directory
        self._tensors = tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise BadWeights(f"{self._directory}: tensor {name!r} is missing")
        if tuple(tensor.shape) != shape:
            raise BadWeights(f"{self._directory}: {name!r} is {tuple(tensor.shape)}, the config says {shape}")
        tensor = tensor.to(self.device, torch.float32)
        if not bool(torch.isfinite(tensor).all()):
            raise BadWeights(f"{self._directory}: {name!r} holds values that are not finite")
        return tensor

    def has(self, name: str) -> bool:
        return name in self._tensors


def _layer(source: _Source, config: ModelConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}."
    hidden, inner = config.hidden_size, config.intermediate_size
    gate = source.take(f"{prefix}mlp.gate_proj.weight", (inner, hidden))
    up = source.take(f"{prefix}mlp.up_proj.weight", (inner, hidden))
    out = source.take(f"{prefix}self_attn.o_proj.weight", (hidden, config.num_heads * config.head_dim))
    down = source.take(f"{prefix}mlp.down_proj.weight", (hidden, inner))
    input_norm = source.take(f"{prefix}input_layernorm.weight", (hidden,))
    post_norm = source.take(f"{prefix}post_attention_layernorm.weight", (hidden,))
    qkv = _fused_qkv(source, config, prefix, "weight", (hidden,))
    return LayerWeights(
        qkv=(qkv * input_norm).t().contiguous(),
        qkv_bias=_fused_qkv(source, config, prefix, "bias", ())
        if source.has(f"{prefix}self_attn.q_proj.bias")
        else None,
        qk_scale=_qk_scale(source, config, prefix),
        out=out.t().contiguous(),
        gate_up=(torch.cat((gate, up)) * post_norm).t().contiguous(),
        down=down.t().contiguous(),
    )


def _fused_qkv(
    source: _Source, config: ModelConfig, prefix: str, kind: str, inner: tuple[int, ...]
) -> Tensor:
    parts = []
    for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
        part = source.take(f"{prefix}self_attn.{name}_proj.{kind}", (heads * config.head_dim, *inner))
        parts.append(part if name == "v" else _interleave(part, heads, config.head_dim))
    return torch.cat(parts)


def _qk_scale(source: _Source, config: ModelConfig, prefix: str) -> Tensor:
    scale = torch.ones(config.num_heads + config.num_kv_heads, config.head_dim, device=source.device)
    if config.has_qk_norm:
        shape = (config.head_dim,)
        query = _interleave(source.take(f"{prefix}self_attn.q_norm.weight", shape), 1, config.head_dim)
        key = _interleave(source.take(f"{prefix}self_attn.k_norm.weight", shape), 1, config.head_dim)
        scale[: config.num_heads] = query
        scale[config.num_heads :] = key
    scale[: config.num_heads] /= math.sqrt(config.head_dim)
    return scale


def _interleave(tensor: Tensor, heads: int, head_dim: int) -> Tensor:
    """Rotary pairs (i, i + D/2) of each head become neighbours (2i, 2i + 1). First dimension: heads x D."""
    inner = tensor.shape[1:]
    halves = tensor.reshape(heads, 2, head_dim // 2, *inner)
    return halves.transpose(1, 2).reshape(heads * head_dim, *inner).contiguous()
