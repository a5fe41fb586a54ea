"""Makes a Hugging Face directory with a tiny Qwen3 of random weights.

    python -m examples.tiny_model FOLDER TEXT ...

The tokenizer is learnt from the texts: files that hold what the model will read and write. Random weights
know nothing: train them with `upcycle train --sft` first. Tokenizer rules and chat template are those of the
incident example.
"""

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from chat_format import ChatFormat
from examples.incident.policy_files import END_OF_TEXT, train_tokenizer, write_format


def main(folder: str, *texts: str) -> None:
    """Write tokenizer, chat template, config and weights into `folder`."""
    out = Path(folder)
    write_format(out, train_tokenizer(Path(text).read_text(encoding="utf-8") for text in texts))
    chat = ChatFormat.load(out)
    (end,), (pad,) = chat.stop_token_ids, chat.encode(END_OF_TEXT)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=chat.vocab_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.08,  # the library's 0.02 is for wide models
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=end,
        pad_token_id=pad,
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(out)
    print(f"{out}: {model.num_parameters():,} parameters, vocabulary {chat.vocab_size}")


if __name__ == "__main__":
    main(*sys.argv[1:])
