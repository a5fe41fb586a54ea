"""Small policies with random weights: real HF directories, made in a few milliseconds."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from grpo_trainer.learner.adapter_export import export_adapter

TEMPLATE = """{%- if tools %}<|im_start|>system
# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{%- else %}
<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
END_OF_TURN = 2


@dataclass(frozen=True)
class Shape:
    """Size of a test model."""

    architecture: str = "Qwen3ForCausalLM"
    layers: int = 2
    hidden: int = 64
    inner: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 512
    tied: bool = True
    scale: float = 0.12


def make_policy(directory: Path, seed: int, shape: Shape | None = None) -> Path:
    """Write a policy directory; equal seeds give equal bytes."""
    shape = shape or Shape()
    directory.mkdir(parents=True, exist_ok=True)
    vocab = _write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(_config(shape, vocab)))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END_OF_TURN}))
    save_file(random_tensors(shape, vocab, seed), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_adapted(base: Path, directory: Path, seed: int, *, base_digest: str, rank: int = 4) -> Path:
    """Write `base` with a random adapter added in, and the adapter beside it, as the trainer does."""
    generator, scale = torch.Generator().manual_seed(seed), 2.0
    tensors, adapter = load_file(base / "model.safetensors"), {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        outputs, inputs = tensors[name].shape
        down = torch.randn(rank, inputs, generator=generator) * 0.1
        up = torch.randn(outputs, rank, generator=generator) * 0.1
        layer = name.removesuffix(".weight")
        adapter[f"{layer}.lora_A.weight"], adapter[f"{layer}.lora_B.weight"] = down, up
        tensors[name] = tensors[name] + scale * (up @ down)
    shutil.copytree(base, directory, dirs_exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    export_adapter(Path(base_digest), directory, adapter, scale)
    return directory


TOOL_CALL_BODY = '\n{"name": "search", "arguments": {"query": "disk"}}\n'


def make_tool_caller(directory: Path, shape: Shape | None = None) -> Path:
    """A policy that answers every generation prompt with one call of `search`, whatever the seed.

    Its blocks do nothing, so the next token depends on the last one only; four tokens form the script.
    """
    shape = replace(shape or Shape(), tied=False)
    directory.mkdir(parents=True, exist_ok=True)
    vocab = _write_tokenizer(directory, extra=(TOOL_CALL_BODY,))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    spoken = f"\n<tool_call>{TOOL_CALL_BODY}</tool_call>"
    script = [*tokenizer.encode(spoken).ids, END_OF_TURN]
    assert len(script) == 5, script
    tensors = {name: torch.zeros(size) for name, size in _names(shape, vocab)}
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor.fill_(1.0)
    for place, (token, following) in enumerate(pairwise(script)):
        tensors["model.embed_tokens.weight"][token, place] = 1.0
        tensors["lm_head.weight"][following, place] = 20.0
    (directory / "config.json").write_text(json.dumps(_config(shape, vocab)))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END_OF_TURN}))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def random_tensors(shape: Shape, vocab: int, seed: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, size in _names(shape, vocab):
        noise = torch.randn(*size, generator=generator) * shape.scale
        tensors[name] = 1.0 + noise if "norm" in name else noise
    return tensors


def _names(shape: Shape, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (vocab, shape.hidden)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (vocab, shape.hidden)
    for index in range(shape.layers):
        prefix = f"model.layers.{index}."
        for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            yield f"{prefix}self_attn.{name}_proj.weight", (heads * shape.head_dim, shape.hidden)
        yield f"{prefix}self_attn.o_proj.weight", (shape.hidden, shape.heads * shape.head_dim)
        if shape.architecture == "Qwen3ForCausalLM":
            yield f"{prefix}self_attn.q_norm.weight", (shape.head_dim,)
            yield f"{prefix}self_attn.k_norm.weight", (shape.head_dim,)
        for name in ("gate", "up"):
            yield f"{prefix}mlp.{name}_proj.weight", (shape.inner, shape.hidden)
        yield f"{prefix}mlp.down_proj.weight", (shape.hidden, shape.inner)
        yield f"{prefix}input_layernorm.weight", (shape.hidden,)
        yield f"{prefix}post_attention_layernorm.weight", (shape.hidden,)


def _config(shape: Shape, vocab: int) -> dict[str, Any]:
    return {
        "architectures": [shape.architecture],
        "model_type": {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}[shape.architecture],
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": END_OF_TURN,
        "dtype": "float32",
    }


def _write_tokenizer(directory: Path, extra: tuple[str, ...] = ()) -> int:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*CONTROL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in (*MARKS, *extra)])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return tokenizer.get_vocab_size()
