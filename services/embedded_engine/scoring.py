"""Passes over whole pieces of rows: pending prompts of sequences, and rows that are only scored."""

from collections.abc import Sequence

import numpy as np
import torch

from embedded_engine.decoder import Batch, DecoderModel, KeyValueCache, PrefillAttention


def pass_over(
    model: DecoderModel,
    cache: KeyValueCache,
    slots: Sequence[int],
    starts: Sequence[int],
    chunks: Sequence[Sequence[int]],
) -> torch.Tensor:
    """Run chunks[p] from position starts[p] in slots[p]. Returns the hidden states of all tokens, row after
    row: [T, H]."""
    counts = [len(chunk) for chunk in chunks]
    positions = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)])
    groups = model.config.num_heads // model.config.num_kv_heads
    batch = Batch(
        torch.tensor([token for chunk in chunks for token in chunk], device=cache.device),
        cache.tensor(positions),
        cache.write_index(np.repeat(slots, counts), positions),
        PrefillAttention.over(list(slots), list(starts), counts, groups, cache.device),
    )
    return model.hidden(batch, cache)


def score(model: DecoderModel, rows: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probabilities (temperature 1) of row[1:] given their prefixes. It has keys and values of its own,
    so any thread may call it while the model samples."""
    if not rows:
        return []
    counts = [len(row) for row in rows]
    with torch.inference_mode():
        cache = KeyValueCache(model.config, len(rows), max(counts), model.weights.device)
        hidden = pass_over(model, cache, range(len(rows)), [0] * len(rows), rows)
        scored: list[list[float]] = []
        for row, states in zip(rows, torch.split(hidden, counts), strict=True):
            distribution = torch.log_softmax(model.logits(states[:-1]), dim=-1)
            taken = torch.tensor(row[1:], device=distribution.device).unsqueeze(1)
            scored.append(distribution.gather(1, taken).squeeze(1).tolist())
    return scored
