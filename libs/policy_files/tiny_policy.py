"""Makes a Hugging Face directory with a tiny Qwen3 of random weights. No torch: the weights are written as
safetensors directly.

The tokenizer is learnt from texts that hold what the model will read and write. Random weights know nothing:
SFT on demonstrations comes first. Equal texts and seed give equal files.
"""

import array
import json
import random
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from policy_files.tiny_format import END_OF_TEXT, TURN_END, train_tokenizer, write_format

MAX_LENGTH: Final = 2048
_INITIAL_RANGE: Final = 0.08
"""Standard deviation of the weights; the usual 0.02 is for wide models."""


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Sizes of the model."""

    hidden: int = 128
    intermediate: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head: int = 32


@dataclass(frozen=True, slots=True)
class TinyPolicy:
    """What was written."""

    num_parameters: int
    vocabulary: int


def create_tiny(folder: Path, texts: Iterable[str], *, seed: int = 0) -> TinyPolicy:
    """Write tokenizer, chat template, config and weights into `folder`, which is made."""
    shape, tokenizer = TinyShape(), train_tokenizer(texts)
    write_format(folder, tokenizer, max_length=MAX_LENGTH)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    config = json.dumps(_config(shape, tokenizer, vocabulary), indent=2) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    tensors = dict(_tensors(shape, vocabulary))
    _write_weights(folder / "model.safetensors", tensors, random.Random(seed))  # noqa: S311 - weights
    return TinyPolicy(sum(map(_size, tensors.values())), vocabulary)


def _tensors(shape: TinyShape, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Qwen3ForCausalLM has them; the embedding is also the head."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head, shape.key_value_heads * shape.head
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for number in range(shape.layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{layer}.self_attn.q_norm.weight", (shape.head,)
        yield f"{layer}.self_attn.k_norm.weight", (shape.head,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield f"{layer}.mlp.gate_proj.weight", (shape.intermediate, hidden)
        yield f"{layer}.mlp.up_proj.weight", (shape.intermediate, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, shape.intermediate)
    yield "model.norm.weight", (hidden,)


def _config(shape: TinyShape, tokenizer: Tokenizer, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(TURN_END),
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "head_dim": shape.head,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": _INITIAL_RANGE,
        "intermediate_size": shape.intermediate,
        "layer_types": ["full_attention"] * shape.layers,
        "max_position_embeddings": MAX_LENGTH,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }


def _size(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 1 else shape[0] * shape[1]


def _write_weights(path: Path, tensors: dict[str, tuple[int, ...]], rng: random.Random) -> None:
    """A safetensors file: the header's length, the header, then float32 values. Norms begin at 1."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + 4 * _size(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for shape in tensors.values():
            count, is_norm = _size(shape), len(shape) == 1
            numbers = (1.0 if is_norm else rng.gauss(0, _INITIAL_RANGE) for _ in range(count))
            values = array.array("f", numbers)
            if sys.byteorder == "big":
                values.byteswap()
            values.tofile(file)
