"""The reference that engines are measured against: transformers on the same directory."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@lru_cache(maxsize=8)
def _model(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def reference_logits(directory: Path, token_ids: Sequence[int]) -> Tensor:
    """[T, V] of one row."""
    with torch.inference_mode():
        logits: Tensor = _model(directory)(torch.tensor([list(token_ids)])).logits[0]
    return logits


def reference_logprobs(directory: Path, token_ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Of token_ids[1:]."""
    scaled = torch.log_softmax(reference_logits(directory, token_ids) / temperature, dim=-1)
    found: list[float] = (
        scaled[:-1].gather(1, torch.tensor(list(token_ids[1:])).unsqueeze(1)).squeeze(1).tolist()
    )
    return found


def canary_rows(
    directory: Path, seed: int = 0, rows: int = 4, length: int = 24
) -> list[tuple[list[int], list[float]]]:
    """Token rows with the reference's log-probabilities, as a trainer ships them."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(rows):
        ids = torch.randint(3, 250, (length,), generator=generator).tolist()
        found.append((ids, reference_logprobs(directory, ids)))
    return found
