"""The numbers of PackedModel by the attention of transformers over rows padded on the right: as a check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from grpo_math.logprobs import token_logprobs
from grpo_math.packing import Microbatch
from grpo_trainer.learner.packed_model import layers_of, refuse_unsupported
from grpo_trainer.learner.ranks import ALONE, Ranks
from grpo_trainer.learner.sharding import shard


class PaddedModel:
    """Pads its rows; for any architecture."""

    def __init__(self, model: Any, ranks: Ranks = ALONE) -> None:
        """model: a transformers causal LM with any attention of transformers."""
        refuse_unsupported(model)
        self.module: Any = model.eval()
        self._scores = _PaddedScores(self.module)
        if ranks.size > 1:
            shard(self._scores, layers_of(model), ranks, self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.module.parameters()).device
        return device

    def logprobs(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each trained token, [N] each, nats, at the row's temperature."""
        scores: tuple[Tensor, Tensor] = self._scores(batch)
        return scores


def padded_module(config: Any, *, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model with fresh random weights, for a PaddedModel."""
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype)


class _PaddedScores(nn.Module):
    """Layers and output head under one forward, so that sharded parameters are whole inside of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Microbatch) -> tuple[Tensor, Tensor]:
        rows = [batch.input_ids[0][path] for path in batch.paths]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        picked = hidden[batch.row_of_token, batch.positions - 1]
        head = self.model.get_output_embeddings().weight
        return token_logprobs(picked, head, batch.labels, temperature=batch.temperature)
