"""Policies of the corridor: what says how likely each action is at each turn of each kind of task."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from benchmarks.study.small_policy import small_config

_FIT_STEPS: Final = 400
_FIT_RATE: Final = 3e-3


class TableOfLogits(torch.nn.Module):
    """A number for each action, turn and kind: what is learned of one says nothing of another."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(start)

    def forward(self) -> Tensor:
        """Logits [kinds, turns, actions]."""
        return self.logits


class SmallTransformer(torch.nn.Module):
    """A Qwen3 that reads kind and turn as two tokens and answers with an action. Kinds and turns share its
    weights, so learning one helps or harms the others, as in a language model. It is fitted to the start."""

    def __init__(self, start: Tensor, seed: int) -> None:
        super().__init__()
        kinds, turns, self._actions = start.shape
        torch.manual_seed(seed)
        self.model = Qwen3ForCausalLM(
            small_config(self._actions + kinds + turns, max_length=4, tie_word_embeddings=False)
        )
        kind_ids = torch.arange(kinds).repeat_interleave(turns) + self._actions
        turn_ids = torch.arange(turns).repeat(kinds) + self._actions + kinds
        self._prompts = torch.stack([kind_ids, turn_ids], 1)
        self._shape = start.shape
        self._fit(start)

    def forward(self) -> Tensor:
        """Logits [kinds, turns, actions]."""
        last: Tensor = self.model(input_ids=self._prompts).logits[:, -1, : self._actions]
        return last.double().reshape(self._shape)

    def _fit(self, start: Tensor) -> None:
        wanted = torch.softmax(start, -1)
        optimizer = torch.optim.AdamW(self.parameters(), lr=_FIT_RATE, weight_decay=0.0)
        for _ in range(_FIT_STEPS):
            optimizer.zero_grad()
            loss = -(wanted * torch.log_softmax(self(), -1)).sum(-1).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
