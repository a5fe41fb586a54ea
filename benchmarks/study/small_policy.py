"""A policy's folder that is small enough to learn from in seconds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from policy_files.tiny_format import END_OF_TEXT, TURN_END, train_tokenizer, write_format


def small_config(vocab_size: int, max_length: int, **more: Any) -> Qwen3Config:
    """Of two layers, 32 wide."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=max_length,
        **more,
    )


def write_small_policy(folder: Path, texts: Iterable[str], *, max_length: int, seed: int) -> Path:
    """A Qwen3 of random weights, in the format of the demo's policy, with a tokenizer of the texts."""
    tokenizer = train_tokenizer(texts)
    write_format(folder, tokenizer, max_length=max_length)
    torch.manual_seed(seed)
    config = small_config(
        tokenizer.get_vocab_size(with_added_tokens=True),
        max_length,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
