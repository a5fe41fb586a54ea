"""What the benchmark `gpu` computes: a policy in the shape of Qwen3-0.6B, and a batch of ragged rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Qwen3Config

from grpo_trainer.domain.token_rows import EpisodeTokens, TokenRow
from grpo_trainer.learner.packed_model import new_module
from grpo_trainer.learner.protocol import BatchGroup
from identities.entities import trajectory_id

CONTEXT: Final = 4096
MEMBERS: Final = 8
_SHARPNESS: Final = 4.0
"""The last norm's weight. Random weights alone choose among all tokens alike; with this, entropy is that of
a sampler that is less than sure, and log-probabilities differ as they do in practice."""


def config(*, quick: bool) -> Any:
    """Qwen3-0.6B as its publisher describes it; quick: the same with few and narrow layers."""
    shape: dict[str, Any] = {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    if quick:
        shape |= {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return Qwen3Config(
        **shape,
        max_position_embeddings=CONTEXT,
        rope_theta=1e6,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
    )


def write_policy(directory: Path, device: str, *, quick: bool) -> int:
    """A HF directory with random weights in float32; returns how many parameters it has."""
    torch.manual_seed(0)
    with torch.device(device):
        module = new_module(config(quick=quick))
    with torch.no_grad():
        module.model.norm.weight.fill_(_SHARPNESS)
    module.save_pretrained(directory)
    return sum(parameter.numel() for parameter in module.parameters())


def batch(vocabulary: int, *, groups: int, longest: int = CONTEXT) -> list[BatchGroup]:
    """Groups of 8 rollouts of one prompt; every second one earned a reward. Prompts have an eighth to a
    quarter of `longest` tokens; completions are ragged, and a few end where the context does."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for number in range(groups):
        prompt = _ids(_between(longest // 8, longest // 4, generator), vocabulary, generator)
        rollouts = tuple(
            _episode(f"{number}-{member}", prompt, longest, vocabulary, generator)
            for member in range(MEMBERS)
        )
        rewards = tuple(float(member % 2) for member in range(MEMBERS))
        made.append(BatchGroup(f"run-benchmark-g{number:05d}", rollouts, rewards))
    return made


def row_tokens(groups: Sequence[BatchGroup]) -> int:
    """Tokens of all rows, shared ones counted in each."""
    return sum(len(rollout.rows[0].token_ids) for group in groups for rollout in group.rollouts)


def _episode(
    name: str, prompt: list[int], longest: int, vocabulary: int, generator: torch.Generator
) -> EpisodeTokens:
    room = longest - len(prompt)
    # The square of a uniform number: most are short, and the longest fills the context.
    length = max(8, int(room * float(torch.rand((), generator=generator)) ** 2))
    ids = [*prompt, *_ids(length, vocabulary, generator)]
    trained = [False] * len(prompt) + [True] * length
    logprobs = [-float(torch.log(torch.tensor(float(vocabulary))))] * len(ids)
    row = TokenRow.of(ids, trained, logprobs, [0] * len(ids))
    return EpisodeTokens(trajectory_id(name), (row,), 1.0, 0, 0, 1)


def _between(low: int, high: int, generator: torch.Generator) -> int:
    return int(torch.randint(low, high, (), generator=generator))


def _ids(count: int, vocabulary: int, generator: torch.Generator) -> list[int]:
    ids: list[int] = torch.randint(vocabulary, (count,), generator=generator).tolist()
    return ids
